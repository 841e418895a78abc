"""The precisions that the builder may use, and has to use for the weighted layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from evaluators.backends.tensorrt.api import layer_kinds, layers_of
from evaluators.engine import RefusedError
from search.graph.grouping import Group
from search.values import REFERENCE, Assignment, Precision

WEIGHTED_KINDS = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")


def set_flags(trt: Any, config: Any, precisions: set[Precision], *, obey: bool = True) -> None:
    """Let the builder use the precisions that an assignment has, and make it obey."""
    if obey:
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    for precision in sorted(precisions - {REFERENCE}):
        config.set_flag(getattr(trt.BuilderFlag, precision.name))


def set_precisions(
    trt: Any, network: Any, groups: Sequence[Group], assignment: Assignment, inner: Collection[str] = ()
) -> None:
    """Set the precision of every group's weighted layers.

    Args:
        inner: names of tensors that are made inside If and Loop, where no group is.

    Raises:
        RefusedError: the parsed network has no weighted layer of that name, or has it inside an If or Loop.
    """
    types = {precision: getattr(trt, precision.dtype) for precision in assignment.values()}
    kinds = layer_kinds(trt, WEIGHTED_KINDS)
    wanted = {anchor: assignment[group.id] for group in groups for anchor in group.anchors}
    others: dict[str, str] = {}
    for layer in layers_of(network):
        if layer.name not in wanted:
            continue
        made = layer.get_output(0).name
        if layer.type not in kinds:
            others[layer.name] = f"; the layer of that name is a {layer.type.name}"
        elif made in inner:
            others[layer.name] = f"; the layer of that name makes {made!r} inside an If or Loop"
        else:
            layer.precision = types[wanted.pop(layer.name)]
    if wanted:
        first = min(wanted)
        raise RefusedError(
            f"setting precisions: the parsed network has no weighted layer named {first!r} in its main graph (of "
            f"{len(wanted)} missing){others.get(first, '')}"
        )
