"""Samples from functions of the user, read once into files that all processes of the study share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from evaluators.measure.device_lock import locked_file
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import absolute_reference, names_function
from search.values import digest_of
from studies.artifacts.locations import inputs_folder
from studies.events import Events
from studies.options.config import SearchConfig

_PREFIX = "samples-"
_PARTIAL = ".partial-*"


def function_sources(config: SearchConfig) -> tuple[str, ...]:
    """The data of a configuration that are functions of the user's."""
    sources = (config.data, config.calibration_data, config.final_data)
    found = [source for source in sources if source and not Path(source).exists() and names_function(source)]
    return tuple(dict.fromkeys(found))


def study_cache(config: SearchConfig) -> Path | None:
    """Where a study keeps the samples that functions give; None if it is to keep none."""
    return None if config.no_cache else inputs_folder(config.study, config.storage)


def read_sources(
    config: SearchConfig, inputs: Sequence[TensorSpec], folder: Path, events: Events, *, shared: bool
) -> Mapping[str, str]:
    """Read what the functions among the data give, where it has not been read.

    Args:
        inputs: of the model.
        folder: of the files.
        shared: whether other processes may read the same into this folder; one does, and the others wait.

    Returns:
        Source → the folder with its samples.

    Raises:
        DataError: a function fails or gives what does not fit the model, or the folder cannot be written.
    """
    sources = function_sources(config)
    if not sources:
        return {}
    from evaluators.data.reading.read_source import Told, write_function

    found: dict[str, str] = {}
    for source in sources:
        key = digest_of([absolute_reference(source), config.max_samples])[:16]
        found[source] = str(folder / f"{_PREFIX}{key}")
        with _alone(folder, events) if shared else _make_folder(folder):
            if not Path(found[source]).is_dir():
                told = Told(events.note, events.step)
                write_function(source, inputs, Path(found[source]), most=config.max_samples, told=told)
    return found


def forget_samples(folder: Path) -> None:
    """Remove what functions gave, as a run left it that came to nothing; the folder too, if nothing else is in it."""
    for path in (*folder.glob(f"{_PREFIX}*"), *folder.glob(_PARTIAL)):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # there is none, or something else is in it
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()
        folder.parent.rmdir()


_LOCK = "reading.lock"


@contextmanager
def _make_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    yield


@contextmanager
def _alone(folder: Path, events: Events) -> Iterator[None]:
    """One process of this host at a time; what one that was killed left half-written is removed."""

    def tell(holder: str) -> None:
        events.step(f"waiting for {holder}, which reads the same data", 1, 1)

    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked_file(folder / _LOCK, tell))
        except OSError as error:
            raise DataError(
                f"reading the data once into files: {folder} cannot be written: {error.strerror}. Put the database "
                "where files can be written, with --storage, or give --no-cache."
            ) from error
        for partial in folder.glob(_PARTIAL):
            shutil.rmtree(partial, ignore_errors=True)
        yield
