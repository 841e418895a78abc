"""Workers on one study while everything dies around them; for test_chaos.py.

What is tried is given: assignments are enqueued, and where nothing is waiting a worker proposes the next of the same
list, so a run without faults ends with the same evaluations.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.command_line import child, environment, write_inputs
from tests.support.crashes.shared_study import finished, loose_ends, rows, until
from tests.support.forks.processes import evaluators_of, popen, run_python
from tests.support.networks import mobile_cnn
from tests.support.servers.databases import Server

STUDY = "s"
START = "from tests.support.crashes import storm; storm.prepare(); from bitfront.cli import main as cli; cli.main()"
Codes = Mapping[str, int]


@dataclass
class Story:
    """What happened, and what came of it.

    Attributes:
        restarted: the database, how often.
        full: how the worker ended that found no room.
        refused: workers that were started just when no database was there.
        ended: exit codes of the others, and `errors` what those said that are not 0.
        late: results that came after another worker's and were dropped.
        loose: `loose_ends`.
        missing, unexpected: evaluations, against those of a quiet run.
        files_too_many, files_missing: engines, against what the database says.
    """

    seconds: float = 0.0
    started: int = 0
    killed: int = 0
    stopped: int = 0
    restarted: int = 0
    refused: int = 0
    full: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    evaluations: int = 0
    failed: int = 0
    takeovers: int = 0
    late: int = 0
    trials: int = 0
    workers: int = 0
    loose: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    unexpected: int = 0
    files_too_many: int = 0
    files_missing: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing was lost, doubled or left behind, and every fault was met."""
        loose = any(self.loose.values()) or self.missing or self.unexpected or self.files_too_many or self.files_missing
        met = self.killed and self.stopped and self.restarted == 2 and len(self.full) == 1
        return bool(not loose and met and self.failed == 0 and set(self.ended) == {0})


