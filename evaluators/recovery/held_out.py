"""The error of INT8 on held-out calibration samples, its loss on all of them, and whether one version is better.

The error is what steps are made to lower, so samples that no step has seen tell it. It stands for the loss, but not
always well: the same squared error costs more where it hides few pixels of an object than where it moves much ground.
The loss needs more samples to tell anything. No step reads labels, so those that steps were fitted to count as well: a
loss that grows even there is no matter of over-fitting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Arrays, Runner
from evaluators.measure import accuracy
from evaluators.measure.intervals import signed_rank_interval
from evaluators.measure.mean_bounds import batch_losses, reverse_units, sample_losses
from evaluators.measure.output_noise import (
    OutputNoise,
    channel_squares,
    compared_names,
    mean_ratio,
    split_rows,
    sum_channels,
)
from evaluators.measure.scoring import NonFiniteError
from evaluators.metrics.contract import Metric
from search.errors import DataError, MetricError
from search.values import Accuracy, LossEstimate

Floats = NDArray[np.float64]
Samples = Callable[[], Iterable[Batch]]

FEWEST = 6  # units that an interval of signed ranks needs
_HELD_BYTES = 256 * 2**20  # of float outputs
_TRIMMED = 0.1  # of the samples at either end: garbage must not decide
_CHANCE = 0.025  # that a loss is called larger though it is not
_LARGE = 0.5  # of the error is left after a large gain, at most
_TINY, _MOST = 1e-30, 50.0  # of an error, and of its logarithm's change


@dataclass(frozen=True)
class HeldOutErrors:
    """What one INT8 does on the held-out samples.

    Attributes:
        errors: (units,) noise over power of the outputs, infinite if they are not finite. A unit is a sample or,
            where an output cannot be split into samples, a batch.
        scored: by the metric, against FP32, also on the samples that count for losses alone; None if it cannot be
            scored there.
    """

    errors: Floats
    scored: Accuracy | None

    @property
    def error(self) -> float:
        """Mean over the units, those at either end left out; infinite where outputs are not finite."""
        ordered = np.sort(self.errors)
        cut = int(_TRIMMED * len(ordered))
        return float(np.mean(ordered[cut : len(ordered) - cut]))

    @property
    def loss(self) -> LossEstimate | None:
        return None if self.scored is None else loss_of(self.scored)


@dataclass(frozen=True)
class HeldOutComparison:
    """One INT8 beside another one: whether it is nearer to FP32, and why that is said, in words."""

    better: bool
    reason: str


class HeldOut:
    """Held-out samples with the float model's outputs on them.

    Args:
        session: the float model.
        samples: the batches; of many as many are taken as time and memory allow, the first ones.
        others: batches of other samples, on which only the loss is taken; as many as time is left for.
        metric: of the study.
        folder: an empty one, where the metric's reference is kept.
        seconds: of processor time that one run of the float model over them may take, so that a busy machine does not
            decide how many they are.
        clusters: (samples,) the same number for samples that belong together; None where samples are independent.
        other_clusters: the same for the others, with numbers that are shared by both.

    Attributes:
        run_s: seconds of processor time that the float model takes for a batch.
        notes: why the metric cannot be scored on them; empty if it can.
    """

    def __init__(
        self,
        session: Runner,
        samples: Samples,
        metric: Metric,
        folder: Path,
        *,
        seconds: float,
        others: Samples = tuple,
        clusters: NDArray[np.int64] | None = None,
        other_clusters: NDArray[np.int64] | None = None,
    ) -> None:
        self._samples = samples
        self._others = others
        self._metric = metric
        start = time.process_time()
        self._counts, self._outputs = _run_float(session, samples, seconds)
        self.run_s = max((time.process_time() - start) / len(self._counts), 1e-6)
        self._more = max(0, int(seconds / self.run_s) - len(self._counts))
        self._by_sample = all(_is_by_sample(rows, outputs) for rows, outputs in self._outputs)
        self._power = {name: self._usual_power(name) for name in compared_names(self._outputs[0][1])}
        self._clusters = None if clusters is None else clusters[: sum(self._counts)]
        self._other_clusters = other_clusters
        self.notes: list[str] = []
        self._reference = self._score_float(session, folder)

    @property
    def units(self) -> int:
        """How many differences there are to judge by."""
        if not self._by_sample:
            return len(self._counts)
        return sum(self._counts) if self._clusters is None else len(np.unique(self._clusters))

    def measure(self, session: Runner) -> HeldOutErrors:
        """Run one INT8 over the samples.

        Raises:
            EvaluatorError: it cannot be run.
        """
        watched = _Watched(session, self._errors, len(self._counts))
        scored = None
        try:
            if self._reference is None:
                for batch in self._deciding_batches():
                    watched.run(batch.inputs)
            else:
                scored = accuracy.evaluate(
                    watched, self._metric, self._scored_batches(), self._reference, clusters=self._score_clusters()
                )
        except NonFiniteError:
            return HeldOutErrors(np.full(max(1, self._total_units()), np.inf), None)
        return HeldOutErrors(np.concatenate(watched.errors), scored)

    def distance(self, session: Runner) -> float:
        """Noise over power of all values of an output together, to compare float models that should differ by rounding.

        Returns:
            Infinite where shapes of outputs depend on values, as that of NonZero, and differ.

        Raises:
            EvaluatorError: the model cannot be run.
        """
        noise = OutputNoise(by_channel=False)
        for batch, (_, reference), count in zip(self._deciding_batches(), self._outputs, self._counts, strict=True):
            outputs = session.run(batch.inputs)
            if any(outputs[name].shape != array.shape for name, array in reference.items()):
                return math.inf
            noise.add(outputs, reference, np.ones(count))
        return noise.error

    def compare(self, before: HeldOutErrors, after: HeldOutErrors) -> HeldOutComparison:
        """Whether one INT8 has a lower error than another by more than chance, and no larger loss by more than chance.

        The errors of the same samples are compared as ratios, by signed ranks of their logarithms: a few samples that
        are garbage decide nothing.
        """
        if self.units < FEWEST:
            what = "samples" if self._by_sample else "batches"
            return HeldOutComparison(False, f"{self.units} held-out {what} are too few to tell")
        if not np.isfinite(after.errors).all() and np.isfinite(before.errors).all():
            return HeldOutComparison(False, "outputs are not finite with it")
        # (units,) logarithm of the error after over the error before; 0 where both are not finite.
        both = np.isinf(before.errors) & np.isinf(after.errors)
        first, second = (np.log(np.clip(errors, _TINY, 1 / _TINY)) for errors in (before.errors, after.errors))
        ratios: Floats = np.where(both, 0.0, np.clip(second - first, -_MOST, _MOST))
        low, centre, high = signed_rank_interval(self._by_cluster(ratios))
        if high >= 0:
            return HeldOutComparison(False, _no_gain_text(low, centre, high))
        ratio = f"the error falls to {_share_text(centre)} {_range_text(low, high)} of what it was"
        if after.error > before.error:
            return HeldOutComparison(False, f"{ratio} for most samples, but is larger on average")
        if self._costs_loss(before, after, large=math.exp(centre) <= _LARGE):
            return HeldOutComparison(False, f"{ratio}, but {_loss_words(before, after)}")
        return HeldOutComparison(True, ratio)

    def is_worse(self, before: HeldOutErrors, after: HeldOutErrors) -> bool:
        """Whether the metric's loss is larger by more than chance; False if it cannot be scored.

        Where there are too few samples or batches to tell, the loss that was measured decides: what is left out then
        costs little.
        """
        if before.scored is None or after.scored is None or self._reference is None:
            return False
        metric, change = self._metric, after.scored.loss - before.scored.loss
        differences = np.asarray(metric.loss(before.scored.scores, after.scored.scores), dtype=np.float64)
        if metric.kind == "accumulating":
            counts = np.asarray(self._reference.counts, dtype=np.float64)
            units = batch_losses(differences, counts, change, accuracy.most_of(metric))
        else:
            units = sample_losses(differences, accuracy.most_of(metric), self._score_clusters())
        return reverse_units(units).chance_below(0.0) <= _CHANCE if units.is_enough else change > 0

    def _costs_loss(self, before: HeldOutErrors, after: HeldOutErrors, *, large: bool) -> bool:
        """Whether the loss speaks against a lower error.

        A small gain in the error says little of the loss, so the loss that was measured decides, be it larger by chance
        or not: to leave such a step out costs little. Where the gain is large, only a loss that is larger by more than
        chance outweighs it.
        """
        if large or before.scored is None or after.scored is None:
            return self.is_worse(before, after)
        return after.scored.loss > before.scored.loss

    # -- the float model -------------------------------------------------------------------------------------------

    def _score_float(self, session: Runner, folder: Path) -> accuracy.ReferenceScores | None:
        try:
            return accuracy.reference(session, self._metric, self._scored_batches(), folder)
        except (DataError, MetricError, NonFiniteError) as error:
            self.notes.append(f"losses on calibration samples are not known: {error}")
            return None

    def _deciding_batches(self) -> Iterator[Batch]:
        return islice(self._samples(), len(self._counts))

    def _scored_batches(self) -> Iterator[Batch]:
        """The batches that decide, then others."""
        return chain(self._deciding_batches(), islice(self._others(), self._more))

    def _usual_power(self, name: str) -> Floats:
        """(channels,) of an output over the samples.

        That of a single channel is the median sample's, which garbage does not move. With several channels it is the
        mean, because the median is near 0 for a class that few samples hold.
        """
        each = [self._squares(rows, outputs[name], outputs[name])[1] for rows, outputs in self._outputs]
        if len({powers.shape[1] for powers in each}) > 1:
            each = [sum_channels(powers) for powers in each]
        powers = np.concatenate(each)
        if powers.shape[1] > 1:
            return np.asarray(np.where(np.isfinite(powers), powers, 0.0).mean(axis=0))
        finite = powers[np.isfinite(powers) & (powers > 0)]
        return np.array([np.median(finite) if len(finite) else 1.0])

    # -- errors ----------------------------------------------------------------------------------------------------

    def _errors(self, place: int, outputs: Arrays) -> Floats:
        """(units,) errors of one batch."""
        rows, reference = self._outputs[place]
        count = self._counts[place] if self._by_sample else 1
        errors = np.zeros(count)
        for name, power in self._power.items():
            if outputs[name].shape != reference[name].shape:  # as of NonZero, whose shape depends on values
                errors += 1 / len(self._power)
                continue
            noise, _ = self._squares(rows, outputs[name], reference[name])
            noise = sum_channels(noise) if len(power) == 1 else noise
            each = noise[:count] if self._by_sample else noise.mean(axis=0, keepdims=True)
            errors += mean_ratio(each, power) / len(self._power)
        return np.where(np.isfinite(errors), errors, np.inf)

    def _squares(self, rows: int, values: NDArray[Any], reference: NDArray[Any]) -> tuple[Floats, Floats]:
        """`channel_squares` of an output of a batch, by samples where all outputs can be split into them."""
        exact = split_rows(reference, rows) if self._by_sample else reference
        assert exact is not None
        return channel_squares(values.reshape(exact.shape), exact)

    def _total_units(self) -> int:
        return sum(self._counts) if self._by_sample else len(self._counts)

    def _by_cluster(self, ratios: Floats) -> Floats:
        """One ratio for each cluster, the mean over its samples."""
        if self._clusters is None or not self._by_sample:
            return ratios
        _, codes = np.unique(self._clusters, return_inverse=True)
        means: Floats = np.bincount(codes, weights=ratios) / np.bincount(codes)
        return means

    def _score_clusters(self) -> NDArray[np.int64] | None:
        """Codes of all that is scored, for the metric's intervals; those need two clusters at least."""
        if self._clusters is None or self._metric.kind == "accumulating" or self._reference is None:
            return None
        others = self._clusters[:0] if self._other_clusters is None else self._other_clusters
        codes = np.concatenate([self._clusters, others])[: self._reference.samples]
        return codes if len(np.unique(codes)) > 1 else None


