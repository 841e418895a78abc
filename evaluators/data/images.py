"""Folders of image files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.arrays import Cache, as_array
from evaluators.data.checks import Checker
from evaluators.data.clusters import CLUSTER_FILE, CLUSTERS, read_cluster_file
from evaluators.data.dataset import Arrays, Indices
from evaluators.data.image_presets import PRESETS, make_preset
from evaluators.data.reading.stored_arrays import RowArrays, Rows
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import import_function, short
from search.values import digest_of

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_MOST_SHOWN = 3


class ImageDataset:
    """Image files that the user's function turns into samples, one by one, when they are first asked for.

    Args:
        folder: that the images are in.
        samples: where samples that do not fit into memory may be written, see `Cache`.
    """

    def __init__(
        self,
        folder: Path,
        images: list[Path],
        inputs: Sequence[TensorSpec],
        preprocess: str | None,
        samples: Path | None = None,
    ) -> None:
        if preprocess is None:
            raise DataError(
                f"data folder {str(folder)!r} holds images: --preprocess is needed to turn a file into what the model "
                f"takes; give a preset, {', '.join(PRESETS)}, or a function of yours, file.py:function"
            )
        self._images = images
        self._checker = Checker([replace(spec, least=(), most=()) for spec in inputs])  # images have one size
        self._reference = preprocess
        self._function = make_preset(preprocess, inputs) or import_function(preprocess, "--preprocess")
        self._labels = _folder_labels(folder, images)
        self._clusters = read_cluster_file(folder, [image.relative_to(folder).as_posix() for image in images])
        self._cache = Cache(samples)
        self._digest = self._content(folder)
        self._sample(0)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return self._labels is not None

    @property
    def clusters(self) -> NDArray[Any] | None:
        return self._clusters

    @property
    def forms(self) -> Indices | None:
        return None

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        samples = [self._sample(int(index)) for index in indices]
        names = [spec.name for spec in self._checker.inputs]
        rows = {name: np.concatenate([sample[name][:] for sample in samples]) for name in names}
        return rows, self.labels(indices)

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        return None if self._labels is None else self._labels[indices]

    def source_rows(self, indices: Indices) -> Indices:
        return indices

    def _content(self, folder: Path) -> str:
        files = [[image.relative_to(folder).as_posix(), _file_digest(image)] for image in self._images]
        labels = None if self._labels is None else self._labels.tolist()
        ids = {} if self._clusters is None else {"clusters": self._clusters.tolist()}
        # A study keeps the whole path of a file, which moves with its folder.
        preprocess = re.sub(r"^.*[/\\](?=[^/\\]+\.py:)", "", self._reference)
        return digest_of({"files": files, "labels": labels, "preprocess": preprocess, **ids})

    def _sample(self, index: int) -> Mapping[str, Rows]:
        return self._cache.get(index, lambda: self._read(index))

    def _read(self, index: int) -> RowArrays:
        """One sample with a batch axis of 1, checked."""
        image = self._images[index]
        try:
            value = self._function(image)
        except Exception as error:
            raise DataError(f"--preprocess {self._reference} failed on {image} with {short(error)}") from error
        named = value if isinstance(value, Mapping) else self._alone(value, image)
        where = f"--preprocess {self._reference} on {image}"
        rows = {str(name): as_array(array, f"{where}: {name!r}")[np.newaxis] for name, array in named.items()}
        if CLUSTERS in rows and self._checker.takes(CLUSTERS):
            raise DataError(f"{where}: got {CLUSTERS!r}; of images they stand in a file {CLUSTER_FILE} in the folder")
        arrays = self._checker.native(rows)
        self._checker.check(arrays, where, index)
        return {**arrays}

    def _alone(self, value: Any, image: Path) -> Arrays:
        inputs = self._checker.inputs
        if not isinstance(value, np.ndarray) or len(inputs) != 1:
            wanted = "an array" if len(inputs) == 1 else f"a dict with {[spec.name for spec in inputs]}"
            raise DataError(
                f"--preprocess {self._reference} on {image}: expected {wanted}, without the batch axis; "
                f"got {type(value).__name__}"
            )
        return {inputs[0].name: value}


def _folder_labels(folder: Path, images: list[Path]) -> Indices | None:
    """(samples,) int64 class numbers from sub-folders; None for a flat folder."""
    classes = [image.relative_to(folder).parts[0] for image in images if image.parent != folder]
    if not classes:
        return None
    if len(classes) < len(images):
        raise DataError(
            f"data folder {str(folder)!r} holds images both beside and inside sub-folders: put every image into the "
            "sub-folder of its class, or all into one folder without labels"
        )
    number = {name: index for index, name in enumerate(class_folders(folder))}
    return np.array([number[name] for name in classes], np.int64)


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders; the place of each is the number of its class.

    Sub-folders without images count, so that a class keeps its number when its last image goes.
    """
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def classes_text(folder: Path) -> str:
    """Which class each sub-folder is, the first three of them; empty if there are no sub-folders."""
    names = class_folders(folder)
    if not names:
        return ""
    shown = ", ".join(f"{number} is {name}" for number, name in enumerate(names[:_MOST_SHOWN]))
    more = f" and so on, {len(names)} classes in all" if len(names) > _MOST_SHOWN else ""
    return f"classes are the sub-folders of the data in alphabetical order: {shown}{more}"


def _file_digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            sha.update(block)
    return sha.hexdigest()


def find_images(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Images below a folder, through links too; neither hidden ones nor a folder within itself again."""
    above = (*above, folder.resolve())
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.resolve() not in above:
            yield from find_images(path, above)
        elif path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
            yield path
