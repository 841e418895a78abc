"""Which recovery steps there are by name, in the order in which they are tried."""

from __future__ import annotations

from types import MappingProxyType

from evaluators.recovery.step import RecoveryStep
from search.errors import ConfigError
from search.extensions import Extensible

SHIPPED = MappingProxyType(
    {
        "equalize": "evaluators.recovery.equalize:Equalize",
        "smooth": "evaluators.recovery.smooth:Smooth",
        "bias": "evaluators.recovery.int8.bias:BiasStep",
    }
)
"""Name → `package.module:Class`. Exact steps first: what INT8 constants fit depends on them."""

STEPS: Extensible[RecoveryStep] = Extensible(
    option="--recover",
    base=RecoveryStep,  # type: ignore[type-abstract]
    shipped=SHIPPED,
    group="bitfront.recovery",
    error=ConfigError,
    others=("auto", "none"),
    facts=("name", "summary"),
)
