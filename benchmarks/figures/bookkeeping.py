"""What a search costs beside its evaluations: its wall time less the time inside the evaluator process.

Real searches of the example with SQLite, one per sampler: short ones, so that what a search spends once (imports,
loading the model, opening the database) is kept apart and spread over the default number of trials. Then the same
loop with evaluations that answer at once, which shows how the cost grows, and with --profile where it goes. With
--judged what it takes to see where a study of so many evaluations stands after one more: reading all of them anew, and
reading what changed as a run does; both in processor time.

usage: python -m benchmarks.figures.bookkeeping [--trials 12] [--replayed 100] [--profile | --judged 10000]
"""

from __future__ import annotations

import argparse
import cProfile
import io
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console

from benchmarks import large_study, synthetic
from benchmarks.example import BATCH, DATA, MODEL, load_text
from bitfront import verbs
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.line import EvaluatorLine
from evaluators.process.requests import connect, handlers
from evaluators.process.results import Built
from search.values import Assignment, Evaluation, Target
from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing, standing
from studies.options.config import SearchConfig
from studies.options.limits import Limits
from studies.options.read_options import read_config
from studies.run.search import Search
from studies.show.progress_display import Lines
from studies.store.records import NewStudy
from studies.store.store import Store
from studies.trials.ledger import Ledger, evaluation_digest
from studies.trials.proposals import Proposals

METRIC = {"name": "top1", "unit": "", "higher_is_better": True, "ratio": True, "relative": False}
SAMPLERS = ("guided", "tpe", "random")
DEFAULT_TRIALS = SearchConfig("", "", "").trials


class Clocks:
    """Seconds spent: in evaluations, in all requests to the evaluator process, in the trial loop, in the search."""

    def __init__(self) -> None:
        self.evaluating = self.asking = self.in_loop = self.asking_in_loop = 0.0
        self.evaluations = self.proposals = 0
        self._looping = False

    @property
    def loop_s(self) -> float:
        return self.in_loop - self.asking_in_loop

    def request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(time.perf_counter() - start, original.__name__)

        return timed

    def line(self, original: Callable[..., EvaluatorLine]) -> Callable[..., EvaluatorLine]:
        def ask(*args: Any, **options: Any) -> EvaluatorLine:
            answers = {name: self.request(answer) for name, answer in handlers(original(*args, **options)).items()}
            return connect(lambda request, arguments: answers[request](**arguments))

        return ask

    def _add(self, seconds: float, name: str) -> None:
        self.asking += seconds
        self.asking_in_loop += seconds if self._looping else 0.0
        self.evaluating += seconds if name in ("build", "measure") else 0.0
        self.evaluations += name == "measure"

    def proposal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(proposals: Proposals) -> Any:
            self.proposals += 1
            return original(proposals)

        return counted

    def loop(self, original: Callable[..., str]) -> Callable[..., str]:
        def timed(search: Search) -> str:
            start, self._looping = time.perf_counter(), True
            try:
                return original(search)
            finally:
                self.in_loop, self._looping = time.perf_counter() - start, False

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        requests: dict[str, Any] = {
            name: self.request(getattr(EvaluatorProcess, name)) for name in ("build", "measure", "adopt")
        }
        with (
            patch.multiple(EvaluatorProcess, ask=self.line(EvaluatorProcess.ask), **requests),
            patch.object(Search, "run", self.loop(Search.run)),
            patch.object(Proposals, "ask", self.proposal(Proposals.ask)),
        ):
            yield


def main(trials: int = 12, replayed: int = 100) -> dict[str, float]:
    """By sampler, a trial (a distinct evaluation) of a search of the default length: `ms`, and `share` of evaluation
    time. It is made of `loop_ms`, spent in the loop, and of its part of `once_s`, which every search spends once.
    `replayed_ms` in the loop, and `replayed_proposals`, where evaluations are replayed.
    """
    found: dict[str, float] = {}
    print(f"digits example, SQLite; {load_text()}")
    print(f"{'':8}{'evaluations':>12}{'proposals':>10}{'evaluation':>12}{'loop, a trial':>15}{'once':>9}", end="")
    print(f"  a trial of {DEFAULT_TRIALS}")
    for sampler in SAMPLERS:
        clocks, wall = searched(sampler, trials)
        each, loop = clocks.evaluating / clocks.evaluations, clocks.loop_s / clocks.evaluations
        once = wall - clocks.asking - clocks.loop_s
        beside = loop + once / DEFAULT_TRIALS
        found |= {f"{sampler}.ms": 1e3 * beside, f"{sampler}.share": beside / each}
        found |= {f"{sampler}.loop_ms": 1e3 * loop, f"{sampler}.once_s": once}
        cells = f"{clocks.evaluations:12}{clocks.proposals:10}{1e3 * each:9.0f} ms{1e3 * loop:12.0f} ms{once:7.2f} s"
        print(f"{sampler:8}{cells}{1e3 * beside:9.0f} ms {beside / each:6.1%}", flush=True)
    print("evaluations replayed:")
    for sampler in SAMPLERS:
        clocks, _ = searched(sampler, replayed, replayed=True)
        loop, proposals = clocks.loop_s / clocks.evaluations, clocks.proposals / clocks.evaluations
        found |= {f"{sampler}.replayed_ms": 1e3 * loop, f"{sampler}.replayed_proposals": proposals}
        print(f"{sampler:8}{clocks.evaluations:12}{clocks.proposals:10}{'':12}{1e3 * loop:12.0f} ms", flush=True)
    return found


