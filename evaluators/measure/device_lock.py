"""The lock that keeps two processes from measuring on a device at the same time."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from evaluators.stopwatch import time_spent
from search.errors import RunError

OnWait = Callable[["int | None"], object]

_SOON_S = 0.5  # a device that is free within this is not waited for


class DeviceBusyError(RunError):
    """Another process has kept the device's latency lock for too long, or the lock file cannot be used."""


@contextmanager
def device_lock(device: str, timeout_s: float = 600.0, on_wait: OnWait = lambda pid: None) -> Iterator[None]:
    """Keep other processes of this machine, of any user, from measuring on a device at the same time.

    A file `bitfront-<device>.lock` in the system's folder for temporary files is locked; the kernel lets go of it
    when the process dies, however it dies. Not reentrant. Whoever waits first is next: it holds a second file,
    `bitfront-<device>.next.lock`, meanwhile, so that a process which measures again and again cannot overtake it.

    Args:
        device: name of the device with its index, for example `cuda:0` or `cpu`.
        timeout_s: how long to wait for another process; negative: for ever.
        on_wait: called where another process has the device, and it takes more than a moment to get it; with the id of
            that process, None where the system does not tell it.

    Raises:
        DeviceBusyError: another process held it all that time, or the file cannot be opened.
    """
    path = Path(tempfile.gettempdir()) / f"bitfront-{re.sub(r'[^A-Za-z0-9_.-]+', '_', device)}.lock"
    # Other users must be able to open them too.
    lock, turn = (filelock.FileLock(file, mode=0o666) for file in (path, path.with_suffix(".next.lock")))
    try:
        with time_spent("wait"):
            _acquire_in_turn(lock, turn, timeout_s, lambda: on_wait(_holder(path)))
    except filelock.Timeout:
        raise DeviceBusyError(
            f"waited {timeout_s:g} s to measure latency on {device}: {_process_text(_holder(path))} holds {path}. "
            "Wait for the other process, or end it."
        ) from None
    except OSError as error:
        raise DeviceBusyError(
            f"the lock file {path} of device {device} cannot be used: {error}. "
            "Remove it, or set TMPDIR of every bitfront process to one folder that all of them can write."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_file(path: Path, on_wait: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of a file, however long another process has it; the kernel lets go of it when the process dies.

    Args:
        on_wait: called where it takes more than a moment; with `process 4711`, or `another process` where the system
            does not tell which.

    Raises:
        OSError: the file cannot be opened.
    """
    lock = filelock.FileLock(path)
    _acquire(lock, -1, lambda: on_wait(_process_text(_holder(path))))
    try:
        yield
    finally:
        lock.release()


def _acquire_in_turn(
    lock: filelock.BaseFileLock, turn: filelock.BaseFileLock, timeout_s: float, on_wait: Callable[[], object]
) -> None:
    """Acquire `lock` after everyone who waited before; both within `timeout_s`, or filelock.Timeout."""
    end = time.monotonic() + timeout_s
    _acquire(turn, timeout_s, on_wait)
    try:
        _acquire(lock, timeout_s if timeout_s < 0 else max(0.0, end - time.monotonic()), on_wait)
    finally:
        turn.release()


def _acquire(lock: filelock.BaseFileLock, timeout_s: float, on_wait: Callable[[], object]) -> None:
    """Acquire within `timeout_s`, for ever if that is negative, and call `on_wait` where it takes some time."""
    if 0 <= timeout_s <= _SOON_S:
        lock.acquire(timeout=timeout_s)
        return
    try:
        lock.acquire(timeout=_SOON_S)
    except filelock.Timeout:
        on_wait()
        lock.acquire(timeout=timeout_s if timeout_s < 0 else timeout_s - _SOON_S)


def _holder(path: Path) -> int | None:
    """The process that holds the lock of a file; None where the system does not tell: not on Linux, or in a container.

    A line of `/proc/locks` is `1: FLOCK  ADVISORY  WRITE 4711 08:02:131 0 EOF`, with the number of the file.
    """
    try:
        number = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    held = (line.split() for line in lines if "->" not in line)  # with an arrow it waits for the lock itself
    pids = [int(words[4]) for words in held if len(words) > 5 and words[5].endswith(f":{number}")]
    return next((pid for pid in pids if pid > 0), None)


def _process_text(pid: int | None) -> str:
    return "another process" if pid is None else f"process {pid}"


def holder_text(pid: int | None, device: str) -> str:
    """`process 4711, which measures on cpu`."""
    return f"{_process_text(pid)}, which measures on {device}"
