"""The rules of a capabilities file: the operators that a target runs in each precision, and their least sizes.

The shipped files of the backends and those of users have the same form. A shipped file lists all that a backend runs. A
user's file can only restrict that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.errors import ConfigError
from search.values import Capability, Precision, digest_of

OPS, WITHOUT, SYMMETRIC = "ops", "without", "symmetric"
LEAST_SIZES, MOST_ROWS = ("min_channels", "min_matmul_size"), "most_rows"
_SIZES = (*LEAST_SIZES, MOST_ROWS)


@dataclass(frozen=True)
class CapabilityRules:
    """The content of a capabilities file, checked by `read_capability_rules`.

    Attributes:
        name: the name of the target that it describes, or of the file.
        tables: the table of each precision by label: `ops` or `without` (lists of op types), and for INT8 also
            `symmetric` (bool), `min_channels` and `min_matmul_size`, for weights alone `most_rows` (whole numbers).
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
        found: bool | None = self._quantized_table.get(SYMMETRIC)
        return found

    @property
    def _quantized_table(self) -> Mapping[str, Any]:
        """The keys of the tables of quantized precisions, of which the coarsest counts."""
        tables = [self.tables.get(precision.label, {}) for precision in sorted(Precision) if precision.quantized]
        return {key: value for table in tables for key, value in table.items()}

    def whole(self) -> Capability:
        """The capability of a target that the file describes completely: what it does not name is not run."""
        ops = {Precision.parse(label): frozenset(table[OPS]) for label, table in self.tables.items()}
        return Capability(ops, **{key: self._quantized_table[key] for key in _SIZES if key in self._quantized_table})

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
        sizes = {key: self._quantized_table.get(key, getattr(capability, key)) for key in _SIZES}
        return Capability(ops, **sizes, withheld=withheld, withheld_by=self.name)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "tables": {label: dict(table) for label, table in self.tables.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CapabilityRules:
        return cls(data["name"], data["tables"])
