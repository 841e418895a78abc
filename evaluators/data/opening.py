"""Opening data of any form for a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evaluators.data.arrays import ArrayDataset, call_source, npz_shard
from evaluators.data.checks import LABELS
from evaluators.data.clusters import CLUSTER_FILE, CLUSTERS
from evaluators.data.dataset import Dataset
from evaluators.data.images import ImageDataset, find_images
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import REFERENCE


def open_data(
    source: str,
    inputs: Sequence[TensorSpec],
    *,
    preprocess: str | None = None,
    labels_required: bool = False,
) -> Dataset:
    """Open data for a model and check them.

    Arrays are read through once, so whatever is wrong with them is found here; of images only the first is read.

    Args:
        source: an `.npz` file (keys are input names, `labels` and `clusters`), a folder of such files, an image folder
            (class sub-folders, sorted by name, give labels 0, 1, …; a file `clusters.csv` gives clusters), or
            `package.module:function`, called without arguments, that returns what an `.npz` holds or an iterable of
            such batches.
        inputs: the model's inputs; everything but the leading axis has to match.
        preprocess: for image folders, `package.module:function`, called with a Path; it returns one sample without
            the batch axis: an array for a model with one input, or a dict from input name to array.
        labels_required: refuse data without labels.

    Raises:
        DataError: the data cannot be read, do not fit the model, or hold fewer than two samples.
    """
    dataset = _open(source, inputs, preprocess)
    if labels_required and not dataset.has_labels:
        raise DataError(
            f"data {source!r} have no labels and the metric needs them: add an array {LABELS!r} with one row per "
            "sample (image folders: one sub-folder per class), or choose a metric without labels such as agreement"
        )
    if len(dataset) < 2:
        raise DataError(f"data {source!r} hold one sample: at least two are needed, one to search on, one to check")
    return dataset


def _open(source: str, inputs: Sequence[TensorSpec], preprocess: str | None) -> Dataset:
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, inputs, preprocess)
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {source!r} is none: leave it out")
    if path.is_file():
        return ArrayDataset([npz_shard(path)], inputs)
    if REFERENCE.fullmatch(source):
        return ArrayDataset(call_source(source), inputs)
    raise _missing_source(source)


def check_source(source: str) -> None:
    """Refuse data that are neither a file or folder that is there nor `package.module:function`; reads nothing.

    Raises:
        DataError: naming the source and the folder in which it was looked for.
    """
    if not Path(source).exists() and not REFERENCE.fullmatch(source):
        raise _missing_source(source)


def _missing_source(source: str) -> DataError:
    return DataError(
        f"data {source!r}: no such file or folder (looked from {os.getcwd()}); give an .npz file, a folder, "
        "or package.module:function"
    )


def _open_folder(folder: Path, inputs: Sequence[TensorSpec], preprocess: str | None) -> Dataset:
    arrays = sorted(folder.glob("*.npz"))
    images = sorted(find_images(folder), key=lambda image: image.relative_to(folder).as_posix())
    if arrays and images:
        raise DataError(f"data folder {str(folder)!r} holds both .npz files and images: give a folder of one kind")
    if images:
        return ImageDataset(folder, images, inputs, preprocess)
    if arrays and (folder / CLUSTER_FILE).exists():
        raise DataError(
            f"data folder {str(folder)!r} holds .npz files and {CLUSTER_FILE}, which is for image folders: put the "
            f"clusters into the files, as an array {CLUSTERS!r}"
        )
    if not arrays:
        raise DataError(f"data folder {str(folder)!r} is empty: found neither .npz files nor images")
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {str(folder)!r} holds .npz files")
    return ArrayDataset([npz_shard(path) for path in arrays], inputs)
