"""Reading the codes of an Optuna trial, which another program may have enqueued wrongly."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from search.space.choices import Space, Variable

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def read_parameters(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters of a trial: those that it was enqueued with, and those that were suggested since."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def codes_in(params: Mapping[str, Any], space: Space) -> dict[str, int] | None:
    """The codes by variable id; None if a parameter is missing or wrong. Parameters without a variable are ignored."""
    codes = {variable.id: _code(params.get(variable.id), variable) for variable in space.variables}
    known = {name: code for name, code in codes.items() if code is not None}
    return known if len(known) == len(codes) else None


def refusal(params: Mapping[str, Any], space: Space) -> str:
    """The reason why nothing can be built from parameters; empty if all of them are codes."""
    wrong = [v for v in space.variables if v.id in params and _code(params[v.id], v) is None]
    if not wrong:
        return ""
    first, others = wrong[0], len(wrong) - 1
    meant = ", ".join(f"{code} {precision.label}" for code, precision in enumerate(first.precisions))
    also = f" ({others} other parameter{'s are' if others > 1 else ' is'} wrong too)" if others else ""
    return (
        f"parameter {first.id} holds {reprlib.repr(params[first.id])}{also}, expected an integer from 0 to "
        f"{len(first.precisions) - 1}: {meant}. `bitfront inspect MODEL` lists the precisions of each group in the "
        "order "
        f"of its codes; parameters that are left out are sampled"
    )


def _code(value: object, variable: Variable) -> int | None:
    """The code of a value. A whole float counts, because tables turn integers into floats; a bool does not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return next((code for code in range(len(variable.precisions)) if code == value), None)
