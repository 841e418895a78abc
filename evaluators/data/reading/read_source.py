"""Reading the samples of a user's function into files, once."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evaluators.data.checks import Checker
from evaluators.data.dataset import Arrays
from evaluators.data.reading.sample_files import SampleFiles, first_samples
from evaluators.data.reading.user_batches import batches_of, count_batches, count_samples
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import import_function, parse_call, short

Note = Callable[[str], object]
Step = Callable[[str, int, int], object]


class ReadListener:
    """Hears how far the reading is; without arguments it does nothing with that.

    Attributes:
        note: takes a line of text.
        step: takes what is done, and how many samples of how many.
    """

    def __init__(self, note: Note = lambda text: None, step: Step = lambda text, done, total: None) -> None:
        self.note = note
        self.step = step


def bind_function(source: str) -> Callable[[], Any]:
    """A function of the user's with the arguments that are named with it.

    Raises:
        DataError: it cannot be imported, or does not take these arguments.
    """
    call = parse_call(source)
    function = import_function(call.reference, "data")
    try:
        inspect.signature(function).bind(**call.arguments)
    except TypeError as error:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        raise DataError(
            f"data {source!r}: expected a function that can be called as {call.function}({arguments}), but {error}. "
            "Give arguments behind the function: 'loaders.py:load?split=val'"
        ) from error
    except ValueError:  # of some functions that are written in C nothing is known
        pass
    return partial(function, **call.arguments)


def read_function(source: str, inputs: Sequence[TensorSpec], most: int | None = None) -> Iterator[Arrays]:
    """The batches that a function of the user's gives, checked; what it prints goes to stderr.

    Args:
        inputs: of the model.
        most: samples; None for all.

    Raises:
        DataError: the function fails, or gives what does not fit the model.
    """
    function = bind_function(source)
    with _failures_of(source):
        value = function()
    yield from _check_batches(_reads(source, value, inputs), source, inputs, most)


def write_function(
    source: str,
    inputs: Sequence[TensorSpec],
    folder: Path,
    *,
    most: int | None = None,
    listener: ReadListener | None = None,
) -> None:
    """Read what a function of the user's gives, once, into a folder of `.npy` files, which appears whole or never.

    Args:
        inputs: of the model.
        folder: which it will be.
        most: samples; None for all.
        listener: hears how far the reading is.

    Raises:
        DataError: the function fails or gives what does not fit the model, or the disk has no room.
    """
    function = bind_function(source)
    with contextlib.redirect_stdout(sys.stderr):  # stdout may be read by another program
        with _failures_of(source):
            value = function()
        batches = _check_batches(_reads(source, value, inputs), source, inputs, most)
        write_batches(batches, folder, f"data {source!r}", expected=count_batches(value), most=most, listener=listener)


def write_batches(
    batches: Iterator[Arrays],
    folder: Path,
    what: str,
    *,
    expected: int | None = None,
    most: int | None = None,
    listener: ReadListener | None = None,
) -> None:
    """Write batches to a folder of `.npy` files, which appears whole or never; says first how large it will be.

    Args:
        what: is read, for messages.
        expected: how many batches there will be; None if nobody knows.
        most: samples that are taken; None for all.

    Raises:
        DataError: there is no batch, batches do not fit together, or the disk has no room.
    """
    progress = _ReadProgress(what, folder, expected, most, listener or ReadListener())
    try:
        with SampleFiles(folder) as files:
            for batch in first_samples(batches, most):
                progress.begin(batch)
                files.add(batch)
                progress.go_on(files.samples)
            if not files.samples:
                raise DataError(
                    f"reading {what}: expected batches, got none. An iterator that was read before is empty."
                )
    except OSError as error:
        raise DataError(
            f"reading {what}: {folder.parent} cannot be written: {error.strerror or error}. Make room there, put the "
            "database elsewhere with --storage, or take fewer samples with --max-samples."
        ) from error


def _reads(source: str, value: Any, inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    with _failures_of(source):
        yield from batches_of(value, [spec.name for spec in inputs], f"data {source!r}")


def _check_batches(
    batches: Iterator[Arrays], source: str, inputs: Sequence[TensorSpec], most: int | None
) -> Iterator[Arrays]:
    checker, first = Checker(inputs), 0
    for number, batch in enumerate(first_samples(batches, most)):
        checker.check(batch, f"{source} batch {number}", first)
        yield batch
        first += count_samples(batch)


@contextlib.contextmanager
def _failures_of(source: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"data {source!r}: the function failed with {short(error)}") from error


class _ReadProgress:
    """Says how large the files will be once a batch is known, and then how far they are."""

    def __init__(self, what: str, folder: Path, expected: int | None, most: int | None, listener: ReadListener) -> None:
        self._what = what
        self._folder = folder
        self._batches = expected
        self._most = most
        self._listener = listener
        self._total: int | None = None
        self._start: float | None = None

    def begin(self, batch: Arrays) -> None:
        """Before the first batch is written; does nothing for the others.

        Raises:
            DataError: there will be no room.
        """
        if self._start is not None:
            return
        self._start = time.monotonic()
        rows = max(1, count_samples(batch))
        each = sum(array.nbytes for array in batch.values()) / rows
        known = [count for count in (self._batches and self._batches * rows, self._most) if count]
        self._total = min(known) if self._batches or self._most else None
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder.parent).free
        size = f"{_size(each)} for each sample"
        if self._total is not None:
            size = f"about {_size(self._total * each)} for {self._total:,} samples"
        self._listener.note(f"reading {self._what} once into {self._folder}: {size}, {_size(free)} are free")
        if self._batches is not None and self._total is not None and self._total * each > free:
            raise DataError(
                f"reading {self._what}: expected room for about {_size(self._total * each)} in {self._folder.parent}, "
                f"got {_size(free)}. Make room there, put the database elsewhere with --storage, or take fewer samples "
                "with --max-samples."
            )

    def go_on(self, done: int) -> None:
        """After each batch."""
        assert self._start is not None
        if self._batches is None or self._total is None:
            self._listener.step(f"reading samples, {done:,} so far", 0, 0)
            return
        total = max(self._total, done)
        left = (time.monotonic() - self._start) / done * (total - done)
        self._listener.step(f"reading samples, about {_duration(left)} left,", done, total)


def _size(count: float) -> str:
    """Bytes for people: `3.0 GB`."""
    power = 0
    while count >= 999.5 and power < 4:
        count, power = count / 1000, power + 1
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    return f"{count:.1f} {unit}" if power and count < 9.95 else f"{count:.0f} {unit}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
