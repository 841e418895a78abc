"""The loss of a candidate against uniform FP32 on the same samples, with an interval and early stopping."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.engine import Arrays, Runner
from evaluators.measure import resemblance
from evaluators.measure.intervals import bootstrap_interval, paired_interval
from evaluators.measure.mean_bounds import LossUnits, batch_losses, reverse_units, sample_losses
from evaluators.measure.scoring import SampleBatch, ScoreTally
from evaluators.metrics.contract import Metric
from evaluators.stopwatch import time_spent
from search.errors import DataError
from search.values import BOUND_TRIES, Accuracy, bound_level

Floats = NDArray[np.float64]

SUBSET_SHARE = 0.2
SUBSET_SAMPLES = 64
_BEYOND = 0.005  # the chance that scoring stops early although the loss is allowed, at each look
MANIFEST = "reference.json"
EXCERPT = "excerpt.npz"


@dataclass(frozen=True)
class ReferenceScores:
    """What uniform FP32 gives on one split, in a folder, so that a process started again need not run it again.

    Attributes:
        metric: name of the metric.
        value: the metric over the whole split.
        counts: real samples of each batch, in order.
        scores: (samples,) float64 per-sample scores; per batch for accumulating metrics.
        outputs: names of FP32's outputs where the metric compares with them, else empty; the arrays stay on disk.
        folder: where it is kept.
        run_s, score_s: seconds that making it took, as `Accuracy` has them; 0 where it was made before.
    """

    metric: str
    value: float
    counts: tuple[int, ...]
    scores: Floats
    outputs: tuple[str, ...]
    folder: Path
    run_s: float = 0.0
    score_s: float = 0.0

    @property
    def samples(self) -> int:
        return sum(self.counts)

    def batch(self, index: int) -> Arrays | None:
        """FP32's outputs on the real rows of one batch, mapped from disk; None if the metric does not need them."""
        if not self.outputs:
            return None
        files = {name: _output_file(self.folder, index, place) for place, name in enumerate(self.outputs)}
        return {name: np.load(file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}

    def excerpt(self) -> tuple[resemblance.Rows, Arrays]:
        """What is kept of FP32's outputs under any metric, to see whether an engine has anything in common with it."""
        return resemblance.load(self.folder / EXCERPT)


def reference(
    session: Runner,
    metric: Metric,
    batches: Iterable[SampleBatch],
    folder: Path,
    *,
    kept: resemblance.Rows | None = None,
) -> ReferenceScores:
    """Run uniform FP32 over a whole split and keep what candidates are compared with.

    Args:
        session: the uniform FP32 engine.
        metric: the metric of the study.
        batches: the split; `evaluate` must be given the same batches in the same order.
        folder: where to keep it; made if need be. Only the metric's scores are held in memory, and an excerpt.
        kept: samples of which outputs are kept for any metric; None for the first.

    Raises:
        DataError: no labels where the metric needs them, or too few samples or batches for an interval.
        MetricError: the metric raised or gave NaN.
        NonFiniteError: FP32 itself gives NaN or infinity.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    excerpt = resemblance.Excerpt(resemblance.first_rows() if kept is None else kept)
    names: tuple[str, ...] = ()
    start, run_s = time.perf_counter(), 0.0
    with ScoreTally(metric) as tally:
        for index, batch in enumerate(batches):
            began = time.perf_counter()
            outputs = run_real_rows(session, batch)
            run_s += time.perf_counter() - began
            if metric.needs_reference:
                kinds = {name: array.dtype.kind for name, array in outputs.items()}
                names = tuple(metric.outputs_read(kinds))
                _save_outputs(folder, index, [outputs[name] for name in names])
            excerpt.add(outputs, tally.samples, batch.count)
            tally.add(batch, outputs, partial(_same, outputs))
    _check_enough(metric, tally)
    resemblance.save(excerpt, folder / EXCERPT)
    made = ReferenceScores(metric.name, tally.value, tuple(tally.counts), tally.scores, names, folder)
    _save(made)
    return replace(made, run_s=run_s, score_s=time.perf_counter() - start - run_s)


def load_reference(folder: Path) -> ReferenceScores | None:
    """The reference that `reference` finished in this folder, or None if there is none."""
    try:
        stored = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        scores = np.load(folder / "scores.npy", allow_pickle=False)
    except FileNotFoundError:
        return None
    counts, outputs = tuple(stored["counts"]), tuple(stored["outputs"])
    return ReferenceScores(stored["metric"], stored["value"], counts, scores, outputs, folder)


def subset_size(total: int) -> int:
    """How many samples to score first: a share of the split, at least 64, never more than there are."""
    return min(total, max(SUBSET_SAMPLES, math.ceil(SUBSET_SHARE * total)))


def evaluate(
    session: Runner,
    metric: Metric,
    batches: Iterable[SampleBatch],
    reference: ReferenceScores,
    *,
    allowed_drop: float | None = None,
    subset: int | None = None,
    max_samples: int | None = None,
    clusters: NDArray[np.int64] | None = None,
    is_final: bool = False,
) -> Accuracy:
    """Score a candidate, in stages, against FP32 on the same samples.

    Args:
        metric: the metric the reference was made with.
        batches: the batches the reference was made from, in the same order (a seeded shuffle of the split, so that
            its beginning is a fair subset). Read only as far as needed.
        reference: FP32 on them.
        allowed_drop: stop early once the loss exceeds this with 99.5 % confidence; in the metric's unit; None: never.
        subset: samples before the first look at `allowed_drop`; default `subset_size(reference.samples)`.
        max_samples: stop after so many, rounded up to whole batches, as where the latency limit is missed already.
        clusters: one code per score of the whole split, the same for those that belong together: intervals are those of
            clusters then. None where scores are independent.
        is_final: whether verdicts are given by it. Then there are bounds for all of `BOUND_TRIES`, else one of loss.

    Accumulating metrics always see the whole split: neither early stop nor `max_samples` applies to them.

    Raises:
        NonFiniteError: outputs hold NaN or infinity; of the first such batch.
        MetricError: the metric raised or gave NaN.
        DataError: the batches are not those of the reference.
    """
    if metric.name != reference.metric:
        raise DataError(f"the FP32 reference was made with metric {reference.metric}, not {metric.name}: make it anew")
    start, run_s = time.perf_counter(), 0.0
    rows, kept = reference.excerpt()
    excerpt = resemblance.Excerpt(rows)
    end = _End(metric, reference, clusters, allowed_drop, subset, max_samples)
    with ScoreTally(metric) as tally:
        for index, batch in enumerate(_check_counts(batches, reference)):
            began = time.perf_counter()
            with time_spent("run"):
                outputs = run_real_rows(session, batch)
            run_s += time.perf_counter() - began
            excerpt.add(outputs, tally.samples, batch.count)
            tally.add(batch, outputs, partial(reference.batch, index))
            if end.is_reached(tally):
                break
    accuracy = _accuracy(metric, tally, reference, clusters, is_final=is_final)
    likeness = resemblance.resemblance(kept, excerpt.arrays())
    return replace(accuracy, resemblance=likeness, run_s=run_s, score_s=time.perf_counter() - start - run_s)


def reference_accuracy(
    metric: Metric, reference: ReferenceScores, clusters: NDArray[np.int64] | None = None
) -> Accuracy:
    """The accuracy of the engine that made a reference, from what it gave then; `clusters` as `evaluate` takes them."""
    accuracy = _accuracy(metric, reference, reference, clusters)
    _, kept = reference.excerpt()
    likeness = resemblance.resemblance(kept, kept)
    return replace(accuracy, resemblance=likeness, run_s=reference.run_s, score_s=reference.score_s)


class _End:
    """Tells when a candidate has been scored on enough samples; the arguments are those of `evaluate`."""

    def __init__(
        self,
        metric: Metric,
        reference: ReferenceScores,
        clusters: NDArray[np.int64] | None,
        allowed_drop: float | None,
        subset: int | None,
        max_samples: int | None,
    ) -> None:
        self._metric = metric
        self._reference = reference
        self._clusters = clusters
        gathers = metric.kind == "accumulating"
        self._allowed_drop = None if gathers else allowed_drop
        total = reference.samples
        last = total if gathers or max_samples is None else min(max(2, max_samples), total)
        # How many scores there are up to the first of a second cluster.
        least = 2 if clusters is None or gathers else (int(np.argmax(clusters != clusters[0])) + 1)
        self._last = max(last, least)
        self._look = max(least, subset_size(total) if subset is None else subset)

    def is_reached(self, tally: ScoreTally) -> bool:
        """Whether scoring ends here; is called after every batch."""
        return tally.samples >= self._last or self._is_lost(tally)

    def _is_lost(self, tally: ScoreTally) -> bool:
        """Whether the loss is beyond what is allowed, with 99.5 % confidence."""
        if self._allowed_drop is None or tally.samples < self._look:
            return False
        # Looking after every batch would give chance as many tries at the bound; doubling leaves a few.
        self._look = 2 * tally.samples
        tally.settle()
        losses = _losses(self._metric, tally, self._reference)
        units = sample_losses(losses, most_of(self._metric), _first(self._clusters, losses))
        return reverse_units(units).chance_below(-self._allowed_drop) <= _BEYOND


def run_real_rows(session: Runner, batch: SampleBatch) -> Arrays:
    """Outputs of one batch, real rows only."""
    rows = len(next(iter(batch.inputs.values())))
    return {name: _real(name, array, rows, batch.count) for name, array in session.run(batch.inputs).items()}


def _real(name: str, array: NDArray[Any], rows: int, count: int) -> NDArray[Any]:
    """The first `count` rows of an output; one without a row per sample can only be passed on whole."""
    if array.ndim and len(array) == rows:
        return array[:count]
    if count == rows:
        return array
    raise DataError(
        f"output {name!r} has shape {array.shape} for a batch of {rows} samples, of which {count} are real: "
        "its rows cannot be told apart; give a number of samples that is a multiple of the batch, or batch 1"
    )


def _check_counts(batches: Iterable[SampleBatch], reference: ReferenceScores) -> Iterator[SampleBatch]:
    """The batches, each checked to be as large as the one FP32 saw; raises DataError where they are not."""
    counts = iter(reference.counts)
    for index, batch in enumerate(batches):
        expected = next(counts, 0)
        if batch.count != expected:
            raise DataError(f"batch {index} has {batch.count} samples, but FP32 saw {expected} there: make FP32 anew")
        yield batch
    if (left := sum(counts)) > 0:
        raise DataError(f"the data end {left} samples before those that FP32 saw: make the FP32 reference anew")


def _losses(metric: Metric, tally: ScoreTally | ReferenceScores, reference: ReferenceScores) -> Floats:
    """Loss of each sample (or batch) seen so far."""
    scores = tally.scores
    return np.asarray(metric.loss(reference.scores[: len(scores)], scores), dtype=np.float64)


def _first(clusters: NDArray[np.int64] | None, losses: Floats) -> NDArray[np.int64] | None:
    """The codes of the scores seen so far."""
    return None if clusters is None else clusters[: len(losses)]


def _accuracy(
    metric: Metric,
    tally: ScoreTally | ReferenceScores,
    reference: ReferenceScores,
    clusters: NDArray[np.int64] | None = None,
    *,
    is_final: bool = False,
) -> Accuracy:
    value, losses = tally.value, _losses(metric, tally, reference)
    clusters = _first(clusters, losses)
    if metric.kind == "accumulating":
        counts, loss = np.asarray(tally.counts, dtype=np.float64), float(metric.loss(reference.value, value))
        _check_blocks(metric, clusters)
        low, high = bootstrap_interval(losses, counts, loss, clusters=clusters)
        units = batch_losses(losses, counts, loss, most_of(metric), clusters)
    else:
        loss = float(np.mean(losses))
        low, high = paired_interval(losses, ratio=metric.ratio, clusters=clusters)
        units = sample_losses(losses, most_of(metric), clusters)
    accuracy = Accuracy(metric.name, value, loss, low, high, tally.samples, reference.samples, tally.scores)
    if not units.is_enough or not accuracy.complete:
        return accuracy
    levels = [bound_level(tries) for tries in (BOUND_TRIES if is_final else BOUND_TRIES[:1])]
    bounds = units.uppers(levels)
    values = _value_bounds(metric, accuracy, bounds, clusters, levels) if is_final else []
    return replace(accuracy, loss_bounds=tuple(bounds), value_bounds=tuple(values))


def most_of(metric: Metric) -> float | None:
    """The most that one sample can lose or win; None if that is not known."""
    return 1.0 if metric.ratio else None


def _value_bounds(
    metric: Metric,
    accuracy: Accuracy,
    bounds: Sequence[float],
    clusters: NDArray[np.int64] | None,
    levels: Sequence[float],
) -> list[float]:
    """How bad the metric itself may be, which is less well known than the difference to FP32 on the same samples.

    FP32 is a constant for a metric that compares with it. Of metrics that are no means over samples only the difference
    is known.
    """
    sign = -1.0 if metric.higher_is_better else 1.0
    if metric.needs_reference or metric.kind == "accumulating":
        return [accuracy.value + sign * (bound - accuracy.loss) for bound in bounds]
    worst = None if not metric.ratio else 0.0 if metric.higher_is_better else 1.0
    units: LossUnits = sample_losses(sign * accuracy.scores, worst, clusters)
    return [sign * bound for bound in units.uppers(levels)]


def _check_enough(metric: Metric, tally: ScoreTally) -> None:
    """Intervals need two of what is resampled."""
    units = "batches" if metric.kind == "accumulating" else "samples"
    if len(tally.scores) < 2:
        raise DataError(
            f"metric {metric.name} needs at least two {units} for an interval, got {len(tally.scores)}; "
            f"give more data{' or a smaller batch' if units == 'batches' else ''}"
        )


def _check_blocks(metric: Metric, clusters: NDArray[np.int64] | None) -> None:
    if clusters is not None and len(np.unique(clusters)) < 2:
        raise DataError(
            f"metric {metric.name} needs at least two blocks of batches that share no cluster for an interval, got 1; "
            "give more clusters or a smaller batch"
        )


def _same(outputs: Arrays) -> Arrays:
    """FP32's outputs, where it is FP32 that is scored."""
    return outputs


def _output_file(folder: Path, index: int, place: int) -> Path:
    return folder / f"outputs-{index:06d}-{place}.npy"


def _save_outputs(folder: Path, index: int, arrays: Sequence[NDArray[Any]]) -> None:
    for place, array in enumerate(arrays):
        np.save(_output_file(folder, index, place), array, allow_pickle=False)


def _save(made: ReferenceScores) -> None:
    """Scores first, then the manifest under its final name, so that a manifest means all is there."""
    np.save(made.folder / "scores.npy", made.scores)
    content = {"metric": made.metric, "value": made.value, "counts": made.counts, "outputs": made.outputs}
    draft = made.folder / f"{MANIFEST}.part"
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(made.folder / MANIFEST)
