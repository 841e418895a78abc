"""The rules of a capabilities file: the operators that a target runs in each precision, and their least sizes.

The shipped files of the backends and those of users have the same form. A shipped file lists all that a backend runs. A
user's file can only restrict that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from search.errors import ConfigError
from search.values import Capability, Precision, digest_of

OPS, WITHOUT, SYMMETRIC = "ops", "without", "symmetric"
MIN_CHANNELS, MIN_MATMUL_SIZE, MOST_ROWS = _SIZES = ("min_channels", "min_matmul_size", "most_rows")


def keys_of(precision: Precision) -> tuple[str, ...]:
    """The keys that the table of a precision may have: those that say something of what can run in it."""
    return (
        *(OPS, WITHOUT),
        *([SYMMETRIC] if precision.recovered else []),
        *([MIN_CHANNELS] if precision.calibrated or not precision.quantized else []),  # the others are for products
        MIN_MATMUL_SIZE,
        *([MOST_ROWS] if precision.blocks else []),
    )


@dataclass(frozen=True)
class CapabilityRules:
    """The content of a capabilities file, checked by `read_capability_rules`.

    Attributes:
        name: the name of the target that it describes, or of the file.
        tables: the table of each precision by label: `ops` or `without` (lists of op types), and what else
            `keys_of` has for it: `symmetric` (bool), and sizes (whole numbers), which hold for that precision alone.
    """

    name: str
    tables: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """64 hex digits of the rules, without the name."""
        return digest_of({"tables": self.tables})

    @property
    def symmetric(self) -> bool | None:
        """Whether INT8 activations have the zero point 0; None if the file does not say."""
        return next((table[SYMMETRIC] for table in self.tables.values() if SYMMETRIC in table), None)

    @property
    def _sizes(self) -> dict[Precision, dict[str, int]]:
        own = {label: {key: table[key] for key in _SIZES if key in table} for label, table in self.tables.items()}
        return {Precision.parse(label): sizes for label, sizes in own.items() if sizes}

    def whole(self) -> Capability:
        """The capability of a target that the file describes completely: what it does not name is not run."""
        ops = {Precision.parse(label): frozenset(table[OPS]) for label, table in self.tables.items()}
        return Capability(ops, sizes=self._sizes)

    def narrow(self, capability: Capability, target: str) -> Capability:
        """Restrict a capability by the rules: what the file does not name stays unchanged.

        Args:
            target: the target in words, for messages.

        Raises:
            ConfigError: the file lists ops that the target does not run in that precision.
        """
        ops = dict(capability.ops)
        withheld = dict(capability.withheld)
        for label, table in self.tables.items():
            precision = Precision.parse(label)
            runs = ops.get(precision, frozenset())
            if more := sorted(set(table.get(OPS, ())) - runs):
                native = "only " + ", ".join(sorted(runs)) if runs else "nothing"
                raise ConfigError(
                    f"--capabilities {self.name}: [{label}] lists {', '.join(more)}, but {target} runs {native} in "
                    f"{precision.label.upper()}. A file can only remove what the target runs: take "
                    f"{'it' if len(more) == 1 else 'them'} off the list."
                )
            left = frozenset(table[OPS]) if OPS in table else runs - frozenset(table.get(WITHOUT, ()))
            if left != runs:  # a precision without any op stays, so that the reason is told
                ops[precision] = left
                withheld[precision] = withheld.get(precision, frozenset()) | (runs - left)
        own = self._sizes
        sizes = {p: {**capability.sizes.get(p, {}), **own.get(p, {})} for p in sorted({*capability.sizes, *own})}
        return replace(capability, ops=ops, sizes=sizes, withheld=withheld, withheld_by=self.name)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "tables": {label: dict(table) for label, table in self.tables.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CapabilityRules:
        return cls(data["name"], data["tables"])
