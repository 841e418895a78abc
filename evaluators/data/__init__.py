"""Samples and labels to calibrate, search and confirm on, and their division into splits.

Reads `.npz` files, folders of them, folders of images, and functions of the user's. Never runs a model and never reads
a pickle.
"""

from __future__ import annotations

from evaluators.data.dataset import Batch, Dataset, Indices, batches, gather_forms
from evaluators.data.splits import Splits, split

__all__ = ["Batch", "Dataset", "Indices", "Splits", "batches", "gather_forms", "split"]
