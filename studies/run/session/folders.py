"""Checks of the folders that a run writes to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from search.errors import ArtifactError, ConfigError
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.artifacts.locations import bucket_of, open_artifacts
from studies.options.config import SearchConfig


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
