"""Opening data of any form for a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from evaluators.data.arrays import ArrayDataset, folder_shards, function_shards, npy_shard, npz_shard
from evaluators.data.checks import LABELS, check_source, missing_source
from evaluators.data.clusters import CLUSTER_FILE, CLUSTERS
from evaluators.data.dataset import Dataset, limit
from evaluators.data.images import ImageDataset, find_images
from evaluators.data.reading.read_source import write_function
from evaluators.data.reading.stored_arrays import visible_files
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import names_function


def open_data(
    source: str,
    inputs: Sequence[TensorSpec],
    *,
    preprocess: str | None = None,
    labels_required: bool = False,
    cache: Path | None = None,
    most: int | None = None,
    folder: Path | None = None,
    fixed: Collection[str] = (),
) -> Dataset:
    """Open data for a model and check them.

    Arrays are read through once, so whatever is wrong with them is found here; of images only the first is read.

    Args:
        source: an `.npz` file (keys are input names, `labels` or several `labels.NAME`, and `clusters`), a folder of
            such files, a `.npy` file with the samples of the only input, a folder of `.npy` files (their names are
            those keys), an image folder (class sub-folders, sorted by name, give labels 0, 1, …; a file `clusters.csv`
            gives clusters), or a function that returns what an `.npz` holds or an iterable of such batches:
            `package.module:function` or `file.py:function`, with arguments `?name=value&…` or without.
        inputs: the model's inputs; everything but the leading axis has to match.
        preprocess: for image folders, a preset, see `image_presets`; or `file.py:function` or
            `package.module:function`, called with a Path, which returns one sample without the batch axis: an array for
            a model with one input, or a dict from input name to array.
        labels_required: refuse data without labels.
        cache: folder that has the samples of a function, as `write_function` wrote them; where there is none yet they
            are written there. None: the function is called, and its samples stay in memory.
        most: samples that are taken; None for all. Of a function these are the first, of files they are drawn, always
            the same.
        folder: where samples of compressed files and of images are kept once they were read, if they do not fit into
            memory; None: they are read again whenever they are needed.
        fixed: names of inputs that are constants of the model, whose arrays are left out.

    Raises:
        DataError: the data cannot be read, do not fit the model, or hold fewer than two samples.
    """
    dataset = limit(_open(source, inputs, preprocess, cache, most, folder, fixed), most)
    if labels_required and not dataset.has_labels:
        raise DataError(
            f"data {source!r} have no labels and the metric needs them: add an array {LABELS!r} with one row per "
            "sample (image folders: one sub-folder per class), or choose a metric without labels such as agreement"
        )
    if len(dataset) < 2:
        raise DataError(f"data {source!r} hold one sample: at least two are needed, one to search on, one to check")
    return dataset


def _open(
    source: str,
    inputs: Sequence[TensorSpec],
    preprocess: str | None,
    cache: Path | None,
    most: int | None,
    folder: Path | None,
    fixed: Collection[str],
) -> Dataset:
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, inputs, preprocess, folder, fixed)
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {source!r} is none: leave it out")
    if path.is_file():
        shard = npy_shard(path, inputs) if path.suffix == ".npy" else npz_shard(path)
        return ArrayDataset([shard], inputs, fixed=fixed)
    if names_function(source):
        check_source(source)
        if cache is None:
            return ArrayDataset(function_shards(source, inputs, most), inputs)
        if not cache.is_dir():
            write_function(source, inputs, cache, most=most)
        return ArrayDataset(folder_shards(cache, source), inputs)
    raise missing_source(source)


def _open_folder(
    folder: Path, inputs: Sequence[TensorSpec], preprocess: str | None, kept: Path | None, fixed: Collection[str]
) -> Dataset:
    arrays, single = (visible_files(folder, pattern) for pattern in ("*.npz", "*.npy"))
    images = sorted(find_images(folder), key=lambda image: image.relative_to(folder).as_posix())
    kinds = [kind for kind, files in ((".npz files", arrays), (".npy files", single), ("images", images)) if files]
    if len(kinds) > 1:
        raise DataError(f"data folder {str(folder)!r} holds both {' and '.join(kinds)}: give a folder of one kind")
    if images:
        return ImageDataset(folder, images, inputs, preprocess, kept)
    if kinds and (folder / CLUSTER_FILE).exists():
        raise DataError(
            f"data folder {str(folder)!r} holds {kinds[0]} and {CLUSTER_FILE}, which is for image folders: put the "
            f"clusters into the files, as an array {CLUSTERS!r}"
        )
    if not kinds:
        raise DataError(f"data folder {str(folder)!r} is empty: found neither .npz files, .npy files nor images")
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {str(folder)!r} holds {kinds[0]}")
    if single:
        return ArrayDataset(folder_shards(folder, folder.name), inputs, fixed=fixed)
    return ArrayDataset([npz_shard(path) for path in arrays], inputs, kept, fixed)
