"""Temporary folders that go with the process that made them, also where that is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "bitfront-run-"
_NEW = ".new-"  # within a moment such a folder is locked and has its name
_NEW_FOR_S = 3600.0


@contextmanager
def held_folder(parent: Path | None = None, prefix: str = _PREFIX) -> Iterator[Path]:
    """A new folder, which is removed at the end, and those of processes that were killed.

    The process holds a lock on its folder, which the kernel frees when the process dies, however it dies. So it does
    not matter in which container the others run, as long as they see the same folder and the same kernel.

    Args:
        parent: where it is made; None for the system's folder of temporary files.
        prefix: of its name. All folders with it are this function's.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _sweep(place, prefix)
    new = Path(tempfile.mkdtemp(prefix=f"{_NEW}{prefix}", dir=place))
    lock = _lock(new)  # before it has the name by which it can be swept
    folder = new.rename(place / new.name.removeprefix(_NEW))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _sweep(place: Path, prefix: str) -> None:
    old = time.time() - _NEW_FOR_S
    for folder in (*place.glob(f"{prefix}*"), *place.glob(f"{_NEW}{prefix}*")):
        with contextlib.suppress(OSError):  # somebody else removed it just now
            there = folder.lstat()
            if there.st_uid != os.geteuid() or (folder.name.startswith(_NEW) and there.st_mtime > old):
                continue
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where another process holds it, or it is no folder."""
    import fcntl

    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    return None
