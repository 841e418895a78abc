"""Recovery steps by name, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from evaluators.recovery.step import RecoveryStep
from search.errors import ConfigError
from search.extensions import Extensible

SHIPPED = MappingProxyType(
    {
        "equalize": "evaluators.recovery.equalize:Equalize",
        "smooth": "evaluators.recovery.smooth:Smooth",
        "ranges": "evaluators.recovery.int8.tensor_ranges:RangesStep",
        "bias": "evaluators.recovery.int8.bias:BiasStep",
        "narrow": "evaluators.recovery.int8.narrow_ranges:NarrowStep",
        "round": "evaluators.recovery.int8.rounding:RoundStep",
    }
)
"""Name → `package.module:Class`. Exact steps first: what INT8 constants fit depends on them. Then cheap before dear."""

STEPS: Extensible[RecoveryStep] = Extensible(
    option="--recover",
    base=RecoveryStep,  # type: ignore[type-abstract]
    shipped=SHIPPED,
    group="bitfront.recovery",
    error=ConfigError,
    others=("auto", "none"),
    facts=("name", "summary"),
    noun="recovery step",
)

AUTO, NONE = "auto", "none"


def steps_of(setting: str) -> tuple[RecoveryStep, ...]:
    """The steps that `--recover` names, in the order in which they are tried.

    Args:
        setting: `auto` for every step that is registered, `none`, or names with commas between them. Names are those of
            `STEPS.names()`, or `package.module:Class`; the latter come last, in the order in which they were given.

    Raises:
        ConfigError: there is no such step, one is named twice, or what is named is none.
        DataError: a module that is named cannot be imported.
    """
    if setting == NONE:
        return ()
    names: Sequence[str] = STEPS.names() if setting == AUTO else [name.strip() for name in setting.split(",")]
    if len(set(names)) < len(names):
        raise ConfigError(f"--recover {setting}: a step is named twice. Name each once.")
    order = {name: place for place, name in enumerate(STEPS.names())}
    return tuple(STEPS.make(name) for name in sorted(names, key=lambda name: order.get(name, len(order))))
