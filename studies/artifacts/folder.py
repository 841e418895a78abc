"""Artifacts: files named by the SHA-256 of their content, such as engines, ranges, models and data.

They lie in a folder, or in an object store with a folder of this host before it. Several processes may put and read at
once: a file appears under its digest whole or not at all, and equal content is one file. What is needed is known to the
database; artifacts only keep it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from search.errors import ArtifactError

if TYPE_CHECKING:
    from studies.artifacts.buckets import Remote

CHUNK_BYTES = 1 << 20
STALE_S = 3600.0  # a temporary file this old belongs to a process that was killed, a copy this old is in no use
DIGEST = re.compile(r"[0-9a-f]{64}")
TEMPORARY = ".tmp-"
_FETCHING = "fetching.lock"


class DamagedError(ArtifactError):
    """The content of an artifact is not what was stored."""


class Artifacts:
    """A content-addressed folder, or an object store and this host's copies of what it used from there.

    A folder is made by the first `put`, that of copies by the first use too; reading a folder never makes it.

    Args:
        folder: where the files lie, or the copies.
        remote: what is put goes there too, and what `folder` lacks comes from there.
        tell: called with a sentence where it waits for another process.
    """

    def __init__(
        self, folder: Path, remote: Remote | None = None, tell: Callable[[str], object] = lambda text: None
    ) -> None:
        self.folder = folder
        self.remote = remote
        self._tell = tell

    @property
    def place(self) -> str:
        """Where artifacts lie, for messages."""
        return str(self.folder) if self.remote is None else self.remote.bucket.url

    def put_file(self, path: Path, kind: str) -> str:
        """Copy a file in; its digest.

        Args:
            kind: what it is, in one word, for messages: `engine`, `ranges`.

        Raises:
            ArtifactError: the file cannot be read, the folder cannot be written or is full, or the object store fails;
                nothing half-written stays.
        """
        try:
            with path.open("rb") as source:
                return self._put(iter(lambda: source.read(CHUNK_BYTES), b""), kind)
        except OSError as error:
            raise ArtifactError(f"Could not read the {kind} {path} to keep it: {_reason(error)}.") from error

    def put_bytes(self, data: bytes, kind: str) -> str:
        """Store bytes; their digest. Raises as `put_file`."""
        return self._put(iter((data,)), kind)

    def is_shared(self, digest: str) -> bool:
        """Whether it is where the other hosts look: in the object store if there is one, whatever copies are here."""
        return self.remote.has(digest) if self.remote is not None else self._path(digest).is_file()

    def share(self, path: Path, kind: str) -> str:
        """As `put_file` for a large file that stays where it is: copied or sent only where it lacks; no copy is kept
        before an object store."""
        try:
            with path.open("rb") as source:
                digest = hash_of(source)
                if self.is_shared(digest):
                    return digest
                if self.remote is None:
                    return self.put_file(path, kind)
                source.seek(0)
                self.remote.write(digest, source)
                return digest
        except OSError as error:
            raise ArtifactError(f"Could not read the {kind} {path} to keep it: {_reason(error)}.") from error

    def path(self, digest: str) -> Path:
        """Where the file lies on this host; its content is checked only where it comes from the object store now.

        Raises:
            ArtifactError: it is not there, or its content is not what was stored.
        """
        path = self._path(digest)
        if not path.is_file() and self.remote is not None:
            self._fetch(digest)
        if not path.is_file():
            raise self._missing_error(digest)
        return path

    def copy(self, digest: str, target: Path) -> None:
        """Write the file's content to a path of this host, checked while it is written.

        Raises:
            ArtifactError: as `path`, or the target cannot be written; nothing half-written stays.
        """
        with _fill_beside(target) as temporary:
            self._receive(digest, temporary)

    def __contains__(self, digest: str) -> bool:
        return self._path(digest).is_file() or (self.remote is not None and self.remote.has(digest))

    def is_whole(self, digest: str) -> bool:
        """Whether it is here, or can be fetched, as it was stored. What is damaged is removed: then it is gone, and not
        found again and again.

        Raises:
            ArtifactError: it cannot be read, or not be removed.
        """
        if digest not in self:
            return False
        try:
            with self.open(digest):
                return True
        except DamagedError:
            self.remove(digest)
            return False

    @contextmanager
    def open(self, digest: str) -> Iterator[BinaryIO]:
        """The open file, at its start, after all of it was read and found to match its digest.

        Raises:
            ArtifactError: it is not there, cannot be read, or its content is not what was stored.
        """
        if self.remote is not None:
            self._drop_damaged(digest)
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
        path = self._path(digest)
        if self.remote is not None:
            self.remote.remove(digest)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"Could not remove artifact {digest} from {self.folder}: {_reason(error)}.") from error

    def old(self) -> frozenset[str]:
        """Digests in the folder whose files were put there so long ago that who put them has recorded them or died.

        Raises:
            ArtifactError: the folder cannot be read.
        """
        return frozenset(path.name for path in self._old_files() if DIGEST.fullmatch(path.name))

    def remove_old(self, digest: str) -> None:
        """`remove` what is still as `old` said, and was not put again since."""
        if digest in self.old():
            self.remove(digest)

    def remove_half_written(self) -> None:
        """Delete what processes left in the folder that were killed while they wrote.

        Raises:
            ArtifactError: a file could not be deleted.
        """
        self._delete([path for path in self._old_files() if path.name.startswith(TEMPORARY)])

    def prune_copies(self, keep: Collection[str]) -> None:
        """Delete this host's copies of what an object store has and `keep` does not name, unless they are young: those
        may be in use. The object store keeps all it has.

        Raises:
            ArtifactError: a file could not be deleted.
        """
        if self.remote is not None:
            self._delete([self.folder / digest for digest in self.old() - set(keep)])

    def _old_files(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if _is_old(path)] if self.folder.is_dir() else []
        except OSError as error:
            raise ArtifactError(f"Could not clean up {self.folder}: {_reason(error)}.") from error

    def _delete(self, paths: Sequence[Path]) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"Could not clean up {self.folder}: {_reason(error)}.") from error

    def _path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise ArtifactError(f"{digest!r} is not an artifact digest: expected 64 hex digits.")
        return self.folder / digest

    def _put(self, pieces: Iterator[bytes], kind: str) -> str:
        temporary = self.folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            digest = _write(temporary, pieces)
            os.replace(temporary, self.folder / digest)
            _sync_folder(self.folder)
            # Let the object store have a file of the folder, unless it has it.
            if self.remote is not None and not self.remote.has(digest):
                with (self.folder / digest).open("rb") as file:
                    self.remote.write(digest, file)
            return digest
        except OSError as error:
            raise ArtifactError(
                f"Could not keep the {kind} in {self.folder}: {_reason(error)}. Free some space. Then try again."
            ) from error
        finally:
            with suppress(OSError):  # the error that brought us here says more
                temporary.unlink(missing_ok=True)

    def _fetch(self, digest: str) -> None:
        """Let the folder have what the object store has; one of several processes of this host does it."""
        from evaluators.measure.device_lock import locked_file

        def tell(holder: str) -> None:
            self._tell(f"waiting for {holder}, which fetches artifacts from {self.place} to {self.folder}")

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked_file(self.folder / _FETCHING, tell):
                if not self._path(digest).is_file():
                    self.copy(digest, self._path(digest))
        except OSError as error:
            raise ArtifactError(f"Could not keep artifact {digest} in {self.folder}: {_reason(error)}.") from error

    def _receive(self, digest: str, out: Path) -> None:
        """Write an artifact to a new file and see that it is what was stored."""
        path = self._path(digest)
        with out.open("xb") as target:
            if path.is_file():
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target, CHUNK_BYTES)
            elif self.remote is None or not self.remote.read(digest, target):
                raise self._missing_error(digest)
        with out.open("rb") as file:
            self._verify(file, digest)

    def _missing_error(self, digest: str) -> ArtifactError:
        return ArtifactError(
            f"Artifact {digest} is not in {self.place}: it was removed or the folder was moved. "
            "Name the folder that holds it, or let it be built again."
        )

    def _drop_damaged(self, digest: str) -> None:
        """Let go of this host's copy where it is not what the object store has: it is fetched again."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                good = hash_of(file) == digest
            if not good:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ArtifactError(f"Could not read artifact {digest} in {self.folder}: {_reason(error)}.") from error

    def _verify(self, file: BinaryIO, digest: str) -> None:
        try:
            content_digest = hash_of(file)
            file.seek(0)
        except OSError as error:
            raise ArtifactError(f"Could not read artifact {digest} in {self.place}: {_reason(error)}.") from error
        if content_digest != digest:
            raise DamagedError(
                f"Artifact {digest} in {self.place} was changed or damaged: its content has digest {content_digest}. "
                "Remove it and let it be built again."
            )


def hash_of(file: BinaryIO) -> str:
    """SHA-256 of what is left to read of a file, as 64 hex digits."""
    sha256 = hashlib.sha256()
    while piece := file.read(CHUNK_BYTES):
        sha256.update(piece)
    return sha256.hexdigest()


@contextmanager
def _fill_beside(target: Path) -> Iterator[Path]:
    """A new file beside `target` that takes its place at the end, or goes."""
    temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise ArtifactError(f"Could not write {target}: {_reason(error)}. Free some space, then try again.") from error
    finally:
        with suppress(OSError):  # the error that brought us here says more
            temporary.unlink(missing_ok=True)


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


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > STALE_S
    except FileNotFoundError:  # another process was faster
        return False


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
