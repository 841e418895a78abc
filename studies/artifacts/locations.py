"""The locations of a study's files: artifacts, files of one host, and fetched copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from search.errors import ConfigError
from search.values import digest_of
from studies.artifacts.buckets import open_remote
from studies.artifacts.folder import Artifacts
from studies.options.config import SearchConfig
from studies.options.urls import Bucket, parse_place
from studies.store.store import artifact_folder


def cache_home() -> Path:
    """This user's folder for what can be fetched or measured again, where the system keeps such: ~/.cache on Linux.

    Raises:
        ConfigError: the user has no home folder, and XDG_CACHE_HOME names none.
    """
    try:
        return user_cache_path("bitfront", appauthor=False)
    except RuntimeError:
        raise ConfigError(
            "looking for a folder to keep copies in: this user has no home folder. Set XDG_CACHE_HOME to a folder that "
            "can be written."
        ) from None


def bucket_of(config: SearchConfig) -> Bucket | None:
    """Where in an object store artifacts lie; None if they lie in a folder."""
    place = parse_place(config.artifacts) if config.artifacts else None
    return place if isinstance(place, Bucket) else None


def artifacts_folder(config: SearchConfig) -> Path:
    """The folder that artifacts lie in on this host, or their copies.

    Raises:
        StudyError: the database is on a server and no place for artifacts was given.
    """
    place = parse_place(config.artifacts) if config.artifacts else None
    if isinstance(place, Bucket):
        return cache_home() / "artifacts" / digest_of(place.url)[:16]
    return artifact_folder(config.storage, place)


def inputs_folder(study: str, storage: str) -> Path:
    """The folder of a model and of data that were given in memory: beside an SQLite file, else in the current folder.

    Args:
        study: its name, which may be no name of a file.
        storage: URL of the database.
    """
    parent = Path("bitfront.inputs")
    if storage.startswith("sqlite"):
        artifacts = artifact_folder(storage)
        parent = artifacts.with_name(artifacts.name.removesuffix(".artifacts") + ".inputs")
    return parent.absolute() / digest_of(study)[:16]


def open_artifacts(config: SearchConfig, tell: Callable[[str], object] = lambda text: None) -> Artifacts:
    """The artifacts of a study; nothing is created yet.

    Args:
        tell: called with a sentence where it waits for another process of this host.

    Raises:
        StudyError: the database is on a server and no place for artifacts was given.
        ConfigError: what their object store needs is not installed.
    """
    bucket = bucket_of(config)
    return Artifacts(artifacts_folder(config), None if bucket is None else open_remote(bucket), tell)


def local_folder(config: SearchConfig) -> Path:
    """Where this host keeps locks and timing caches: beside the engines or the database file, else with its copies."""
    if bucket_of(config) is None:
        return artifacts_folder(config)
    if config.storage.startswith("sqlite"):
        return artifact_folder(config.storage)  # a lock has to lie where every process of the database looks
    return cache_home()
