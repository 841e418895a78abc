"""The losses of several INT8 versions of a model on the final samples, for the rescue table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Runner
from evaluators.measure import accuracy
from evaluators.measure.scoring import NonFiniteError
from evaluators.metrics.contract import Metric
from evaluators.recovery.held_out import loss_of
from search.errors import BitfrontError
from search.values import LossEstimate

Open = Callable[[], Runner]
_SLOWER = 2.5  # times as long as the float model an emulated INT8 may take
_FEWEST_BATCHES = 2
_TIMED = 4  # runs, of which the quickest tells how many there is time for
_TIMING_S = 1.0  # of processor time that these take, but for the last of them


class FinalSamples(Protocol):
    """The final split, whole or some of it."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    def open(self, count: int) -> AbstractContextManager[Iterator[Batch]]:
        """Batches of so many samples, drawn by chance where these are not all; the same at every call."""

    def clusters(self, count: int) -> NDArray[np.int64] | None:
        """The cluster of each score of `open`; None where samples are independent."""


@dataclass(frozen=True)
class FinalScorer:
    """What INT8 is scored with.

    Attributes:
        exact: the float model.
        metric: of the study.
        samples: of the final split.
        batch: samples in a batch.
        folder: an empty one, for FP32's outputs.
        alive: to be called after each INT8.
    """

    exact: Runner
    metric: Metric
    samples: FinalSamples
    batch: int
    folder: Path
    alive: Callable[[], None]

    def score(self, variants: Sequence[Open], seconds: float) -> list[LossEstimate | None]:
        """The loss of each, all on the same samples: as many as time allows.

        Args:
            variants: open one INT8 each.
            seconds: of processor time for all of them.

        Returns:
            None for what cannot be scored: its outputs are not finite, or it cannot be run.
        """
        try:
            count = self._affordable(len(variants), seconds)
            with self.samples.open(count) as batches:
                reference = accuracy.reference(self.exact, self.metric, batches, self.folder)
        except (BitfrontError, NonFiniteError):
            return [None] * len(variants)
        return [self._score_one(variant, reference, count) for variant in variants]

    def _affordable(self, variants: int, seconds: float) -> int:
        """How many samples can be scored in time, in whole batches."""
        with self.samples.open(min(self.batch, self.samples.count)) as batches:
            inputs = next(batches).inputs
        took: list[float] = []  # the first run settles memory
        while len(took) < _TIMED and sum(took) < _TIMING_S:
            took.append(self._time_run(inputs))
        runs = max(_FEWEST_BATCHES, int(seconds / (min(took) * (1 + _SLOWER * variants))))
        return min(self.samples.count, runs * self.batch)

    def _time_run(self, inputs: Mapping[str, NDArray[Any]]) -> float:
        start = time.process_time()
        self.exact.run(inputs)
        return max(time.process_time() - start, 1e-6)

    def _score_one(self, variant: Open, reference: accuracy.ReferenceScores, count: int) -> LossEstimate | None:
        clusters = self.samples.clusters(count)
        try:
            with self.samples.open(count) as batches:
                scored = accuracy.evaluate(variant(), self.metric, batches, reference, clusters=clusters)
        except (BitfrontError, NonFiniteError):
            return None
        self.alive()
        return loss_of(scored)
