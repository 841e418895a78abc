"""Choosing the engines to keep: those that are, or may be, on the front."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from search.values import Evaluation
from studies.artifacts import leftovers
from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing, engines_to_keep
from studies.options.limits import Limits
from studies.store.records import RUNNING
from studies.store.store import Store


def engine_to_keep(evaluation: Evaluation, keep: str) -> Path | None:
    """The engine of an evaluation that may stand on the front; another one is thrown away.

    Args:
        keep: as `--keep-engines`.
    """
    if evaluation.artifact is None:
        return None
    path, accuracy = Path(evaluation.artifact), evaluation.accuracy
    if keep == "all" or (keep == "front" and accuracy is not None and accuracy.complete):
        return path
    path.unlink(missing_ok=True)
    return None


def prune(store: Store, artifacts: Artifacts, now: Standing, *, keep: str) -> None:
    """Let go of engines that are on no front any more, not picked and in no line for `best`.

    Args:
        keep: as `--keep-engines`.
    """
    if keep == "all":
        return
    # One that ran when the table was read may have an engine by now, and stand on the front.
    held = (now.table.artifact != "") & (now.table.status != RUNNING)
    kept = engines_to_keep(now) | engines_to_keep(_without_limits(now)) if keep == "front" else np.zeros_like(held)
    released = store.files.release_engines([int(number) for number in now.table.id[held & ~kept]])
    leftovers.drop(store, artifacts, released)


def _without_limits(now: Standing) -> Standing:
    """Limits may be changed later, so what would be kept without them keeps its engines too."""
    return replace(now, limits=Limits())
