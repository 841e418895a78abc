"""TensorRT's timing cache, in memory and in a file: the times of tactics that its builder has measured."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from evaluators.backends.tensorrt import api

_LOCK_S = 60.0  # for other processes to write the file; each takes milliseconds


class TimingCache:
    """One cache object for all builds of a process, and, where the version can read it again, a file for the next.

    TensorRT 8.6 refuses a cache that was serialized in between, so there it lives in memory only.

    The file only saves time. Once it cannot be read or written, builds continue what is in memory, `notes` say why,
    and this process leaves the file alone: trying again may take long, and one that cannot be read may hold more than
    would be written over it.
    """

    def __init__(self, trt: Any, file: Path | None) -> None:
        self._file = file if api.keeps_timing_cache(trt) else None
        self._usable = api.keeps_timing_cache(trt)
        self._config: Any = None
        self._cache: Any = None
        self._kept = 0
        self.notes: tuple[str, ...] = ()

    def use_in(self, config: Any) -> None:
        if self._cache is None:
            self._cache = config.create_timing_cache(self._read_file())
            self._config = config  # what made the cache has to outlive it
        if not config.set_timing_cache(self._cache, ignore_mismatch=False):
            self._cache = config.create_timing_cache(b"")  # of another device or version: measured anew
            self._config = config
            config.set_timing_cache(self._cache, ignore_mismatch=False)

    def serialize(self) -> bytes | None:
        if self._cache is None:
            return self._read_file() or None  # nothing was built in this process yet
        return bytes(self._cache.serialize()) if self._usable else None

    def keep(self) -> None:
        """Write the file when something was added, together with what another process added meanwhile."""
        data = self.serialize() if self._file is not None else None
        if self._file is None or data is None or len(data) == self._kept:
            return
        try:
            self._kept = self._merge_into(self._file, data)
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
            if file.exists():
                other = self._config.create_timing_cache(file.read_bytes())
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
