"""The labelled samples of the comparison with accuracy control: what calibrates, judges candidates and confirms picks.

They are those of the purpose `calibration` of `benchmarks.peers.samples`, in the shares of bitfront's own split of
5,000 samples. What is scored in the end is of the purpose `evaluation`, which neither tool is given.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers import samples
from benchmarks.peers.cases import CALIBRATION, Case

SEARCH = 3000  # samples by which both tools judge their candidates
FINAL = 1500  # samples by which bitfront confirms its picks; accuracy control has no such step


def search_file(case: Case, folder: Path) -> Path:
    """The samples by which candidates are judged, as .npz; written where they are not there yet."""
    return _file(case, folder, "search", CALIBRATION, SEARCH)


def final_file(case: Case, folder: Path) -> Path:
    """The samples by which bitfront confirms its picks, as .npz."""
    return _file(case, folder, "final", CALIBRATION + SEARCH, FINAL)


def _file(case: Case, folder: Path, name: str, start: int, count: int) -> Path:
    path = folder / f"{case.name}-{name}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        drawn = samples.draw(case.name, "calibration", start + count)
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, **{key: array[start:] for key, array in drawn.items()})  # type: ignore[arg-type]
        draft.replace(path)
    return path
