"""Checks that data are there, and that arrays fit the inputs of the model."""

from __future__ import annotations

import difflib
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.clusters import CLUSTERS, read_ids
from evaluators.data.dataset import Arrays
from evaluators.data.reading.stored_arrays import Rows, blocks
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import is_file, names_function, parse_call

LABELS = "labels"
SEVERAL = "labels."  # begins the name of each of several labels
_LABEL_LIKE = frozenset({"label", "labels", "y", "target", "targets", "class", "classes"})


@dataclass(frozen=True)
class Checker:
    """Compares arrays with the model's inputs; messages number samples over the whole dataset, from 0.

    Attributes:
        inputs: of the model.
        fixed: names of inputs of the file that are constants of the model, whose arrays are left out.
    """

    inputs: Sequence[TensorSpec]
    fixed: Collection[str] = ()

    def leave_out_constants(self, arrays: Mapping[str, Rows]) -> dict[str, Rows]:
        """The arrays without those of constants, and without single numbers, of which an export says no names."""
        known = {*(spec.name for spec in self.inputs), LABELS, CLUSTERS}
        return {
            name: array
            for name, array in arrays.items()
            if name in known or name.startswith(SEVERAL) or (name not in self.fixed and len(array.shape) > 0)
        }

    def takes(self, key: str) -> bool:
        """Whether labels or clusters may be given; False for a model with an input of that name, which it is then."""
        return all(spec.name != key for spec in self.inputs)

    def native(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Arrays in this machine's byte order, copied only where they are in another one."""
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}

    def check(self, arrays: Mapping[str, Rows], where: str, first: int) -> int:
        """Number of samples in `arrays`, whose first is sample `first`; raises DataError for anything that is off."""
        self._check_keys(arrays, where)
        for spec in self.inputs:
            _check_array(arrays[spec.name], spec, where)
        if self.takes(CLUSTERS) and CLUSTERS in arrays:
            read_ids(np.asarray(arrays[CLUSTERS][...]), where)
        lengths = {name: len(array) if array.shape else 0 for name, array in arrays.items()}
        samples = lengths[self.inputs[0].name]
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{where}: every array needs one row per sample, but the lengths differ: "
                + ", ".join(f"{name} {length}" for name, length in lengths.items())
                + self._length_advice(lengths)
            )
        if samples == 0:
            raise DataError(f"{where} is empty: its arrays have no rows")
        for spec in self.inputs:
            _check_finite(arrays[spec.name], spec.name, where, first)
        return samples

    def _length_advice(self, lengths: Mapping[str, int]) -> str:
        """What to do where inputs themselves differ; labels that are too short need no advice."""
        if len({lengths[spec.name] for spec in self.inputs}) == 1:
            return ""
        return (
            ". Put the samples on the first axis of every array, also where the model has the batch on another one. An "
            "input that is the same for all samples is given by --input-value NAME=VALUE, and left out here."
        )

    def _check_keys(self, arrays: Mapping[str, Rows], where: str) -> None:
        wanted = [spec.name for spec in self.inputs]
        refuse_missing(list(arrays), wanted, where)
        several = {name for name in arrays if name.startswith(SEVERAL) and name not in wanted}
        extra = sorted(arrays.keys() - {*wanted, *several - {SEVERAL}, LABELS, CLUSTERS})
        if extra:
            raise DataError(
                f"{where} has {extra[0]!r}, which is not an input of the model: expected arrays {wanted} and "
                f"optionally {LABELS!r} and {CLUSTERS!r}. {_label_advice(extra[0], list(arrays))}"
            )
        if several and LABELS in arrays and self.takes(LABELS):
            raise DataError(
                f"{where} has both {LABELS!r} and {sorted(several)[0]!r}: expected one array of labels, or several "
                f"whose names begin with {SEVERAL!r}; give {LABELS!r} a name of its own, say '{SEVERAL}class'"
            )
        if any(array.dtype.hasobject for array in arrays.values()):
            raise DataError(
                f"{where} holds object arrays: every array has to be of a plain number type, or "
                f"of texts where it is {CLUSTERS!r}"
            )


def label_like(names: Iterable[str]) -> str:
    """The first of these names that data often give to their labels, as `label`, `y` or `targets`; empty if none is."""
    return next((name for name in names if name.lower() in _LABEL_LIKE), "")


