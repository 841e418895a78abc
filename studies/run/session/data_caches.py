"""The folders of a run, and samples from functions of the user in files that all its processes share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from evaluators.measure.device_lock import locked_file
from search.errors import ArtifactError, ConfigError, DataError
from search.graph.model import TensorSpec
from search.references import absolute_reference, names_function
from search.values import digest_of
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.artifacts.locations import bucket_of, inputs_folder, open_artifacts
from studies.events import Events
from studies.options.config import SearchConfig

_PREFIX = "samples-"
_PARTIAL = ".partial-*"


def function_sources(config: SearchConfig) -> tuple[str, ...]:
    """The data of a configuration that are functions of the user's."""
    sources = (config.data, config.calibration_data, config.final_data)
    functions = [source for source in sources if source and not Path(source).exists() and names_function(source)]
    return tuple(dict.fromkeys(functions))


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
    from evaluators.data.reading.read_source import ReadListener, write_function

    folders: dict[str, str] = {}
    for source in sources:
        key = digest_of([absolute_reference(source), config.max_samples])[:16]
        folders[source] = str(folder / f"{_PREFIX}{key}")
        with _alone(folder, events) if shared else _make_folder(folder):
            if not Path(folders[source]).is_dir():
                listener = ReadListener(events.note, events.step)
                write_function(source, inputs, Path(folders[source]), most=config.max_samples, listener=listener)
    return folders


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


def check_artifacts(config: SearchConfig) -> None:
    """Refuse a place for engines that cannot be used; creates nothing.

    Raises:
        ConfigError: a folder is a file or may not be written; a bucket cannot be reached or its client is missing.
        StudyError: the database is on a server and no place was given.
    """
    if bucket_of(config) is None:
        check_folder("--artifacts", artifacts_of(config), "engines are kept there")
        return
    check_folder("XDG_CACHE_HOME", artifacts_of(config), "copies of artifacts are kept there")
    try:
        remote = open_artifacts(config).remote  # some clients look for credentials already when they are made
        if remote is not None:
            remote.check()
    except ArtifactError as error:
        raise ConfigError(f"--artifacts {config.artifacts}: {error}") from error


def check_folder(option: str, folder: Path, what_for: str) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not _takes_files(existing):
        raise ConfigError(
            f"{option} {folder}: {existing} is not a folder that can be written. Give one that can; {what_for}."
        )


def _takes_files(folder: Path) -> bool:
    """Tried, as permissions do not say: of a folder of the kernel's, say, where nobody can make anything."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".bitfront-", dir=folder))
    except OSError:
        return False
    return True


def absolute_paths(files: Sequence[str]) -> list[str]:
    return [str(Path(file).absolute()) for file in files]
