"""TensorRT's timing cache, in memory and in a file: the times of tactics that its builder has measured."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

_LOCK_S = 60.0  # for other processes to write the file; each takes milliseconds


class TimingCache:
    """One cache object for all builds of a process, and, where the version can read it again, a file for the next.

    Each build begins with what other processes have written by then. What cannot be read again whole is not written:
    TensorRT 8.6 was seen to refuse a serialized cache with times of a region that Myelin compiled.

    The file only saves time. Once it cannot be read or written, builds continue what is in memory, `notes` say why,
    and this process leaves the file alone: trying again may take long, and one that cannot be read may hold more than
    would be written over it.
    """

    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)
        self._config: Any = None
        self._cache: Any = None
        self._kept = 0
        self._seen: tuple[int, int] | None = None  # time and size of the file as it was read or written last
        self.notes: tuple[str, ...] = ()

    def use_in(self, config: Any) -> None:
        if self._cache is None:
            self._config = config  # what made the cache has to outlive it
        self._learn_from_file()
        if self._cache is None:
            self._cache = config.create_timing_cache(b"")
        if not config.set_timing_cache(self._cache, ignore_mismatch=False):
            self._cache = config.create_timing_cache(b"")  # of another device or version: measured anew
            self._config = config
            config.set_timing_cache(self._cache, ignore_mismatch=False)

    def serialize(self) -> bytes | None:
        """What is known, for another process; None where it could not be read again."""
        if self._cache is None:
            return self._read_file() or None  # nothing was built in this process yet
        data = bytes(self._cache.serialize())
        return data if self._read(data) is not None else None

    def _read(self, data: bytes) -> Any:
        """The cache that was serialized so; None where this version takes only a part of it, or nothing."""
        cache = self._config.create_timing_cache(data)
        return cache if cache is not None and len(bytes(cache.serialize())) >= len(data) else None

    def _learn_from_file(self) -> None:
        """Take over what other processes wrote since this one looked last."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        data = self._read_file()
        cache = self._read(data) if data else None
        if self._cache is None:
            self._cache = cache
        elif cache is not None:
            self._cache.combine(cache, ignore_mismatch=False)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return None if status is None else (status.st_mtime_ns, status.st_size)

    def keep(self) -> None:
        """Write the file when something was added, together with what another process added meanwhile."""
        data = self.serialize() if self._file is not None else None
        if self._file is None or data is None or len(data) == self._kept:
            return
        try:
            self._kept = self._merge_into(self._file, data)
            self._seen = self._stamp()
        except (OSError, NotImplementedError) as error:  # the latter is filelock's, where files cannot be locked
            self._give_up("kept", error)

    def _read_file(self) -> bytes:
        """What the file holds; nothing if there is none or it cannot be read."""
        try:
            return self._file.read_bytes() if self._file is not None else b""
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._give_up("read", error)
            return b""

    def _merge_into(self, file: Path, data: bytes) -> int:
        """How many bytes the file has then."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=_LOCK_S, mode=0o666):  # other users must be able to open it too
            other = self._read(file.read_bytes()) if file.exists() else None
            if other is not None:
                self._cache.combine(other, ignore_mismatch=False)
                data = self.serialize() or data
            _replace(file, data)
        return len(data)

    def _give_up(self, what: str, error: Exception) -> None:
        self.notes = (f"timing-cache: not {what}: {error}",)
        self._file = None


def _replace(file: Path, data: bytes) -> None:
    """Give a file another content, whole or not at all."""
    partial = file.with_suffix(".partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, file)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
