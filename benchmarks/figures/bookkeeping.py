"""What a search costs beside its evaluations: its wall time less the time inside the evaluator process.

Real searches of the example with SQLite, one per sampler: short ones, so that what a search spends once (imports,
loading the model, opening the database) is kept apart and spread over the default number of trials.

usage: python -m benchmarks.figures.bookkeeping [--trials 12]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rich.console import Console

from benchmarks.example import BATCH, DATA, MODEL, load_text
from bitfront import verbs
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.line import EvaluatorLine
from evaluators.process.requests import connect, handlers
from studies.options.config import SearchConfig
from studies.options.read_options import read_config
from studies.run.search import Search
from studies.show.progress_display import Lines
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


def main(trials: int = 12) -> dict[str, float]:
    """By sampler, a trial (a distinct evaluation) of a search of the default length: `ms`, and `share` of evaluation
    time. It is made of `loop_ms`, spent in the loop, and of its part of `once_s`, which every search spends once.
    """
    figures: dict[str, float] = {}
    print(f"digits example, SQLite; {load_text()}")
    print(f"{'':8}{'evaluations':>12}{'proposals':>10}{'evaluation':>12}{'loop, a trial':>15}{'once':>9}", end="")
    print(f"  a trial of {DEFAULT_TRIALS}")
    for sampler in SAMPLERS:
        clocks, wall = searched(sampler, trials)
        each, loop = clocks.evaluating / clocks.evaluations, clocks.loop_s / clocks.evaluations
        once = wall - clocks.asking - clocks.loop_s
        beside = loop + once / DEFAULT_TRIALS
        figures |= {f"{sampler}.ms": 1e3 * beside, f"{sampler}.share": beside / each}
        figures |= {f"{sampler}.loop_ms": 1e3 * loop, f"{sampler}.once_s": once}
        cells = f"{clocks.evaluations:12}{clocks.proposals:10}{1e3 * each:9.0f} ms{1e3 * loop:12.0f} ms{once:7.2f} s"
        print(f"{sampler:8}{cells}{1e3 * beside:9.0f} ms {beside / each:6.1%}", flush=True)
    return figures


def searched(sampler: str, trials: int) -> tuple[Clocks, float]:
    """Search the example; the clocks, and the wall time of the whole search."""
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere, clocks.running():
        options = {
            "model": str(MODEL),
            "data": str(DATA),
            "batch": str(BATCH),
            "max-drop": "1%",
            "trials": str(trials),
            "sampler": sampler,
            "storage": f"sqlite:///{folder}/bookkeeping.db",
        }
        start = time.perf_counter()
        verbs.search(read_config(options), Lines(Console(file=nowhere)))
        return clocks, time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    main(parser.parse_args().trials)
