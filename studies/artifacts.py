"""The artifact store: a folder of files named by the SHA-256 of their content. Engines, ranges and profiles live here.

Several processes may put and read at once: a file appears under its digest whole or not at all, and equal content is
one file. What is needed is known to the database; this folder only keeps it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from search.errors import ArtifactError

CHUNK_BYTES = 1 << 20
STALE_S = 3600.0  # a temporary file this old belongs to a process that was killed
DIGEST = re.compile(r"[0-9a-f]{64}")
TEMPORARY = ".tmp-"


class Artifacts:
    """A content-addressed folder. The folder is made by the first `put`; reading never makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put_file(self, path: Path, kind: str) -> str:
        """Copy a file in; its digest.

        Args:
            kind: what it is, in one word, for messages: `engine`, `ranges`.

        Raises:
            ArtifactError: the file cannot be read, or the folder cannot be written or is full; nothing half-written
                stays.
        """
        try:
            with path.open("rb") as source:
                return self._put(iter(lambda: source.read(CHUNK_BYTES), b""), kind)
        except OSError as error:
            raise ArtifactError(f"Could not read the {kind} {path} to keep it: {_reason(error)}.") from error

    def put_bytes(self, data: bytes, kind: str) -> str:
        """Store bytes; their digest. Raises as `put_file`."""
        return self._put(iter((data,)), kind)

    def path(self, digest: str) -> Path:
        """Where the file lies; ArtifactError when it is not there. Its content is not checked."""
        path = self._path(digest)
        if not path.is_file():
            raise ArtifactError(
                f"Artifact {digest} is not in {self.folder}: it was removed or the folder was moved. "
                "Name the folder that holds it, or let it be built again."
            )
        return path

    def __contains__(self, digest: str) -> bool:
        return self._path(digest).is_file()

    @contextmanager
    def open(self, digest: str) -> Iterator[BinaryIO]:
        """The open file, at its start, after all of it was read and found to match its digest.

        Raises:
            ArtifactError: it is not there, cannot be read, or its content is not what was stored.
        """
        path = self.path(digest)
        try:
            file = path.open("rb")
        except OSError as error:
            raise ArtifactError(f"Could not open artifact {path}: {_reason(error)}.") from error
        with file:
            self._verify(file, digest)
            yield file

    def read_bytes(self, digest: str) -> bytes:
        """The content, checked as in `open`."""
        with self.open(digest) as file:
            return file.read()

    def remove(self, digest: str) -> None:
        """Delete the file; nothing happens when it is gone already."""
        try:
            self._path(digest).unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"Could not remove artifact {digest} from {self.folder}: {_reason(error)}.") from error

    def prune(self, keep: Collection[str]) -> int:
        """Delete every artifact that is not in `keep` and what killed processes left half-written.

        Call it while no evaluation of any study of the database is being recorded: an engine is put here before the
        database knows of it.

        Returns:
            Bytes that were freed.

        Raises:
            ArtifactError: a file could not be deleted; run it again when the cause is gone.
        """
        try:
            paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
            return sum(_delete(path) for path in paths if _unwanted(path, keep))
        except OSError as error:
            raise ArtifactError(f"Could not clean up {self.folder}: {_reason(error)}.") from error

    def _path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise ArtifactError(f"{digest!r} is no artifact digest: expected 64 hex digits.")
        return self.folder / digest

    def _put(self, pieces: Iterator[bytes], kind: str) -> str:
        temporary = self.folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            digest = _write(temporary, pieces)
            os.replace(temporary, self.folder / digest)
            _sync_folder(self.folder)
            return digest
        except OSError as error:
            raise ArtifactError(
                f"Could not keep the {kind} in {self.folder}: {_reason(error)}. "
                "Free some space or name another folder, then `resume`."
            ) from error
        finally:
            with suppress(OSError):  # the error that brought us here says more
                temporary.unlink(missing_ok=True)

    def _verify(self, file: BinaryIO, digest: str) -> None:
        found = hashlib.sha256()
        try:
            while piece := file.read(CHUNK_BYTES):
                found.update(piece)
            file.seek(0)
        except OSError as error:
            raise ArtifactError(f"Could not read artifact {digest} in {self.folder}: {_reason(error)}.") from error
        if found.hexdigest() != digest:
            raise ArtifactError(
                f"Artifact {digest} in {self.folder} was changed or damaged: its content has digest "
                f"{found.hexdigest()}. Remove the file and let it be built again."
            )


def _write(path: Path, pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the new name outlast a power cut, as its content does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwanted(path: Path, keep: Collection[str]) -> bool:
    if path.name.startswith(TEMPORARY):
        return time.time() - path.stat().st_mtime > STALE_S
    return DIGEST.fullmatch(path.name) is not None and path.name not in keep


def _delete(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
