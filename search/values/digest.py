"""A digest of plain values, by which assignments, targets and files are known."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """SHA-256, as 64 hex digits, of a JSON-serialisable value written in one canonical way."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
