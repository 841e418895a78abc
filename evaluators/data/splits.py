"""The division of samples into calibration, search and final samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluators.data.cluster_splits import divide_clusters
from evaluators.data.clusters import Ids
from evaluators.data.dataset import Indices
from search.errors import DataError

MOST_CALIBRATION = 512


@dataclass(frozen=True)
class Splits:
    """Sorted sample indices of one dataset; a part that was given apart as data of its own is empty."""

    calibration: Indices
    search: Indices
    final: Indices


@dataclass(frozen=True)
class _Shares:
    """How many samples each part is meant to have."""

    calibration: int
    search: int
    final: int


def split(
    digest: str,
    samples: int,
    *,
    calibration_apart: bool = False,
    final_apart: bool = False,
    seed: int = 0,
    clusters: Ids | None = None,
) -> Splits:
    """Divide data once and for all: 20 % (1…512 samples) calibrate, 30 % (at least 1) are final, the rest search.

    The rule depends on nothing but its arguments, and stays the same over versions of numpy. With two samples to
    share three ways, one is final and the other both calibrates and searches: search must never see *final*.

    Where there are clusters, each goes to one part as a whole, and the parts come as near to these shares as whole
    clusters let them. Of clusters that calibrate, samples beyond 512 are left out.

    Args:
        digest: of the dataset, 64 hex digits; with `seed` the only source of randomness.
        samples: length of the dataset.
        calibration_apart, final_apart: these data are a dataset of their own; their share goes to search.
        seed: another one gives another division; from 0 to 2³² - 1.
        clusters: (samples,) id of the cluster of each sample.

    Raises:
        DataError: fewer than two samples, too few clusters, or one that is too large for any part.
    """
    if samples < 2:
        raise DataError(f"{samples} sample cannot be split: at least two are needed, one to search on, one to check")
    final = 0 if final_apart else max(1, samples * 30 // 100)
    calibration = 0 if calibration_apart else min(MOST_CALIBRATION, max(1, samples * 20 // 100))
    shares = _Shares(calibration, samples - final - calibration, final)
    random = _random(digest, seed)
    return _split_samples(random, shares) if clusters is None else _split_clusters(random, shares, clusters)


def _random(digest: str, seed: int) -> np.random.RandomState:
    """RandomState, unlike Generator, promises the same stream in every version of numpy."""
    words = np.frombuffer(bytes.fromhex(digest), "<u4").astype(np.uint32)
    return np.random.RandomState(np.append(words, np.uint32(seed)) if seed else words)


def _split_samples(random: np.random.RandomState, shares: _Shares) -> Splits:
    samples = shares.calibration + shares.search + shares.final
    order = random.permutation(samples).astype(np.int64)
    rest = samples - shares.final
    overlap = shares.calibration == rest
    return Splits(
        calibration=np.sort(order[: shares.calibration]),
        search=np.sort(order[0 if overlap else shares.calibration : rest]),
        final=np.sort(order[rest:]),
    )


def _split_clusters(random: np.random.RandomState, shares: _Shares, clusters: Ids) -> Splits:
    ids, codes = np.unique(clusters, return_inverse=True)
    sizes = np.bincount(codes)
    least = np.array([1 if shares.calibration else 0, 2, 2 if shares.final else 0])
    _check_clusters(ids, sizes, shares, least)
    targets = np.array([shares.calibration, shares.search, shares.final])
    part = divide_clusters(sizes, targets, least, random)[codes]
    calibration, search, final = (np.flatnonzero(part == number).astype(np.int64) for number in range(3))
    if len(calibration) > MOST_CALIBRATION:
        calibration = np.sort(random.permutation(calibration)[:MOST_CALIBRATION])
    return Splits(calibration, search, final)


def _check_clusters(ids: Ids, sizes: Indices, shares: _Shares, least: Indices) -> None:
    largest = int(np.argmax(sizes))
    if sizes[largest] > shares.search:
        raise DataError(
            f"splitting the data: cluster {ids[largest].item()!r} has {sizes[largest]} of {sizes.sum()} samples, but "
            f"the largest part, that of the search, takes {shares.search}, and a cluster is never divided. Give more "
            "samples of other clusters, or fewer of this one, or smaller clusters"
        )
    if len(ids) < least.sum():
        parts = [
            f"{n} to {what}"
            for n, what in zip(least, ("calibrate on", "search on", "score finalists on"), strict=True)
            if n
        ]
        raise DataError(
            f"splitting the data: at least {least.sum()} clusters are needed, {', '.join(parts)}, and the data have "
            f"{len(ids)}. A cluster is never divided: give samples of more clusters"
        )
