"""Narrowing ranges by the error of the network's outputs.

A range that keeps its largest values leaves fewer levels to the others. What is best for the outputs of the next layer
need not be best for those of the network: an image's highlights are large, and of little use to a detector. So ranges
are changed here by what the outputs of the network say, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.activations import AUTO
from evaluators.engine import Arrays
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.int8.plan import plan
from evaluators.lowering.lower import Lowered
from evaluators.measure.group_tensors import batches_in
from evaluators.measure.output_noise import sample_noise
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.int8.bias import correct_means
from evaluators.recovery.step import Proposal, RecoveryStep
from search.graph.model import Model
from search.values import Ranges, TensorRange

Floats = NDArray[np.float64]
ErrorsOf = Callable[[Ranges, Floats | None], Floats | None]

_NARROWER = 0.7  # times as far; the step of the search, half of a bit
_WORTH = 0.97  # of the error, at most, that is left by a narrower range
_SURE = 3.0  # standard errors of the gain, at least: many ranges are tried, and some would help by chance
_FIRST = 16  # samples after which a range is given up that has gained nothing
_JUDGED = 128  # samples whose outputs choose among ranges
_JUDGED_BYTES = 512 * 2**20  # of activations of these samples
_TIME_SHARE = 0.6  # of what is left: another step comes after it


class NarrowStep(RecoveryStep):
    """Narrows ranges one by one as long as the error of the network's outputs falls: see `narrow_ranges`.

    Each try runs the whole network, so the step comes after the cheaper ones. Where means were corrected before, they
    are corrected again.
    """

    name = "narrow"
    summary = "narrows the ranges of single tensors as long as the error of the outputs falls"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        if ranges.method != AUTO:
            return None
        outputs = OutputErrors(context, ranges)
        scales = [names for root, names in names_by_scale(context, ranges).items() if is_free(ranges, root)]
        until = (1 - _TIME_SHARE) * context.seconds_left()
        new_ranges, narrower, tried = narrow_ranges(
            ranges, scales, outputs.errors, has_time=lambda: context.seconds_left() > max(0.0, until)
        )
        cut = f"it ran out of time after {tried} of {len(scales)} ranges" if tried < len(scales) else ""
        if not narrower:
            return Proposal(ranges, cut=cut) if cut else None
        note = f"{narrower} of {len(scales)} ranges are narrower"
        if not ranges.recovery.means:
            return Proposal(new_ranges, (note,), cut)
        again = correct_means(context, new_ranges, context.assignment)
        return Proposal(again.ranges, (note, *again.notes), cut or again.cut)


class OutputErrors:
    """Errors of the network's outputs on held-out samples under some ranges.

    Args:
        ranges: whose recovery says what the float model is.
    """

    def __init__(self, context: RecoveryContext, ranges: Ranges) -> None:
        self._context = context
        self._batch = context.given.batch
        self._lowered: Lowered | None = None
        self._judged = list(islice(context.held_out(), batches_in(context.given, _JUDGED, _JUDGED_BYTES)))
        exact = context.open_float(ranges.recovery)
        self._outputs: list[Arrays] = [exact.run(batch.inputs) for batch in self._judged]

    def mean(self, ranges: Ranges) -> float:
        """Mean error, that of a sample at most 1."""
        errors = self.errors(ranges, None)
        assert errors is not None
        return float(errors.mean())

    def errors(self, ranges: Ranges, before: Floats | None) -> Floats | None:
        """(samples,) error, at most 1; None once the first samples show no gain over `before`, errors of the same."""
        if self._lowered is None or not self._lowered.rescale(ranges):
            self._lowered = self._context.lower_quantized(ranges)
            spelled_out(self._lowered.model)
        rough = self._context.emulator.open(self._lowered.model)
        errors = np.zeros(0)
        for batch, exact in zip(self._judged, self._outputs, strict=True):
            noise = sample_noise(rough.run(batch.inputs), exact, self._batch)[: batch.count]
            errors = np.concatenate([errors, np.minimum(noise, 1.0)])
            self._context.alive()
            if before is not None and len(errors) >= _FIRST and errors.mean() >= before[: len(errors)].mean():
                return None
        return errors


def scale_owners(model: Model, context: RecoveryContext) -> dict[str, str]:
    """Tensor that is INT8 when all groups are → the tensor whose range gives its scale, by name.

    Those that take the scale of a Concat are left out: what suits one of its inputs need not suit the others.
    """
    copy = model.graph.clone()
    planned = plan(copy.graph, model, context.assignment, context.placement)
    values = {node.inputs[index] for node, index in planned.reads} | planned.stored
    owners = {}
    for value in values:
        if value is None:
            continue
        root = planned.root(value)
        maker = root.producer()
        if root is value or maker is None or maker.op_type != "Concat":
            owners[value.name or ""] = root.name or ""
    return dict(sorted((owners | {root: root for root in owners.values()}).items()))


def names_by_scale(context: RecoveryContext, ranges: Ranges) -> dict[str, list[str]]:
    """Names of the tensors of each scale, by that of the tensor that it comes from, in the order of the graph."""
    model = context.model(ranges.recovery)
    graph = model.graph.graph
    made = (value.name or "" for node in graph for value in node.outputs)
    order = {name: place for place, name in enumerate([*(value.name or "" for value in graph.inputs), *made])}
    names_by_root: dict[str, list[str]] = {}
    for name, root in sorted(scale_owners(model, context).items(), key=lambda pair: order.get(pair[1], len(order))):
        if name in ranges.tensors:
            names_by_root.setdefault(root, []).append(name)
    return names_by_root


def is_free(known: Ranges, root: str) -> bool:
    """Whether the range of a scale is known, and ours to choose."""
    return root in known.tensors and root not in known.infinite and root not in known.fixed


def narrow_ranges(
    ranges: Ranges, scales: Sequence[Sequence[str]], errors_of: ErrorsOf, *, has_time: Callable[[], bool]
) -> tuple[Ranges, int, int]:
    """Narrow the range of each scale as long as the error of the outputs falls by more than chance.

    A descent along one coordinate after the other, as the joint step of LAPQ: Y. Nahshan et al., "Loss Aware
    Post-training Quantization" (Machine Learning 110, 2021, https://arxiv.org/abs/1911.07190), with the error of the
    outputs for the loss.

    Args:
        scales: names of the tensors that have one scale, in the order of the graph.
        errors_of: (samples,) error of each sample under some ranges, always of the same samples; None where they are
            clearly no less than those given.
        has_time: whether another range may be tried.

    Returns:
        The ranges, how many scales are narrower, and how many were tried.
    """
    least, changed = errors_of(ranges, None) if scales and has_time() else None, 0
    if least is None:
        return ranges, 0, 0
    for number, names in enumerate(scales):
        before = ranges
        while has_time():
            tried = replace(ranges, tensors={**ranges.tensors, **{n: _narrow_range(ranges.tensors[n]) for n in names}})
            errors = errors_of(tried, least)
            if errors is None or not _helps(errors, least):
                break
            ranges, least = tried, errors
        else:
            return ranges, changed + (ranges is not before), number
        changed += ranges is not before
    return ranges, changed, len(scales)


def _helps(errors: Floats, before: Floats) -> bool:
    """Whether the errors of the same samples fell, surely and by enough."""
    gain = before - errors
    spread = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return bool(errors.mean() <= _WORTH * before.mean() and gain.mean() > _SURE * spread)


def _narrow_range(known: TensorRange) -> TensorRange:
    """The range without the values that are farthest from 0: a short side, as that of h-swish, stays."""
    most = _NARROWER * max(abs(known.low), abs(known.high))
    return TensorRange(max(known.low, -most), min(known.high, most))
