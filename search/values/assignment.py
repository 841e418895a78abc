"""Which precision each group runs in: the one representation of a candidate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from search.values.precision import Precision


def digest_of(value: Any) -> str:
    """SHA-256, as 64 hex digits, of a JSON-serialisable value written in one canonical way."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Assignment(Mapping[str, Precision]):
    """Group id → precision; immutable, hashable, with a digest. The one representation of a candidate."""

    __slots__ = ("_digest", "_items")

    def __init__(self, items: Mapping[str, Precision]) -> None:
        self._items = {group: items[group] for group in sorted(items)}
        self._digest = digest_of({group: precision.id for group, precision in self._items.items()})

    def __getitem__(self, group: str) -> Precision:
        return self._items[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assignment) and self._digest == other._digest

    def __repr__(self) -> str:
        return f"Assignment({self.to_json()})"

    @property
    def digest(self) -> str:
        """64 hex digits, equal for equal assignments in every process."""
        return self._digest

    def replace(self, changes: Mapping[str, Precision]) -> Assignment:
        """This assignment with some groups changed; raises KeyError for a group it does not have."""
        for group in changes:
            self._items[group]
        return Assignment({**self._items, **changes})

    def to_json(self) -> dict[str, str]:
        return {group: precision.label for group, precision in self._items.items()}

    @classmethod
    def from_json(cls, items: Mapping[str, str]) -> Assignment:
        return cls({group: Precision.parse(label) for group, label in items.items()})


def is_quantized(precisions: Mapping[str, Precision]) -> bool:
    """Whether some group, or some op, runs in a quantized precision."""
    return any(precision.quantized for precision in precisions.values())