def _label_advice(extra: str, names: Sequence[str]) -> str:
    """How to name an array that is no input, if it is a label."""
    if LABELS in names or any(name.startswith(SEVERAL) for name in names):
        return (
            f"If it holds labels of another task, name every array of labels '{SEVERAL}NAME', as "
            f"'{SEVERAL}{_label_name(extra)}', and give a metric of your own, which reads them. "
            "Otherwise leave it out."
        )
    if label_like([extra]):
        return f"It looks like the labels: rename it to {LABELS!r}."
    if _label_name(extra) != extra:
        return f"If it is one of several labels, name it '{SEVERAL}{_label_name(extra)}'. Otherwise leave it out."
    return (
        f"If it holds the labels, rename it to {LABELS!r}. If samples have several labels, name each '{SEVERAL}NAME' "
        "and give a metric of your own, which reads them. Otherwise leave it out."
    )


def _label_name(name: str) -> str:
    """What a label is called whose array has another name: `pose` of `labels_pose` and of `labels.pose`."""
    return re.sub(r"^labels?[._-]+", "", name) or "class"


def refuse_missing(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse arrays of these names if one of the model's inputs is not among them.

    Args:
        wanted: the names of the model's inputs.
        where: the data, for the message.

    Raises:
        DataError: naming the input, and the array that was probably meant as it.
    """
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    candidates = sorted(name for name in names if name not in (LABELS, CLUSTERS) and not name.startswith(SEVERAL))
    raise DataError(
        f"{where} lacks the model's input {missing[0]!r}: expected arrays {list(wanted)}, got {candidates}; "
        f"name each array as the model names its input{_nearest_text(missing[0], candidates, wanted)}"
    )


def _nearest_text(missing: str, candidates: Sequence[str], wanted: Sequence[str]) -> str:
    """The array that was probably meant as an input: `: rename 'images' to 'image'`; empty if none is like it."""
    spare = [name for name in candidates if name not in wanted]
    near = difflib.get_close_matches(missing, spare, 1)
    labels = label_like(spare)
    renamed = [f"rename {near[0]!r} to {missing!r}"] if near else []
    renamed += [f"{'' if near else 'rename '}{labels!r} to {LABELS!r}"] if labels and labels not in near else []
    return f": {' and '.join(renamed)}" if renamed else ""


def _check_array(array: Rows, spec: TensorSpec, where: str) -> None:
    if not array.shape or not spec.takes(array.shape[1:]):
        expected = ", ".join(["samples", *spec.describe_row()])
        advice = "shape the samples as the model takes them, or fix the model's input shape"
        if array.shape[1:] == spec.shape:  # of a model of one sample, whose first axis is no batch
            sizes = "x".join(map(str, spec.shape))
            advice = f"if the model has no axis of samples, give it one: --shape {spec.name}:1x{sizes}"
        raise DataError(f"{where}: input {spec.name!r} has to be of shape ({expected}), got {array.shape}; {advice}")
    if array.dtype.name != spec.dtype:
        scaled = ", scaling included" if spec.dtype.startswith(("float", "bfloat")) else ""
        raise DataError(
            f"{where}: input {spec.name!r} has to be {spec.dtype}, got {array.dtype.name}; convert it with "
            f".astype({spec.dtype!r}) where the data are made{scaled}"
        )


def _check_finite(array: Rows, name: str, where: str, first: int) -> None:
    if array.dtype.kind != "f":
        return
    for block in blocks(array):
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not finite.all():
            sample = first + int(np.argmin(finite))
            raise DataError(f"{where}: input {name!r} holds NaN or Inf, first in sample {sample}: repair or drop it")
        first += len(block)


def check_source(source: str) -> None:
    """Refuse data that are neither a file or folder that is there nor a function; reads and imports nothing.

    Raises:
        DataError: naming the source and the folder in which it was looked for.
    """
    if Path(source).exists():
        return
    if not names_function(source):
        raise missing_source(source)
    call = parse_call(source)
    if is_file(call.module) and not Path(call.module).is_file():
        raise DataError(
            f"data {source!r}: no such file {call.module!r} (looked from {os.getcwd()}); give the path of the file "
            f"that has the function {call.function}"
        )


def check_input_names(sources: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse `.npz` files that lack an input of the model, by the lists of their arrays alone.

    Other data, and a file that cannot be read or holds something else, are looked at when they are opened.

    Args:
        wanted: the names of the model's inputs.

    Raises:
        DataError: naming the input that is missing.
    """
    for path in map(Path, sources):
        if path.suffix != ".npz" or not path.is_file():
            continue
        try:
            with zipfile.ZipFile(path) as stored:
                names = stored.namelist()
        except (OSError, zipfile.BadZipFile):
            continue
        if names and all(name.endswith(".npy") for name in names):
            refuse_missing([name.removesuffix(".npy") for name in names], wanted, path.name)


def missing_source(source: str) -> DataError:
    return DataError(
        f"data {source!r}: no such file or folder (looked from {os.getcwd()}); give an .npz or .npy file, a folder, "
        "package.module:function or file.py:function"
    )
