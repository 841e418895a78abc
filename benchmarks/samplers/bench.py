"""Counts what a method tries: distinct evaluations, as a study does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.samplers.simulator.problem import Measurement, Problem
from search.space.layout import Codes


class Spent(Exception):  # noqa: N818 - the normal end of a method
    """The method has made as many trials as it was granted."""


class Bench:
    """One method's run on one network.

    Args:
        seed: of the noise; a method draws from it too.
        trials: distinct evaluations that it may make, uniform assignments and probes included.
        budget_ms: latency that a pick must keep, for methods that can aim; None without.
        max_loss: loss that a pick must keep, likewise.

    Attributes:
        ends_after: after how many evaluations a study would end, as no better mix is expected; None if it would not.
            The bench goes on, so that what that gives up is seen.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        trials: int,
        budget_ms: float | None = None,
        max_loss: float | None = None,
    ) -> None:
        self.problem, self.seed, self.trials = problem, seed, trials
        self.budget_ms, self.max_loss = budget_ms, max_loss
        self.measurements: dict[tuple[int, ...], Measurement] = {}
        self.ends_after: int | None = None

    @property
    def left(self) -> int:
        """How many trials are left."""
        return self.trials - len(self.measurements)

    def knows(self, codes: Codes) -> bool:
        return tuple(int(code) for code in codes) in self.measurements

    def evaluate(self, codes: Codes) -> Measurement:
        """Measure; what is known already costs nothing. Raises Spent after the last trial."""
        key = tuple(int(code) for code in codes)
        if key not in self.measurements:
            if len(self.measurements) >= self.trials:
                raise Spent
            self.measurements[key] = self.problem.evaluate(np.array(key), self.seed)
        return self.measurements[key]

    def baselines(self) -> list[Codes]:
        """Measure the uniform assignments; their codes, the highest precision first."""
        for codes in self.problem.baselines.values():
            self.evaluate(codes)
        return list(self.problem.baselines.values())

    def codes(self) -> Codes:
        """(n, decisions) of the trials, in order."""
        return np.array(list(self.measurements), dtype=np.int64).reshape(-1, len(self.problem.widths))


Method = Callable[[Bench], None]


def run(method: Method, bench: Bench) -> None:
    """Until the method has nothing more to try or its trials are spent."""
    try:
        method(bench)
    except Spent:
        return
