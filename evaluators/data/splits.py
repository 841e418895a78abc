"""How samples are divided between calibration, search and the final score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluators.data.dataset import Indices
from search.errors import DataError


@dataclass(frozen=True)
class Splits:
    """Sorted sample indices of one dataset; a part that was given apart as data of its own is empty."""

    calibration: Indices
    search: Indices
    final: Indices


def split(digest: str, samples: int, *, calibration_apart: bool = False, final_apart: bool = False) -> Splits:
    """Divide data once and for all: 20 % (1…512 samples) calibrate, 30 % (at least 1) are final, the rest search.

    The rule depends on nothing but its arguments, and stays the same over versions of numpy. With two samples to
    share three ways, one is final and the other both calibrates and searches: search must never see *final*.

    Args:
        digest: of the dataset, 64 hex digits; the only source of randomness.
        samples: length of the dataset.
        calibration_apart, final_apart: these data are a dataset of their own; their share goes to search.

    Raises:
        DataError: fewer than two samples.
    """
    if samples < 2:
        raise DataError(f"{samples} sample cannot be split: at least two are needed, one to search on, one to check")
    # RandomState, unlike Generator, promises the same stream in every version of numpy.
    state = np.random.RandomState(np.frombuffer(bytes.fromhex(digest), "<u4").astype(np.uint32))
    order = state.permutation(samples).astype(np.int64)
    final = 0 if final_apart else max(1, samples * 30 // 100)
    calibration = 0 if calibration_apart else min(512, max(1, samples * 20 // 100))
    rest = samples - final
    overlap = calibration == rest
    return Splits(
        calibration=np.sort(order[:calibration]),
        search=np.sort(order[0 if overlap else calibration : rest]),
        final=np.sort(order[rest:]),
    )
