"""What a search costs beside its evaluations: its wall time less the time inside the evaluator process.

Real searches of the example with SQLite, one per sampler. Then the same loop with evaluations that answer at once,
which shows how the cost grows with the number of trials, and with --profile where it goes.

usage: python benchmarks/bookkeeping.py [--trials 24] [--replayed 200] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import synthetic
from common import BATCH, DATA, MODEL, load_text
from rich.console import Console

from evaluators.process import EvaluatorProcess
from search.values import Assignment, Evaluation
from studies import commands
from studies.progress import Lines
from studies.runner import Runner

SAMPLERS = ("tpe", "random")


class Clocks:
    """Seconds spent: in evaluations, in all requests to the evaluator process, in the trial loop, in the search."""

    def __init__(self) -> None:
        self.evaluating = self.asking = self.in_loop = self.asking_in_loop = 0.0
        self.evaluations = 0
        self._looping = False

    def request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(time.perf_counter() - start, original.__name__)

        return timed

    def _add(self, seconds: float, name: str) -> None:
        self.asking += seconds
        self.asking_in_loop += seconds if self._looping else 0.0
        if name == "evaluate":
            self.evaluating += seconds
            self.evaluations += 1

    def loop(self, original: Callable[..., str]) -> Callable[..., str]:
        def timed(runner: Runner) -> str:
            start, self._looping = time.perf_counter(), True
            try:
                return original(runner)
            finally:
                self.in_loop, self._looping = time.perf_counter() - start, False

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        requests = {name: self.request(getattr(EvaluatorProcess, name)) for name in ("evaluate", "call", "adopt")}
        with patch.multiple(EvaluatorProcess, **requests), patch.object(Runner, "run", self.loop(Runner.run)):
            yield


def main(trials: int = 24, replayed: int = 200) -> dict[str, float]:
    """Bookkeeping of one trial by sampler: `ms` and `share` of evaluation time, over the whole search."""
    found: dict[str, float] = {}
    print(f"digits example, SQLite; {load_text()}")
    print(f"{'':28}{'evaluations':>12}{'evaluation':>12}{'bookkeeping a trial':>22}{'of it in the loop':>20}")
    for sampler in SAMPLERS:
        clocks, wall = searched(sampler, trials)
        each, beside = clocks.evaluating / clocks.evaluations, (wall - clocks.asking) / clocks.evaluations
        loop = (clocks.in_loop - clocks.asking_in_loop) / clocks.evaluations
        found |= {f"{sampler}.ms": 1e3 * beside, f"{sampler}.share": beside / each, f"{sampler}.loop_ms": 1e3 * loop}
        cells = f"{clocks.evaluations:12}{1e3 * each:9.0f} ms{1e3 * beside:12.0f} ms {beside / each:6.1%}"
        print(f"{sampler:28}{cells}{1e3 * loop:17.0f} ms", flush=True)
    for sampler in SAMPLERS:
        clocks, _ = searched(sampler, replayed, replay)
        loop = (clocks.in_loop - clocks.asking_in_loop) / clocks.evaluations
        found[f"{sampler}.loop_ms_replayed"] = 1e3 * loop
        print(f"{sampler + ', evaluations replayed':28}{clocks.evaluations:12}{'':46}{1e3 * loop:8.0f} ms", flush=True)
    return found


def searched(sampler: str, trials: int, evaluate: Callable[..., Evaluation] | None = None) -> tuple[Clocks, float]:
    """Search the example; the clocks, and the wall time of the whole search."""
    clocks, target = Clocks(), evaluate or EvaluatorProcess.evaluate
    target.__name__ = "evaluate"
    with tempfile.TemporaryDirectory() as folder, open("/dev/null", "w") as nowhere:
        options = {
            "model": str(MODEL),
            "data": str(DATA),
            "batch": str(BATCH),
            "max-drop": "1%",
            "trials": str(trials),
            "sampler": sampler,
            "storage": f"sqlite:///{folder}/bookkeeping.db",
        }
        with ExitStack() as stack:
            stack.enter_context(patch.object(EvaluatorProcess, "evaluate", target))
            if evaluate is not None:  # what was replayed left no engines to measure again
                stack.enter_context(patch("studies.finalists.confirm", lambda *_, **__: None))
            stack.enter_context(clocks.running())
            start = time.perf_counter()
            commands.search(options, Lines(Console(file=nowhere)))
            return clocks, time.perf_counter() - start


def replay(keeper: EvaluatorProcess, assignment: Assignment, out: Path, *_: Any, **__: Any) -> Evaluation:
    return synthetic.evaluation(assignment, np.random.default_rng(int(assignment.digest[:8], 16)), out)


def profiled(trials: int) -> None:
    """Where the loop's time goes, evaluations replayed."""
    for sampler in SAMPLERS:
        profile = cProfile.Profile()
        profile.enable()
        searched(sampler, trials, replay)
        profile.disable()
        for order, what in (("cumulative", r"studies|optuna|evaluators"), ("tottime", "")):
            text = io.StringIO()
            pstats.Stats(profile, stream=text).strip_dirs().sort_stats(order)
            pstats.Stats(profile, stream=text).sort_stats(order).print_stats(what, 45)
            print(sampler, text.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--replayed", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.profile:
        profiled(arguments.replayed)
    else:
        main(arguments.trials, arguments.replayed)
