"""Which step of the proof goes to the next free GPU, from what is done and how long each takes. Standard library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.h200 import needs, wanted

FAULTS_IN = "small"  # a folder of its own: neither they nor the tests need a trained network
ROWS = {"resnet18": 300, "mobilenet_v2": 150, "vit_small": 80}  # evaluations that a simulator wants
CHAIN = ("train", "uniform", "search", "compare", "export")
END_S = 8.0  # a step is told to end so long before it is ended
MIXES = "mixes"
_LEAST_MIXES = {"resnet18": 100}  # to see whether they all build
_AFTER = {
    **dict(zip(CHAIN, ("", *CHAIN), strict=False)),
    **dict.fromkeys(("baselines", "throughput", "quick", "tpe", "nsga2", "prepare"), "train"),  # studies of their own
    "scaling": "prepare",
}
_APART = {"throughput": "fresh", "quick": "quick", "tpe": "tpe", "nsga2": "nsga2"}
_STAGES = {"search": "stages", **{step: f"{apart}.stages" for step, apart in _APART.items()}}
_ENGINES_USED = ("compare", "repeat")


@dataclass(frozen=True)
class Job:
    """A step of a network.

    Attributes:
        after: the step of the same network that has to be done before.
        within_s: seconds that it may take, where it is to end before it is done.
    """

    step: str
    network: str
    after: str = ""
    within_s: float | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return f"{self.network} {self.step}"

    @property
    def alone(self) -> bool:
        """Whether it takes all GPUs, and nothing may run beside it."""
        return self.step in needs.ALONE


def jobs(networks: Sequence[str], further: Sequence[str], chain: Sequence[str] = CHAIN) -> list[Job]:
    """All jobs, those that are wanted most first; `further` names more steps as NETWORK:STEP."""
    found = [Job(step, network, _AFTER[step]) for step in CHAIN if step in chain for network in networks]
    found.insert(len(networks), Job("suite", FAULTS_IN))  # a GPU beyond those that train has nothing else to do
    for text in further:
        network, _, step = text.partition(":")
        if network in networks:
            found.append(Job(step, network, _AFTER.get(step, "uniform")))
        elif network == FAULTS_IN:
            found.append(Job(step, network))
    return found


class Plan:
    """What is to do in a work folder.

    Args:
        also: further steps, as NETWORK:STEP.
        gpus: of this host.
        chain: which of the steps that every network has are wanted.
    """

    def __init__(
        self, work: Path, networks: Sequence[str], also: Sequence[str], gpus: int = 1, chain: Sequence[str] = CHAIN
    ) -> None:
        self.work = work
        self.networks = list(networks)
        self.also = list(also)
        self.gpus = gpus
        self.jobs = jobs(networks, also, chain)
        self.failed: set[Job] = set()  # or not done within its time: for the next call

    def next_job(self, running: Sequence[Job], left_s: float, busy_s: float = 0.0) -> Job | None:
        """The job that is wanted most among those that can begin now, else mixes of the network that lacks most.

        A GPU is held free for a job that wants them all; meanwhile it takes one that can be stopped and gone on with.

        Args:
            busy_s: expected seconds until all that is running has ended.
        """
        if any(job.alone for job in running):
            return None
        for place, job in enumerate(self.jobs):
            if self._is_free(job, running) and self._can_begin(job, left_s - (busy_s if job.alone else 0.0), running):
                return self._meanwhile(place, running, busy_s) if job.alone and running else job
        return self._mixes(running, left_s)

    def _meanwhile(self, place: int, running: Sequence[Job], busy_s: float) -> Job | None:
        """A search to go on with until the GPUs that are busy are free too."""
        for job in self.jobs[place + 1 :]:
            if job.step in _STAGES and self._is_free(job, running) and self._can_begin(job, busy_s):
                return replace(job, within_s=busy_s)
        return None

    def _is_free(self, job: Job, running: Sequence[Job]) -> bool:
        """Of mixes every GPU takes its own share."""
        return job not in self.failed and (job.step == MIXES or job not in running)

    def _can_begin(self, job: Job, left_s: float, running: Sequence[Job] = ()) -> bool:
        """A job for all GPUs also when what it has to follow is running: it is next."""
        before = Job(job.after, job.network, _AFTER.get(job.after, ""))
        ready = not job.after or self.is_done(job.after, job.network) or (job.alone and before in running)
        enough = self.gpus >= needs.LEAST_GPUS.get(job.step, 1)
        fits = left_s - END_S >= needs.least_s(job.step, job.network) + self._rebuild_s(job)
        return ready and enough and fits and not self.is_done(job.step, job.network)

    def takes_s(self, job: Job) -> float:
        """Expected seconds, from what is done of it already."""
        if job.step in _STAGES and wanted.trials_of(job.network, job.step) and job.network in needs.ROW_S:
            done = self.evaluations_done(job)
            left = max(0, wanted.trials_of(job.network, job.step) - done)
            start = needs.GO_ON_S if done else needs.BEGIN_S
            return start[job.network] + left * self.row_s(job.network) + needs.FINALISTS_S
        return needs.needs_s(job.step, job.network) + self._rebuild_s(job)

    def _rebuild_s(self, job: Job) -> float:
        there = job.step not in _ENGINES_USED or any((self.work / job.network).glob("*.engine"))
        return 0.0 if there else needs.REBUILD_S.get(job.network, 0.0)

    def evaluations_done(self, job: Job) -> int:
        return len(self._walls(job.network, _STAGES[job.step]))

    def row_s(self, network: str) -> float:
        """What one evaluation takes: the median of those recorded in the work folder, else what others took."""
        walls = [wall for name in _STAGES.values() for wall in self._walls(network, name)]
        return median(walls) if len(walls) > needs.ENOUGH_ROWS else needs.ROW_S.get(network, 1.0)

    def _walls(self, network: str, name: str) -> list[float]:
        file = self.work / network / f"{name}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = []
        for line in lines:
            with suppress(json.JSONDecodeError, KeyError, TypeError):
                found.append(float(json.loads(line)["wall_s"]))
        return found

    def _mixes(self, running: Sequence[Job], left_s: float) -> Job | None:
        """Of the network whose rows still take longest, shared by the workers that are at it already."""
        at_work = [job.network for job in running if job.step == MIXES]
        due = {
            network: self.rows_missing(network) * self.row_s(network) / (1 + at_work.count(network))
            for network in self.networks
            if self._has_baselines(network) and Job(MIXES, network) not in self.failed
        }
        lacking = sorted((network for network in due if due[network] > 0), key=lambda network: -due[network])
        found = [Job(MIXES, network) for network in lacking]
        return next((job for job in found if self._can_begin(job, left_s)), None)

    def _has_baselines(self, network: str) -> bool:
        return self.is_done("baselines", network) or self.is_done("uniform", network)

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

    def __init__(
        self, work: Path, networks: Sequence[str], also: Sequence[str], gpus: int = 1, chain: Sequence[str] = CHAIN
    ) -> None:
        super().__init__(work, networks, also, gpus, chain)
        self._finished: set[tuple[str, str]] = set()
        self._added: dict[str, int] = {}
        self._evaluated: dict[Job, int] = {}

    def evaluations_done(self, job: Job) -> int:
        return super().evaluations_done(job) + self._evaluated.get(job, 0)

    def is_done(self, step: str, network: str) -> bool:
        return (step, network) in self._finished or super().is_done(step, network)

    def mixes_done(self, network: str) -> int:
        return super().mixes_done(network) + self._added.get(network, 0)

    def lines(self, seconds: float) -> Iterator[str]:
        """A line per job: on which GPU, from when to when, and what remains of it; then what is not reached."""
        now, running = 0.0, dict[int, tuple[float, Job]]()
        while now < seconds:
            for gpu in sorted(set(range(self.gpus)) - running.keys()):
                busy_s = max((end for end, _ in running.values()), default=now) - now
                job = self.next_job([each for _, each in running.values()], seconds - now, busy_s)
                if job is not None:
                    end = now + min(self._whole_s(job), job.within_s or seconds)
                    which, span = "all " if job.alone else f"gpu {gpu}", f"{now:6.0f} to {min(seconds, end):6.0f} s"
                    yield f"{which}  {span}  {job.name}{self._told(job, now, end, seconds)}"
                    running[gpu] = (end, job)
            if not running:
                break
            first = min(running, key=lambda gpu: running[gpu][0])
            now, job = running.pop(first)
            if job.within_s is not None and job.within_s < self._whole_s(job):
                self._evaluated[job] = self._evaluated.get(job, 0) + self._reached(job, job.within_s)
            elif now <= seconds:
                self._finished.add((job.step, job.network))
        yield from self._unreached()

    def _reached(self, job: Job, seconds: float) -> int:
        """Evaluations that a search makes in so long."""
        start = needs.GO_ON_S if self.evaluations_done(job) else needs.BEGIN_S
        return int(max(0.0, seconds - start[job.network]) / self.row_s(job.network))

    def _unreached(self) -> Iterator[str]:
        for job in self.jobs:
            if not self.is_done(job.step, job.network):
                few = needs.LEAST_GPUS.get(job.step, 1)
                why = f"needs {few} GPUs" if few > self.gpus else f"{self.takes_s(job):.0f} s"
                yield f"not done at the end: {job.name} ({why})"

    def _whole_s(self, job: Job) -> float:
        more_s = self.rows_missing(job.network) * self.row_s(job.network) if job.step == MIXES else 0.0
        return self.takes_s(job) + more_s

    def _told(self, job: Job, now: float, end: float, seconds: float) -> str:
        if job.step == MIXES:
            count = int(max(0.0, min(end, seconds) - now - job_start_s(job)) / self.row_s(job.network))
            self._added[job.network] = self._added.get(job.network, 0) + count
            return f": about {count}"
        if job.step in _STAGES and (end > seconds or job.within_s):
            done, trials = self.evaluations_done(job), wanted.trials_of(job.network, job.step)
            return (
                f": from {done} to about {min(trials, done + self._reached(job, min(end, seconds) - now))} of {trials}"
            )
        return ": not done" if end > seconds else ""


def job_start_s(job: Job) -> float:
    """Seconds until the first few mixes are there."""
    return needs.needs_s(job.step, job.network)
