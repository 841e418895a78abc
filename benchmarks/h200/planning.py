"""Which step of the proof goes to the next free GPU, from what is done and how long each takes. Standard library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.h200 import needs, wanted

FAULTS_IN = "small"  # a folder of its own: neither they nor the tests need a trained network
ROWS = {"resnet18": 300, "mobilenet_v2": 150, "vit_small": 80}  # evaluations that a simulator wants
CHAIN = ("train", "uniform", "search", "compare", "export")
END_S = 8.0  # a step is told to end so long before it is ended
_LEAST_MIXES = {"resnet18": 100}  # to see whether they all build


@dataclass(frozen=True)
class Job:
    """A step of a network; `after` names the step of the same network that has to be done."""

    step: str
    network: str
    after: str = ""

    @property
    def name(self) -> str:
        return f"{self.network} {self.step}"

    @property
    def needs_s(self) -> float:
        return needs.needs_s(self.step, self.network)


def jobs(networks: Sequence[str], further: Sequence[str]) -> list[Job]:
    """All jobs, those that are wanted most first; `further` names more steps as NETWORK:STEP."""
    before = dict(zip(CHAIN, ("", *CHAIN), strict=False))
    found = [Job(step, network, before[step]) for step in CHAIN for network in networks]
    found.insert(len(networks), Job("suite", FAULTS_IN))  # a GPU beyond those that train has nothing else to do
    for text in further:
        network, _, step = text.partition(":")
        if network in networks:
            found.append(Job(step, network, "uniform"))
        elif network == FAULTS_IN:
            found.append(Job(step, network))
    return found


class Plan:
    """What is to do in a work folder.

    Args:
        also: further steps, as NETWORK:STEP.
    """

    def __init__(self, work: Path, networks: Sequence[str], also: Sequence[str]) -> None:
        self.work = work
        self.networks = list(networks)
        self.also = list(also)
        self.jobs = jobs(networks, also)
        self.failed: set[Job] = set()  # or not done within its time: for the next call

    def next_job(self, running: Sequence[Job], left_s: float) -> Job | None:
        """The job that is wanted most among those that can begin now, else mixes of the network that lacks most."""
        for job in self.jobs:
            if job not in running and job not in self.failed and self._can_begin(job, left_s):
                return job
        return self._mixes(running, left_s)

    def _can_begin(self, job: Job, left_s: float) -> bool:
        ready = not job.after or self.is_done(job.after, job.network)
        fits = left_s - END_S >= needs.least_s(job.step, job.network)
        return ready and fits and not self.is_done(job.step, job.network)

    def _mixes(self, running: Sequence[Job], left_s: float) -> Job | None:
        """Of the network whose rows still take longest, shared by the workers that are at it already."""
        at_work = [job.network for job in running if job.step == "mixes"]
        due = {
            network: self.rows_missing(network) * needs.ROW_S.get(network, 1.0) / (1 + at_work.count(network))
            for network in self.networks
            if self.is_done("uniform", network) and Job("mixes", network) not in self.failed
        }
        lacking = sorted((network for network in due if due[network] > 0), key=lambda network: -due[network])
        found = [Job("mixes", network) for network in lacking]
        return next((job for job in found if self._can_begin(job, left_s)), None)

    def rows_missing(self, network: str) -> int:
        return max(0, self.mixes_wanted(network) - self.mixes_done(network))

    def mixes_wanted(self, network: str) -> int:
        """Mixes beside the rows that the searches give."""
        steps = ["search", *(text.partition(":")[2] for text in self.also if text.partition(":")[0] == network)]
        searched = sum(wanted.trials_of(network, step) for step in steps)
        return max(_LEAST_MIXES.get(network, 0), ROWS.get(network, 100) - searched)

    def mixes_done(self, network: str) -> int:
        files = (self.work / network).glob("mixes*.jsonl")
        return sum('"a"' in line for file in files for line in file.read_text().splitlines())

    def is_done(self, step: str, network: str) -> bool:
        if step == "train":
            return (self.work / network / "training.json").exists() and (self.work / network / "model.onnx").exists()
        if step == "mixes":
            return self.rows_missing(network) == 0
        return bool(self.results(network).get("steps", {}).get(step))

    def results(self, network: str) -> dict[str, Any]:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads((self.work / network / "results.json").read_text())
            return found
        return {}


class Foretold(Plan):
    """A plan in which every step takes just what it is expected to, and nothing is run."""

    def __init__(self, work: Path, networks: Sequence[str], also: Sequence[str]) -> None:
        super().__init__(work, networks, also)
        self._finished: set[tuple[str, str]] = set()
        self._added: dict[str, int] = {}

    def is_done(self, step: str, network: str) -> bool:
        return (step, network) in self._finished or super().is_done(step, network)

    def mixes_done(self, network: str) -> int:
        return super().mixes_done(network) + self._added.get(network, 0)

    def lines(self, gpus: int, seconds: float) -> Iterator[str]:
        """A line per job: on which GPU, from when to when."""
        now, running = 0.0, dict[int, tuple[float, Job]]()
        while now < seconds:
            for gpu in sorted(set(range(gpus)) - running.keys()):
                job = self.next_job([each for _, each in running.values()], seconds - now)
                if job is not None:
                    end = min(seconds, now + self._takes_s(job))
                    yield f"gpu {gpu}  {now:6.0f} to {end:6.0f} s  {job.name}{self._count(job, end - now)}"
                    running[gpu] = (end, job)
            if not running:
                return
            first = min(running, key=lambda gpu: running[gpu][0])
            now, job = running.pop(first)
            self._finished.add((job.step, job.network))

    def _takes_s(self, job: Job) -> float:
        more_s = self.rows_missing(job.network) * needs.ROW_S.get(job.network, 1.0) if job.step == "mixes" else 0.0
        return job.needs_s + more_s

    def _count(self, job: Job, seconds: float) -> str:
        if job.step != "mixes":
            return ""
        count = int(max(0.0, seconds - job.needs_s) / needs.ROW_S.get(job.network, 1.0))
        self._added[job.network] = self._added.get(job.network, 0) + count
        return f": about {count}"
