"""Choosing a calibration method for each tensor by its effect on the outputs of the groups that read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.convenience import extract

from evaluators.calibration.activations import AUTO
from evaluators.data import Batch
from evaluators.engine import Arrays
from evaluators.lowering.int8.flat import flat_beyond
from evaluators.measure.group_tensors import Piece, batches_in, cut, tensors_of_pieces
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.int8.narrow_ranges import OutputErrors, is_free, scale_owners
from evaluators.recovery.int8.range_candidates import MINMAX, Grid, propose_ranges
from evaluators.recovery.int8.sample_errors import helps, rows_of, sample_errors, sample_weights, usual_power
from evaluators.recovery.step import Proposal, RecoveryStep
from search.graph.floats.bounds import UNBOUNDED, bounds_of_values
from search.values import Ranges, TensorRange

Array = NDArray[Any]
Floats = NDArray[np.float64]

_SAMPLES = 32  # to take ranges from, and as many to judge them on
_TOTAL_BYTES = 512 * 2**20  # of activations of the samples to fit to, and as much again to judge on
_TIME_SHARE = 0.4  # of what is left, for the groups: other steps have to come too
# Of the error that `minmax` leaves, at most, for another method: small gains in a group may be losses in the outputs,
# because what is cut off is always cut off to the same side.
_KEPT_SHARES = (0.8, 0.5)
# Offered for all tensors at once too: groups by themselves do not show it where samples differ much in brightness.
_FOR_ALL = ("mean", "percentile", "mse")


class RangesStep(RecoveryStep):
    """Chooses among `minmax`, percentiles, `entropy` and `mse` for each tensor, or a method for all; one that a user
    named stays.

    Each tensor that INT8 groups read or make is rounded alone, by each method's range, and all else of the group left
    in float. The method whose output of the group is nearest on held-out samples is taken, where that is no chance and
    the gain is large: how large it has to be is chosen by the error of the network's outputs.
    """

    version = 6
    name = "ranges"
    summary = "chooses a calibration method for each tensor by the error of the layers that read it"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        if ranges.method != AUTO:
            return None
        choice = _Choice(context, ranges)
        outputs = OutputErrors(context, ranges)
        by_method = choice.by_method()  # cheap, and often most of what there is to gain
        before_s = context.seconds_left()
        errors = {method: outputs.mean(candidate) for method, candidate in {MINMAX: ranges, **by_method}.items()}
        each_s = (before_s - context.seconds_left()) / len(errors)
        cut = choice.run(len(_KEPT_SHARES) * each_s)
        by_tensor = [candidate for candidate in map(choice.ranges, _KEPT_SHARES) if candidate != ranges]
        tried = [(errors[MINMAX], ranges), *((outputs.mean(candidate), candidate) for candidate in by_tensor)]
        tried += [(errors[method], candidate) for method, candidate in by_method.items()]
        _, best = min(tried, key=lambda pair: pair[0])  # the first of equal ones
        if best == ranges:
            return Proposal(ranges, cut=cut) if cut else None
        note = next((f"{method} for all ranges" for method, candidate in by_method.items() if candidate is best), None)
        return Proposal(best, (note or choice.count_methods(best),), cut)


@dataclass
class _Tensor:
    """One scale: the candidates for its range, and the errors that each gave in all groups so far."""

    candidates: Mapping[str, TensorRange]
    errors: dict[str, Floats] = field(default_factory=dict)

    def add(self, method: str, errors: Floats) -> None:
        known = self.errors.get(method)
        self.errors[method] = errors if known is None or len(known) != len(errors) else known + errors

    def best(self, share: float) -> str:
        """The method that leaves the least error, if that is at most this share of what `minmax` leaves."""
        before = self.errors.get(MINMAX)
        if before is None:
            return MINMAX
        most = share * float(before.mean())
        better = [m for m, errors in self.errors.items() if errors.mean() <= most and helps(errors, before)]
        return min(better, key=lambda method: float(self.errors[method].mean()), default=MINMAX)


class _Choice:
    def __init__(self, context: RecoveryContext, ranges: Ranges) -> None:
        self._context = context
        self._ranges = ranges
        self._model = context.model(ranges.recovery)
        self._roots = scale_owners(self._model, context)
        self._bounds = bounds_of_values(self._model.graph.graph), flat_beyond(self._model.graph.graph)
        count = batches_in(self._model, _SAMPLES, _TOTAL_BYTES)
        fitting = list(islice(context.fitting(), count))
        self._batches: list[Batch] = [*fitting, *islice(context.held_out(), count)]
        self._fitted = len(fitting)
        weights = [np.ones(batch.count) for batch in self._batches]
        for name, array in self._batches[0].inputs.items():
            if array.dtype.kind == "f":
                rows = [rows_of(batch.inputs[name], 1, batch.count, self._model.batch) for batch in self._batches]
                pairs = zip(weights, sample_weights(rows), strict=True)
                weights = [np.minimum(old, new) if len(old) == len(new) else old for old, new in pairs]
        self._weights = weights
        self._tensors: dict[str, _Tensor] = {}

    def run(self, judging_s: float) -> str:
        """Look at every group, as far as there is time; `Proposal.cut`.

        Args:
            judging_s: what of that time judging takes that comes after it.
        """
        model, int8, left_s = self._model, self._context.assignment, self._context.seconds_left()
        groups = [group for group in model.groups if int8[group.id].recovered]
        until, seen = (1 - _TIME_SHARE) * left_s + judging_s, 0
        inputs, pieces = [batch.inputs for batch in self._batches], [cut(model, group) for group in groups]
        looked_at = tensors_of_pieces(self._context.emulator, model, pieces, inputs)  # the first runs all samples
        for piece, tensors in looked_at if left_s > until else ():
            if self._context.seconds_left() <= until:
                break
            self._look(piece, tensors)
            seen += 1
            self._context.alive()
        return f"it ran out of time after {seen} of {len(groups)} groups" if seen < len(groups) else ""

    def ranges(self, share: float) -> Ranges:
        """The ranges with another method for each tensor that it leaves at most such a share of the error."""
        methods = {root: tensor.best(share) for root, tensor in self._tensors.items()}
        chosen = {
            name: self._tensors[root].candidates[methods[root]]
            for name, root in self._roots.items()
            if methods.get(root, MINMAX) != MINMAX and name not in self._ranges.fixed
        }
        return replace(self._ranges, tensors={**self._ranges.tensors, **chosen})

    def by_method(self) -> dict[str, Ranges]:
        """For each method, ranges by it for all tensors but those that a user set; empty if time is over."""
        if self._context.seconds_left() <= 0:
            return {}
        scales = {*self._roots, *self._roots.values()}.difference(self._ranges.fixed)
        clips = self._context.clip(self._ranges, _FOR_ALL, scales)
        return {
            method: replace(self._ranges, tensors={**self._ranges.tensors, **clipped})
            for method, clipped in zip(_FOR_ALL, clips, strict=True)
        }

    def count_methods(self, ranges: Ranges) -> str:
        """A note on how many scales each method has."""
        counts = Counter(
            next((m for m, range_ in tensor.candidates.items() if range_ == ranges.tensors[root]), MINMAX)
            for root, tensor in self._tensors.items()
        )
        shown = ", ".join(f"{method} for {count}" for method, count in counts.most_common())
        return f"methods of {counts.total()} ranges: {shown}"

    def _look(self, piece: Piece, tensors: Sequence[Arrays]) -> None:
        """Count the errors of one group's output."""
        inner = [name for name in piece.group.tensors if name in self._roots and name != piece.output]
        whole = self._open(piece, list(piece.inputs), [piece.output, *inner])
        full = [{**t, **whole.run({n: t[n] for n in piece.inputs})} for t in tensors] if inner else list(tensors)
        outputs = [self._rows(arrays[piece.output], piece, i) for i, arrays in enumerate(full)]
        power = usual_power(outputs)
        for name in dict.fromkeys((*piece.group.inputs, *piece.group.skips, *inner, piece.output)):
            tensor = self._tensor(name, full, piece)
            if tensor is None or len(tensor.candidates) < 2:
                continue
            session = whole if name in piece.inputs else None
            if session is None and name != piece.output:
                session = self._open(piece, [name, *piece.inputs], [piece.output])
            grid = self._grid(name)
            for method, chosen in tensor.candidates.items():
                errors = []
                for i, arrays in list(enumerate(full))[self._fitted :]:
                    rounded = {name: grid.round_values(arrays[name], chosen)}
                    made = rounded
                    if session is not None:
                        feeds = {n: arrays[n] for n in piece.inputs} | rounded
                        made = session.run(feeds, [piece.output])
                    errors.append(sample_errors(self._rows(made[piece.output], piece, i), outputs[i], power))
                tensor.add(method, np.concatenate(errors))

    def _open(self, piece: Piece, inputs: list[str], outputs: list[str]) -> Any:
        graph = piece.model.graph
        return self._context.emulator.open(ir.Model(extract(graph.graph, inputs, outputs), ir_version=graph.ir_version))

    def _tensor(self, name: str, full: Sequence[Arrays], piece: Piece) -> _Tensor | None:
        """The scale that a tensor has; None if it is not quantized, or its range is not ours to choose."""
        root = self._roots.get(name)
        if root is None or not is_free(self._ranges, root):
            return None
        if root not in self._tensors:
            arrays = [self._rows(full[i][name], piece, i) for i in range(self._fitted)]
            weights = [w if len(w) == len(a) else np.ones(len(a)) for w, a in zip(self._weights, arrays, strict=False)]
            self._tensors[root] = _Tensor(propose_ranges(self._ranges.tensors[root], arrays, weights, self._grid(name)))
        return self._tensors[root]

    def _grid(self, name: str) -> Grid:
        lows, highs = zip(*(bounds.get(self._roots[name], UNBOUNDED) for bounds in self._bounds), strict=True)
        return Grid(self._context.placement, (max(lows), min(highs)))

    def _rows(self, array: Array, piece: Piece, index: int) -> Array:
        return rows_of(array, piece.axis, self._batches[index].count, self._model.batch)
