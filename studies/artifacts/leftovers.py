"""Removing artifacts that nothing needs: first the files, then their rows in the database.

What was cut off in between, and what killed processes put and never recorded, goes at the next join or deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from search.errors import ArtifactError
from studies.artifacts.folder import STALE_S, Artifacts, hash_of
from studies.store.store import Store


def drop(store: Store, artifacts: Artifacts, digests: Iterable[str]) -> None:
    """Remove those of these artifacts that nothing refers to.

    Raises:
        ArtifactError: a file could not be removed; it and the rest go at the next `clear`.
    """
    for digest in digests:
        store.files.forget(digest, artifacts.remove)


def clear(store: Store, artifacts: Artifacts, *, own: bool) -> None:
    """Remove what deletions left that were cut off, and what killed processes left.

    Studies of one database may keep their artifacts in several places, so what is not in this one is left alone.

    Args:
        own: the folder was made for this database alone: files that it does not know go too, once they are old.

    Raises:
        ArtifactError: a file could not be removed.
    """
    artifacts.remove_half_written()
    drop(store, artifacts, [digest for digest in sorted(store.files.find_unused(STALE_S)) if digest in artifacts])
    old = artifacts.old() if own and artifacts.remote is None else frozenset()
    known = {record.digest for record in store.files.all()} if old else frozenset()
    for digest in sorted(old - known):
        store.files.forget(digest, artifacts.remove_old)


@contextmanager
def kept_engine(store: Store, artifacts: Artifacts, path: Path | None) -> Iterator[str | None]:
    """Move an engine to the artifacts; its digest, None for none, is to be recorded inside. Where that fails, it goes.

    Raises:
        ArtifactError: as `Artifacts.put_file`.
    """
    if path is None:
        yield None
        return
    try:
        digest, size_bytes = _look_at(path)
        store.files.add(digest, "engine", size_bytes)  # first, so that it is not lost sight of when we are killed
        try:
            artifacts.put_file(path, "engine")
            yield digest
        except BaseException:
            with suppress(Exception):  # the error that brought us here says more, and `clear` finds it
                drop(store, artifacts, [digest])
            raise
        # Between our putting and recording it another study that had the same engine may have let go of it; or since
        # then somebody of ours, who knows that nobody needs it.
        if not artifacts.is_shared(digest) and not store.files.forget(digest, artifacts.remove):
            artifacts.share(path, "engine")
    finally:
        path.unlink(missing_ok=True)


def _look_at(path: Path) -> tuple[str, int]:
    """Digest and size in bytes of an engine."""
    try:
        with path.open("rb") as file:
            return hash_of(file), path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"Could not read the engine {path} to keep it: {error.strerror}.") from error
