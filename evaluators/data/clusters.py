"""Clusters: groups of samples that belong together, such as the frames of one video."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import DataError

CLUSTERS = "clusters"
CLUSTER_FILE = "clusters.csv"
_HEADER = ["file", "cluster"]
_ADVICE = "give one integer or text per sample, which is the same for samples that belong together"

Ids = NDArray[Any]  # (samples,) int64 or text


def read_ids(values: NDArray[Any], where: str) -> Ids:
    """Check an array `clusters` as a user gave it.

    Returns:
        (samples,) int64 or text.

    Raises:
        DataError: it has another rank, or holds anything but integers or texts.
    """
    if values.ndim != 1:
        raise DataError(f"{where}: {CLUSTERS!r} has to be of shape (samples,), got {values.shape}; {_ADVICE}")
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "f" and np.isnan(values).any():
        first = int(np.argmax(np.isnan(values)))
        raise DataError(f"{where}: {CLUSTERS!r} holds NaN, first in row {first}; {_ADVICE}")
    if values.dtype.kind not in "iu" or (values.dtype.kind == "u" and values.max(initial=0) > np.iinfo(np.int64).max):
        raise DataError(
            f"{where}: {CLUSTERS!r} has to hold integers (of at most 64 bits, signed) or texts, got "
            f"{values.dtype.name}; {_ADVICE}"
        )
    return values.astype(np.int64)


def join_ids(parts: Sequence[Ids], names: Sequence[str]) -> Ids:
    """The ids of data that come in parts, in one array.

    Raises:
        DataError: one part has integers, another one texts.
    """
    for part, name in zip(parts, names, strict=True):
        if part.dtype.kind != parts[0].dtype.kind:
            raise DataError(
                f"{name}: {CLUSTERS!r} has {_kind(part)}, the parts before it have {_kind(parts[0])}; use one of both"
            )
    return np.concatenate(parts)


def read_cluster_file(folder: Path, images: Sequence[str]) -> Ids | None:
    """The ids of images from `clusters.csv` in their folder, which has the columns file and cluster.

    Args:
        images: paths inside the folder, with `/` between their parts.

    Returns:
        One id per image, int64 where all are integers, else texts; None if there is no such file.

    Raises:
        DataError: the file cannot be read, an image is missing or named twice, or a line names no image.
    """
    path = folder / CLUSTER_FILE
    if not path.is_file():
        return None
    named = _read_rows(path)
    missing = [image for image in images if image not in named]
    strange = sorted(named.keys() - set(images))
    if missing or strange:
        what = f"has no line for the image {missing[0]!r}" if missing else f"names {strange[0]!r}, which is no image"
        more = len(missing or strange) - 1
        raise DataError(
            f"cluster file {str(path)!r} {what}{f' (and {more} more)' if more else ''}: expected one line for every "
            f"image, with its path inside the folder and its cluster, got {len(named)} lines for {len(images)} images"
        )
    ids = [named[image] for image in images]
    if all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in ids):
        return np.array([int(text) for text in ids], np.int64)
    return np.array(ids)


def check_number(ids: Ids | None, what: str) -> None:
    """Refuse data whose samples are all of one cluster.

    Args:
        what: the data, for messages.
    """
    if ids is not None and len(np.unique(ids)) < 2:
        raise DataError(
            f"{what}: all {len(ids)} samples are of one cluster ({ids[0].item()!r}), so it is not known how much "
            f"clusters differ, which an interval needs: give samples of more clusters, or leave {CLUSTERS!r} out"
        )


def check_apart(ids_by_option: Mapping[str, Ids | None]) -> None:
    """Refuse data sets that were given apart and have a cluster in common.

    Args:
        ids_by_option: option that named the data → their ids; None if they have no clusters.

    Raises:
        DataError: naming the options and a cluster that both have.
    """
    known = {option: ids.astype(str) for option, ids in ids_by_option.items() if ids is not None}
    for first, second in combinations(known, 2):
        both = np.intersect1d(known[first], known[second])
        if len(both):
            more = f" and {len(both) - 1} more" if len(both) > 1 else ""
            raise DataError(
                f"{first} and {second} both have samples of cluster {str(both[0])!r}{more}: a cluster may be in one of "
                "them only, because otherwise their scores are not independent. Move its samples to one side. If the "
                "ids are equal by accident, rename those of one side"
            )


def count_clusters(ids: Ids) -> int:
    """How many clusters there are."""
    return len(np.unique(ids))


def _read_rows(path: Path) -> dict[str, str]:
    """Image path → cluster."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"cluster file {str(path)!r} cannot be read as CSV in UTF-8 ({error}): correct it") from error
    if not rows or rows[0] != _HEADER:
        raise DataError(
            f"cluster file {str(path)!r}: expected the first line {','.join(_HEADER)!r}, got "
            f"{','.join(rows[0]) if rows else ''!r}; write one"
        )
    named: dict[str, str] = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != 2 or not all(row):
            raise DataError(f"cluster file {str(path)!r}, row {number}: expected a file and its cluster, got {row}")
        if row[0] in named:
            raise DataError(f"cluster file {str(path)!r}, row {number}: {row[0]!r} is named twice; keep one of both")
        named[row[0]] = row[1]
    return named


def _kind(ids: Ids) -> str:
    return "texts" if ids.dtype.kind == "U" else "integers"