class _Watched:
    """A session whose outputs are compared with the float model's, for the first batches."""

    def __init__(self, session: Runner, measure: Callable[[int, Arrays], Floats], batches: int) -> None:
        self._session = session
        self._measure = measure
        self._batches = batches
        self.errors: list[Floats] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        outputs = self._session.run(inputs)
        if len(self.errors) < self._batches:
            self.errors.append(self._measure(len(self.errors), outputs))
        return outputs


def _no_gain_text(low: float, centre: float, high: float) -> str:
    """Why an error whose logarithm changes by this, with the ends of an interval, is not lower, in words."""
    if low == high == 0:
        return "the error stays as it was"
    if low > 0:
        return f"the error rises to {_share_text(centre)} {_range_text(low, high)} of what it was"
    change = f"{_share_text(centre)} {_range_text(low, high)}"
    return f"the error does not fall by more than chance: it is {change} of what it was"


def _range_text(low: float, high: float) -> str:
    return f"({_share_text(low)} to {_share_text(high)})"


def _share_text(change: float) -> str:
    """A change of a logarithm as a share of what was before: `2.2 %`, `97 %`, `> 1000 %`."""
    share = 100 * math.exp(change)
    if share >= 1000:
        return "> 1000 %"
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.2g} %" if share >= 0.01 else "< 0.01 %"


