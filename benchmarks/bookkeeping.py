"""What a search costs beside its evaluations: its wall time less the time inside the evaluator process.

Real searches of the example with SQLite, one per sampler. Then the same loop with evaluations that answer at once,
which shows how the cost grows with the number of trials, and with --profile where it goes.

usage: python benchmarks/bookkeeping.py [--trials 12] [--replayed 100] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import io
import os
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
from studies.proposals import Proposals
from studies.runner import Runner

SAMPLERS = ("tpe", "random")


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

    def _add(self, seconds: float, name: str) -> None:
        self.asking += seconds
        self.asking_in_loop += seconds if self._looping else 0.0
        if name == "evaluate":
            self.evaluating += seconds
            self.evaluations += 1

    def proposal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(proposals: Proposals) -> Any:
            self.proposals += 1
            return original(proposals)

        return counted

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
        with (
            patch.multiple(EvaluatorProcess, **requests),
            patch.object(Runner, "run", self.loop(Runner.run)),
            patch.object(Proposals, "ask", self.proposal(Proposals.ask)),
        ):
            yield


def main(trials: int = 12, replayed: int = 100) -> dict[str, float]:
    """By sampler, a trial (a distinct evaluation): `ms` and `share` of evaluation time over the whole search,
    `loop_ms` of it in the loop; `replayed_ms` in the loop and `replayed_proposals` where evaluations are replayed.
    """
    found: dict[str, float] = {}
    print(f"digits example, SQLite; {load_text()}")
    print(f"{'':8}{'evaluations':>12}{'proposals':>10}{'evaluation':>12}{'bookkeeping a trial':>21}{'in the loop':>13}")
    for sampler in SAMPLERS:
        clocks, wall = searched(sampler, trials)
        count = clocks.evaluations
        each, beside, loop = clocks.evaluating / count, (wall - clocks.asking) / count, clocks.loop_s / count
        found |= {f"{sampler}.ms": 1e3 * beside, f"{sampler}.share": beside / each, f"{sampler}.loop_ms": 1e3 * loop}
        cells = f"{count:12}{clocks.proposals:10}{1e3 * each:9.0f} ms{1e3 * beside:9.0f} ms {beside / each:7.1%}"
        print(f"{sampler:8}{cells} {1e3 * loop:9.0f} ms", flush=True)
    print("evaluations replayed:")
    for sampler in SAMPLERS:
        clocks, _ = searched(sampler, replayed, replayed=True)
        loop, proposals = clocks.loop_s / clocks.evaluations, clocks.proposals / clocks.evaluations
        found |= {f"{sampler}.replayed_ms": 1e3 * loop, f"{sampler}.replayed_proposals": proposals}
        print(f"{sampler:8}{clocks.evaluations:12}{clocks.proposals:10}{'':33}{1e3 * loop:10.0f} ms", flush=True)
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
        commands.search(options, Lines(Console(file=nowhere)))
        return clocks, time.perf_counter() - start


@contextmanager
def replaying() -> Iterator[None]:
    """Evaluations and measurements answer at once; what they leave cannot be measured again."""
    ask = EvaluatorProcess.call

    def evaluate(keeper: EvaluatorProcess, assignment: Assignment, out: Path, *_: Any) -> Evaluation:
        return synthetic.evaluation(assignment, np.random.default_rng(int(assignment.digest[:8], 16)), out)

    def call(keeper: EvaluatorProcess, method: str, params: Any = None, on_event: Any = None) -> Any:
        if method != "time_again":
            return ask(keeper, method, params, on_event)
        return synthetic.evaluation(params["assignment"], np.random.default_rng(0)).latency

    with (
        patch.multiple(EvaluatorProcess, evaluate=evaluate, call=call),
        patch("studies.finalists.confirm", lambda *_: None),
    ):
        yield


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
    arguments = parser.parse_args()
    if arguments.profile:
        profiled(arguments.replayed)
    else:
        main(arguments.trials, arguments.replayed)
