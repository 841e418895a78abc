"""Calibration and evaluation data: `.npz` files, folders of them, image folders, functions."""

from __future__ import annotations

from evaluators.data.clusters import check_apart, check_number, count_clusters
from evaluators.data.dataset import Arrays, Batch, Dataset, Indices, batches
from evaluators.data.opening import open_data
from evaluators.data.splits import Splits, split
from search.references import import_function

__all__ = [
    "Arrays",
    "Batch",
    "Dataset",
    "Indices",
    "Splits",
    "batches",
    "check_apart",
    "check_number",
    "count_clusters",
    "import_function",
    "open_data",
    "split",
]