def prepare() -> None:
    """In a worker: propose from the list, and measure in a moment."""
    import optuna

    from search.sampler.kinds import Handed
    from studies.options.config import SearchConfig
    from studies.run.pipeline.pipeline import SerialPipeline
    from studies.store.reading import repeats
    from studies.trials import proposals

    evaluate, pause_s = SerialPipeline.wait_finished, float(os.environ["BITFRONT_TEST_PAUSE"])

    def slowly(self: Any, *args: Any) -> Any:
        time.sleep(pause_s if self.busy else 0.0)
        return evaluate(self, *args)

    SerialPipeline.wait_finished = slowly
    listed: list[Codes] = json.loads(Path(os.environ["BITFRONT_TEST_LIST"]).read_text(encoding="utf-8"))

    class Listed(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return listed[trial.number % len(listed)][param_name]

    SearchConfig.sampler_kind = lambda self: Handed(Listed())
    proposals.Proposals.enqueue_neighbour = lambda self, assignment: assignment  # which is on no list
    repeats.OPENINGS = repeats.BUILDS = 1
    repeats.PROCESSES = 0


def write_list(folder: Path, count: int, seed: int) -> None:
    """Inputs, and so many distinct assignments, the uniform ones among them, as the sampler's codes."""
    from bitfront import verbs

    write_inputs(folder / "in", mobile_cnn(), samples=40)
    space = verbs.inspect(str(folder / "in/model.onnx")).space
    names = [variable.id for variable in space.variables]
    assert all(len(variable.precisions) == 2 for variable in space.variables)
    mixed = random.Random(seed).sample(range(1, 2 ** len(names) - 1), count - 2)
    codes = [{name: number >> i & 1 for i, name in enumerate(names)} for number in (0, 2 ** len(names) - 1, *mixed)]
    (folder / "list.json").write_text(json.dumps(codes))


class Storm:
    """Workers in processes of their own, and what befalls them.

    Args:
        server: whose database they share; it is restarted too.
        every_s: between two kills, the first as soon as there is something to lose; as often one is stopped, for longer
            than its lease.
        pause_s: that every evaluation takes longer, so that few of them last until all has happened.
    """

    def __init__(
        self,
        folder: Path,
        server: Server,
        *,
        workers: int,
        trials: int,
        every_s: float,
        lease_s: float,
        seed: int,
        pause_s: float = 0.0,
    ) -> None:
        self.folder = folder
        self.server = server
        self.url = server.new_url()
        self.trials = trials
        self.every_s = every_s
        self.lease_s = lease_s
        self.story = Story()
        self._pause_s = pause_s
        self._wanted = workers
        self._chance = random.Random(seed)
        self._working: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}
        self._stopped: dict[int, float] = {}
        self._full: subprocess.Popen[bytes] | None = None

    def run(self, seconds: float = 900) -> Story:
        """Let the storm pass over the study until its evaluations are there."""
        start = time.monotonic()
        try:
            self._begin()
            self._rage(start + seconds)
            for process in self._working:
                process.wait(timeout=300)
                self._over(process)
        finally:
            for process in self._working:
                process.kill()
                process.wait()
        self.story.seconds = round(time.monotonic() - start, 1)
        self._judge()
        return self.story

    # -- workers ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._start("search", *search(self.folder, self.trials, self.url, self.lease_s))
        until(lambda: rows(self.url, "select 1 from bf_study_target where space_digest is not null"))
        for _ in range(self._wanted - 1):
            self._start("worker", STUDY)
        enqueue(self.url, self.folder)

    def _start(self, *arguments: Any) -> None:
        path = self.folder / f"worker-{self.story.started}.log"
        with path.open("wb") as log:
            process = popen(
                [sys.executable, "-c", START, *map(str, arguments)],
                cwd=self.folder,
                env=self._environment(self.url, self._pause_s),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.story.started += 1
        self._working.append(process)
        self._logs[process.pid] = path

    def _environment(self, url: str, pause_s: float) -> dict[str, str]:
        """What `prepare` and the command line find in a worker."""
        listed = {"BITFRONT_TEST_LIST": str(self.folder / "list.json"), "BITFRONT_TEST_PAUSE": str(pause_s)}
        return environment({**listed, "BITFRONT_STORAGE": url})

    def _said(self, process: subprocess.Popen[bytes]) -> str:
        return self._logs[process.pid].read_text(errors="replace")

    def _rage(self, deadline: float) -> None:
        restarts, struck_at = [0.25, 0.6], dict.fromkeys((signal.SIGKILL, signal.SIGSTOP), 0)
        next_s = dict.fromkeys(struck_at, time.monotonic())
        while (done := finished(self.url)) < self.trials:
            assert time.monotonic() < deadline, f"only {done} evaluations after all that time"
            self._wake()
            self._replace()
            for number, last in struck_at.items():
                # A slow machine must not be struck to a standstill.
                if time.monotonic() >= next_s[number] and done > last and self._strike(number):
                    next_s[number], struck_at[number] = time.monotonic() + self.every_s, done
            if restarts and done >= restarts[0] * self.trials:
                del restarts[0]
                self._restart(hard=not restarts)
            if not self.story.full and self._full is None and done >= 0.4 * self.trials:
                self._fill_a_disk()
            time.sleep(0.2)
        self._wake(all_of_them=True)

    def _over(self, process: subprocess.Popen[bytes]) -> None:
        """Note how a worker ended."""
        if process is self._full:
            self.story.full.append(f"exit code {process.returncode}")
            self._full = None
        elif process.returncode == 2 and "Connection refused" in self._said(process):
            self.story.refused += 1
        elif process.returncode != -signal.SIGKILL:
            self.story.ended.append(process.returncode)
            if process.returncode:
                self.story.errors.append(self._said(process)[-500:])

    def _replace(self) -> None:
        """Forget who has ended, and start as many anew."""
        for process in [process for process in self._working if process.poll() is not None]:
            self._working.remove(process)
            if process.returncode or process is self._full:
                self._over(process)
        while len(self._working) < self._wanted:
            self._start("worker", STUDY)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _strike(self, number: signal.Signals) -> bool:
        """Kill or stop one that is at an evaluation; False where none is."""
        able = [process for process in self._working if self._able(process)]
        self._chance.shuffle(able)
        process = next(filter(self._caught, able), None)
        if process is None:
            return False
        if number == signal.SIGKILL:
            process.kill()
            self.story.killed += 1
        else:
            self._stopped[process.pid] = time.monotonic() + self.lease_s + 1
            self.story.stopped += 1
        return True

    def _caught(self, process: subprocess.Popen[bytes]) -> bool:
        """Stop a worker in the middle of an evaluation; one that is at none, or at one often lost already, goes on."""
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)  # what it sent to the database just before arrives
        holds = (
            "select 1 from bf_worker w join bf_lease l on l.worker = w.name join bf_evaluation e "
            "on e.id = l.evaluation_id where w.ended_at is null and e.takeovers < 2 and w.pid = "
        )
        if rows(self.url, f"{holds}{process.pid}"):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    def _able(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it is neither stopped nor meant for another fault, and has an evaluator."""
        spared = process.pid in self._stopped or process is self._full or process.poll() is not None
        return not spared and evaluator_of(process.pid) is not None

    def _wake(self, *, all_of_them: bool = False) -> None:
        for pid, until_s in list(self._stopped.items()):
            if all_of_them or time.monotonic() >= until_s:
                del self._stopped[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _restart(self, *, hard: bool) -> None:
        if hard:
            self.server.kill()
            time.sleep(1)
            self.server.start()
        else:
            self.server.restart()
        self.story.restarted += 1

    def _fill_a_disk(self) -> None:
        """From now on one evaluator cannot write: its next engine finds no room."""
        for process in self._working:
            evaluator = evaluator_of(process.pid) if self._able(process) else None
            if evaluator is not None:
                with suppress(ProcessLookupError):
                    resource.prlimit(evaluator.pid, resource.RLIMIT_FSIZE, (0, 0))
                    self._full = process
                    return

    # -- afterwards ------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        story, url = self.story, self.url
        [(story.evaluations, story.failed, story.takeovers)] = rows(
            url, "select count(*), count(case when status <> 'ok' then 1 end), sum(takeovers) from bf_evaluation"
        )
        [(story.late,)] = rows(url, "select count(*) from bf_evaluation where notes::text like '%dropped%'")
        [(story.trials,)] = rows(url, "select count(*) from trials")
        [(story.workers,)] = rows(url, "select count(*) from bf_worker")
        story.loose = loose_ends(url)
        known = {digest for (digest,) in rows(url, "select digest from bf_artifact")}
        there = {path.name for path in (self.folder / "engines").rglob("*") if len(path.name) == 64}
        story.files_too_many, story.files_missing = len(there - known), len(known - there)

    def compare(self) -> None:
        """Evaluate the same list undisturbed; what differs goes to the story."""
        quiet = self.server.new_url()
        words = ("search", *map(str, search(self.folder, self.trials, quiet, 60, "quiet")))
        start = [sys.executable, "-c", START, *words]
        done = run_python(start, cwd=self.folder, env=self._environment(quiet, 0.0))
        assert done.returncode == 0, done.stderr
        mine, theirs = digests(self.url), digests(quiet)
        self.story.missing, self.story.unexpected = len(theirs - mine), len(mine - theirs)


def search(folder: Path, trials: int, url: str, lease_s: float, engines: str = "engines") -> Sequence[Any]:
    """The arguments of the search that begins the study."""
    options = ("--study", STUDY, "--storage", url, "--artifacts", folder / engines, "--lease", f"{lease_s}s")
    return ("in/model.onnx", "--data", "in/data.npz", "--sampler", "random", "--trials", trials, *options)


def enqueue(url: str, folder: Path) -> None:
    """Let the study propose the list."""
    import optuna

    from studies.store.store import close_optuna, optuna_storage

    [(name,)] = rows(url, "select optuna_study from bf_study_target")
    until(lambda: rows(url, f"select 1 from studies where study_name = '{name}'"))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna_storage(url)
    study = optuna.load_study(study_name=name, storage=storage)
    for codes in json.loads((folder / "list.json").read_text()):
        study.enqueue_trial(codes)
    close_optuna(storage)


def digests(url: str) -> set[str]:
    return {digest for (digest,) in rows(url, "select digest from bf_evaluation")}


def evaluator_of(pid: int) -> psutil.Process | None:
    """The evaluator process of a worker, if it has one now."""
    return next(iter(evaluators_of(pid)), None)


def status(url: str, folder: Path) -> dict[str, Any]:
    """What `bitfront status` says."""
    done = child("status", STUDY, "--json", cwd=folder, env={"BITFRONT_STORAGE": url})
    assert done.returncode == 0, done.stderr
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing
