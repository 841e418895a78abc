"""Data and metrics of the unseen networks, for `--data unseen_data:…` and `--metric unseen_data:…`. NumPy alone.

`unseen.py` copies this file into its work folder, and a search started from there imports the copy. So a search needs
nothing else of this source tree, and trees of different ages read the same data:

    cd WORK && bitfront search silu/model.onnx --data unseen_data:silu_search --calibration-data \\
        unseen_data:silu_calibration --final-data unseen_data:silu_final --metric unseen_data:detection_f1

Every function returns `image` (n, 3, size, size) float32 and `labels`, mapped from files beside this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
SPLITS = ("calibration", "search", "final")
CLASSES = 6  # of objects, in both networks

Arrays = dict[str, NDArray[Any]]


def load(network: str, split: str, folder: Path = HERE) -> Arrays:
    """One split of a network: `image` (n, 3, size, size) float32, and `labels`."""
    data = folder / network / "data"
    images = np.load(data / f"{split}-images.npy", mmap_mode="r")
    return {"image": images, "labels": np.load(data / f"{split}-labels.npy")}


def silu_calibration() -> Arrays:
    return load("silu", "calibration")


def silu_search() -> Arrays:
    return load("silu", "search")


def silu_final() -> Arrays:
    return load("silu", "final")


def segmentation_calibration() -> Arrays:
    return load("segmentation", "calibration")


def segmentation_search() -> Arrays:
    return load("segmentation", "search")


def segmentation_final() -> Arrays:
    return load("segmentation", "final")


def resnet18_calibration() -> Arrays:
    return load("resnet18", "calibration")


def resnet18_search() -> Arrays:
    return load("resnet18", "search")


def resnet18_final() -> Arrays:
    return load("resnet18", "final")


def detected(outputs: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """(n, cells) what each cell of both grids holds: 0 nothing, k the class k - 1.

    A cell holds its best class where that class's logit is above 0. The cells of the fine grid come first.
    """
    found = []
    for name in ("fine", "coarse"):
        logits = np.asarray(outputs[name], np.float32).reshape(len(outputs[name]), CLASSES, -1)
        found.append(np.where(logits.max(1) > 0, logits.argmax(1) + 1, 0).astype(np.uint8))
    return np.concatenate(found, axis=1)


class DetectionF1:
    """Macro F1 over the classes: an object counts as found in the very cell that its centre lies in."""

    ratio = True
    unit = "share"

    def __init__(self) -> None:
        self.found = np.zeros(CLASSES)
        self.wanted = np.zeros(CLASSES)
        self.right = np.zeros(CLASSES)

    def update(self, outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> None:
        """Take in the logits, (n, 6, …) of both grids, and labels as `detected` gives them."""
        cells = detected(outputs)
        for counts, which in ((self.found, cells), (self.wanted, labels), (self.right, cells[cells == labels])):
            counts += np.bincount(which.reshape(-1), minlength=CLASSES + 1)[1:]

    def compute(self) -> float:
        """The mean over classes that occur or were found; 1 where there are none."""
        both = self.found + self.wanted
        seen = both > 0
        return float((2 * self.right[seen] / both[seen]).mean()) if seen.any() else 1.0


def detection_f1(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) the F1 score of each image over all classes, a metric per sample: 1 where nothing is there or found."""
    cells = detected(outputs)
    right = ((cells == labels) & (labels > 0)).sum(1)
    both = (cells > 0).sum(1) + (labels > 0).sum(1)
    return np.where(both > 0, 2 * right / np.maximum(both, 1), 1.0)


detection_f1.ratio = True  # type: ignore[attr-defined]
detection_f1.unit = "share"  # type: ignore[attr-defined]