def searched(sampler: str, trials: int, *, replayed: bool = False) -> tuple[Clocks, float]:
    """Search the example; the clocks, and the wall time of the whole search."""
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, ExitStack() as stack:
        options = {
            "model": str(MODEL),
            "data": str(DATA),
            "batch": str(BATCH),
            "max-drop": "1%",
            "trials": str(trials),
            "sampler": sampler,
            "storage": f"sqlite:///{folder}/bookkeeping.db",
        }
        if replayed:
            stack.enter_context(replaying())
        stack.enter_context(clocks.running())
        start = time.perf_counter()
        verbs.search(read_config(options), Lines(Console(file=nowhere)))
        return clocks, time.perf_counter() - start


@contextmanager
def replaying(seconds: float = 0.0) -> Iterator[None]:
    """Evaluations answer after so many seconds and measurements at once; no finalist is measured again."""
    real = EvaluatorProcess.ask

    def build(keeper: EvaluatorProcess, assignment: Assignment, out: Path, *_: Any, **__: Any) -> Built:
        return Built(Evaluation(assignment), out)

    def measure(keeper: EvaluatorProcess, built: Built, *_: Any, **__: Any) -> Evaluation:
        time.sleep(seconds)
        assignment = built.evaluation.assignment
        return synthetic.evaluation(assignment, np.random.default_rng(int(assignment.digest[:8], 16)), built.engine)

    def ask(keeper: EvaluatorProcess, *args: Any, **options: Any) -> EvaluatorLine:
        answers = handlers(real(keeper, *args, **options))

        def answer(request: str, arguments: Mapping[str, Any]) -> Any:
            if request == "timings.time_again":
                return synthetic.evaluation(arguments["assignment"], np.random.default_rng(0)).latency
            if request == "timings.load_engine":  # what was "built" is no engine
                return None
            if request == "timings.time_engine":
                return synthetic.latency(4.6, np.random.default_rng(0))
            return answers[request](**arguments)

        return connect(answer)

    with (
        patch.multiple(EvaluatorProcess, build=build, measure=measure, ask=ask),
        patch("studies.run.finalists.confirm", lambda *_: 0),
    ):
        yield


def judging_times(count: int, repeats: int = 15) -> dict[str, float]:
    """Milliseconds of processor time to judge a study of `count` evaluations after each further one."""
    rng, groups = np.random.default_rng(count), [f"g{number:03}" for number in range(50)]
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/judged.db", create=True) as store:
        study_id = store.studies.create(NewStudy("judged", "", "", {}, {}, METRIC, {}, {}))
        target_id = store.targets.add(study_id, Target("onnxruntime", "CPU", {}, {}, "p20", True), "judged@1")
        rows = large_study.made_up(groups, count)
        large_study.fill(store, target_id, rows, range(count), lambda mix: evaluation_digest(mix, "r" * 64, {}))
        study, (target,) = store.studies.load("judged"), store.targets.of_study(study_id)
        ledger = Ledger(store, Artifacts(Path(folder)), study, target, Limits(), {})

        def judge(read: Callable[[], Standing], trial: int) -> float:
            made = synthetic.evaluation(synthetic.random_assignment(groups, rng), rng)
            number = store.claims.begin(target_id, made.assignment, made.assignment.digest, "w", trial)
            store.claims.record(number, made)
            start = time.process_time()
            assert read().picks.best is not None
            return 1e3 * (time.process_time() - start)

        def anew() -> Standing:
            return standing(store, study, target, ledger.limits)

        ledger.standing()
        times = [(judge(anew, count + 2 * i), judge(ledger.standing, count + 2 * i + 1)) for i in range(repeats)]
    anew_ms, changes_ms = (float(column) for column in np.median(times, axis=0))
    print(f"{count:,} evaluations judged: {anew_ms:.1f} ms read anew, {changes_ms:.1f} ms by what changed,", end=" ")
    print(f"{anew_ms / changes_ms:.1f} times less")
    return {"judged.anew_ms": anew_ms, "judged.ms": changes_ms}


def profiled(trials: int) -> None:
    """Where the loop's time goes, evaluations replayed."""
    for sampler in SAMPLERS:
        profile = cProfile.Profile()
        profile.enable()
        searched(sampler, trials, replayed=True)
        profile.disable()
        for order, what in (("cumulative", r"studies|optuna|evaluators"), ("tottime", "")):
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats(order).print_stats(what, 45)
            print(sampler, text.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--replayed", type=int, default=100)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--judged", type=int)
    arguments = parser.parse_args()
    if arguments.judged:
        judging_times(arguments.judged)
    elif arguments.profile:
        profiled(arguments.replayed)
    else:
        main(arguments.trials, arguments.replayed)