def _loss_words(before: HeldOutErrors, after: HeldOutErrors) -> str:
    """Say that the loss is larger, with both losses and the samples they are of."""
    assert before.scored is not None
    assert after.scored is not None
    return (
        f"the loss is larger: {after.scored.loss:.4g} instead of {before.scored.loss:.4g} on {after.scored.samples} "
        "calibration samples"
    )


def loss_of(scored: Accuracy) -> LossEstimate:
    """The loss with its interval."""
    return LossEstimate(scored.loss, scored.loss_low, scored.loss_high, scored.samples, scored.value)


def _run_float(session: Runner, samples: Samples, seconds: float) -> tuple[list[int], list[tuple[int, Arrays]]]:
    """Real rows of each batch, and with all its rows the float outputs that tell the error."""
    counts: list[int] = []
    outputs: list[tuple[int, Arrays]] = []
    start, held, units = time.process_time(), 0, 0
    for batch in samples():
        arrays = session.run(batch.inputs)
        kept = {name: arrays[name] for name in compared_names(arrays)}
        counts.append(batch.count)
        rows = len(next(iter(batch.inputs.values())))
        outputs.append((rows, kept))
        units += batch.count if _is_by_sample(rows, kept) else 1
        held += sum(array.nbytes for array in kept.values())
        late = time.process_time() - start > seconds or held > _HELD_BYTES
        if late and units >= FEWEST:
            break
    return counts, outputs


def _is_by_sample(rows: int, outputs: Arrays) -> bool:
    return all(split_rows(array, rows) is not None for array in outputs.values())
