"""The mix of an engine that any tool built: by a listing of its layers, or by the calibration cache it came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluators.calibration import cache
from evaluators.engine_files import read_engine_file
from search.errors import ConfigError
from search.graph.model import Group
from search.values import REFERENCE, Precision

Wanted = dict[str, Precision]
_MOST_NAMED = 3


def is_cache(path: Path) -> bool:
    """Whether a file begins as TensorRT's calibration caches do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"TRT-"
    except OSError:
        return False


def is_listing(path: Path) -> bool:
    """Whether a file has the layers of an engine, as trtexec (8.6 with control characters in it) or an export has."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), strict=False)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and any(isinstance(data.get(key), list) for key in ("Layers", "layers"))


def read_listing(path: Path, groups: Sequence[Group]) -> tuple[Wanted, tuple[str, ...]]:
    """What the weighted ops of each group run in, and a note on groups of which the listing does not tell it.

    Of several weighted ops that share a weight, the finest precision counts.

    Raises:
        ConfigError: it names no weighted op of the model.
        InputError: it cannot be read, or has names alone.
    """
    owner = {anchor: group.id for group in groups for anchor in group.anchors}
    wanted: Wanted = {}
    for layer in read_engine_file(path, inspect_plan=str).layers:
        for group in {owner[node] for node in layer.nodes if node in owner and not layer.moves}:
            if layer.precision is not None:
                wanted[group] = min(layer.precision, wanted.get(group, layer.precision))
    if not wanted:
        raise ConfigError(
            f"--assign {path}: expected the layers of an engine of this model, but none of them tells the precision of "
            f"one of its weighted ops (the first is {groups[0].name!r}). Build the engine from this model with "
            "--profilingVerbosity=detailed; a fused region (Myelin) tells nothing."
        )
    untold = [group.name for group in groups if group.id not in wanted]
    return wanted, _note(untold, f"run in {REFERENCE.label}: the listing does not tell what they ran in")


def read_cache(path: Path, groups: Sequence[Group]) -> tuple[Wanted, tuple[str, ...]]:
    """INT8 for the groups whose inputs and output the cache has ranges of, which is what implicit quantization asks.

    Raises:
        ConfigError: it cannot be read, or has the tensors of no group.
    """
    known = cache.read_file(path).keys()
    wanted = {group.id: Precision.INT8 for group in groups if {*group.inputs, group.output} <= known}
    if not wanted:
        raise ConfigError(
            f"--assign {path}: expected ranges of this model's tensors, but it has those of no layer (the first reads "
            f"{', '.join(groups[0].inputs)} and makes {groups[0].output})."
        )
    rest = [group.name for group in groups if group.id not in wanted]
    return wanted, _note(rest, f"run in {REFERENCE.label}: the cache has no range of what they read or make")


def _note(names: Sequence[str], what: str) -> tuple[str, ...]:
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return (f"{len(names)} of the groups ({shown}) {what}",) if names else ()
