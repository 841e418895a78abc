"""Statistics of each sample for each tensor: smallest, largest and mean value, and the share that INT8 would clip."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import ArtifactError

STATISTICS = ("low", "high", "mean", "clipped")
BINS = 192  # a third of them inside the range, and a third on either side of it


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """Statistics of every sample, and a histogram of all of them, by tensor.

    Attributes:
        tensors: names, in topological order.
        values: (tensors, statistics, samples) float32: least, largest and mean value in the tensor's unit, and the
            share of values outside the calibrated range, in the order of STATISTICS.
        ranges: (tensors, 2) float64: low and high end of the calibrated range.
        histograms: (tensors, BINS) int64 counts. The bins divide three widths of the range evenly, the range itself in
            the middle; the outer bins also hold what lies beyond. Of large tensors evenly spaced elements are counted.
        clusters: whether each sample stands for a cluster.
    """

    tensors: tuple[str, ...]
    values: NDArray[np.float32]
    ranges: NDArray[np.float64]
    histograms: NDArray[np.int64]
    clusters: bool = False

    @property
    def samples(self) -> int:
        return int(self.values.shape[2])


def statistics_bytes(statistics: SampleStatistics) -> bytes:
    """Statistics as a file; the same ones give the same bytes."""
    file = io.BytesIO()
    arrays = {each.name: np.asarray(getattr(statistics, each.name)) for each in fields(statistics)}
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_statistics(data: bytes) -> SampleStatistics:
    """The inverse of `statistics_bytes`.

    Raises:
        ArtifactError: it is no such file.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays: dict[str, Any] = {each.name: archive[each.name] for each in fields(SampleStatistics)}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ArtifactError(
            f"reading the statistics of the calibration samples: expected the file that a study writes, got "
            f"{type(error).__name__}: {error}. Start a new study."
        ) from error
    names = tuple(str(name) for name in arrays.pop("tensors"))
    return SampleStatistics(names, **{**arrays, "clusters": bool(arrays["clusters"])})
