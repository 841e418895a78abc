"""Finding the fault that explains how the outputs of the user's own program differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import LEAST_SAMPLES, Fault, FaultKind, WrapperOutput, level_db, mends, simplest
from evaluators.diagnose.wrapper.permutations import find_layout, find_permutation
from evaluators.diagnose.wrapper.scaling import find_scaling

_VALUES = 2**22  # of an output among which faults are looked for

Outputs = Mapping[str, NDArray[Any]]


def find_faults(mine: Outputs, evaluation: Outputs, exact: Outputs, threshold_db: float) -> list[WrapperOutput]:
    """Compare outputs of the same samples, (samples, …) each, in any number type.

    Args:
        mine: of the user's own program, all of them finite; each of the expected shape, of that of another output, or
            of one with the axes behind the samples in another order.
        evaluation, exact: of the evaluation's engine and of the float model.
        threshold_db: by how much SQNR has to rise where a fault is mended.
    """
    targets = [exact] if not all(np.isfinite(array).all() for array in evaluation.values()) else [evaluation, exact]
    return [
        WrapperOutput(
            name,
            _level(mine[name], evaluation[name]),
            _level(mine[name], exact[name]),
            _level(evaluation[name], exact[name]),
            _find_fault(name, mine, targets, threshold_db),
        )
        for name in exact
    ]


def _level(values: NDArray[Any], reference: NDArray[Any]) -> float:
    if values.shape != reference.shape:
        return -math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        return level_db(values, reference)


def _find_fault(name: str, mine: Outputs, targets: Sequence[Outputs], threshold_db: float) -> Fault | None:
    """The simplest fault that explains the difference on the first samples, a few of which are enough of large ones."""
    values = mine[name]
    if any(_level(values, target[name]) == math.inf for target in targets):
        return None
    rows = max(LEAST_SAMPLES, _VALUES // max(1, values[0].size))
    mine = {other: array[:rows] for other, array in mine.items()}
    targets = [{other: array[:rows] for other, array in target.items()} for target in targets]
    return _search(name, mine, targets, threshold_db)


def _search(name: str, mine: Outputs, targets: Sequence[Outputs], threshold_db: float) -> Fault | None:
    """The simplest fault, against whichever target it explains better."""
    values, before_db = mine[name], max(_level(mine[name], target[name]) for target in targets)
    faults = [_find_swapped(name, mine, targets, before_db, threshold_db)]
    faults += [_best(find_layout(values, target[name], before_db, threshold_db) for target in targets)]
    if values.shape == targets[0][name].shape:
        for look in (find_permutation, find_scaling):
            faults += [_best(look(values, target[name], threshold_db) for target in targets)]
    return simplest([fault for fault in faults if fault is not None])


def _best(faults: Iterable[Fault | None]) -> Fault | None:
    return max((fault for fault in faults if fault), key=lambda fault: fault.whole_db, default=None)


def _find_swapped(
    name: str, mine: Outputs, targets: Sequence[Outputs], before_db: float, threshold_db: float
) -> Fault | None:
    """Whether this is what another output should be."""
    levels = {other: max(_level(mine[name], target[other]) for target in targets) for other in mine if other != name}
    if not levels:
        return None
    other = max(levels, key=lambda each: levels[each])
    if not mends(before_db, levels[other], threshold_db):
        return None
    return Fault(FaultKind.SWAPPED, before_db, levels[other], levels[other], other=other)
