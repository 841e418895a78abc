"""Statements on stored options that a run changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_options(known: Mapping[str, Any], told: Mapping[str, Any], seen: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run changes of the options that are stored.

    Between reading and writing a run checks its inputs and calibrates, while others may store what they were told. What
    it was told just as it had read it is no change and overwrites nothing. Of two totals of trials the larger stays,
    for workers that count to it are at work; of anything else the later word.
    """
    if seen is None:
        return dict(told)
    changed = {name: value for name, value in told.items() if name not in seen or value != seen[name]}
    if "trials" in changed and known.get("trials") not in (None, seen.get("trials")):
        changed["trials"] = max(changed["trials"], known["trials"])
    return changed
