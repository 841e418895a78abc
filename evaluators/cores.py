"""CPU cores: the number that a process may use, and the one that an evaluator process is bound to."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Sequence, Set
from pathlib import Path

import psutil

# Of one session that measures nothing. Its work is many small operators, some of which run on one thread whatever there
# is. With a tenth of such work 8 threads are 4.7 times as fast as one, and 64 no more than 8.8 times (Amdahl's law).
MOST_THREADS = 8
# An entry of such a session: threads without work sleep. By default they look for it all the time, on cores of others.
PATIENT = ("session.intra_op.allow_spinning", "0")

_held: list[int] = []  # descriptors of this process's locks, which the kernel lets go of when it dies


def pin_to_one_cpu() -> int | None:
    """Bind this thread, and those it starts from now on, to an allowed CPU.

    Of those that no other process's evaluators keep, the least busy one right now, first those that share no core with
    one that is kept; where all are kept, the least busy of all. Evaluator processes of one parent share a CPU, so that
    their latencies can be compared. Call it in the thread that measures, before it opens sessions. Ties go to the
    highest number, since systems put interrupts on the lowest. Where one CPU is allowed already, or the system cannot
    bind, nothing is done.

    Returns:
        Number of the CPU chosen; None if nothing was done.
    """
    if sys.platform != "linux":
        return None
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        return None
    busy = dict(enumerate(psutil.cpu_percent(interval=0.2, percpu=True)))
    kept = _kept_cpus(allowed)
    order = sorted(allowed, key=lambda cpu: (bool(_siblings(cpu) & kept), busy.get(cpu, 0.0), -cpu))
    chosen = _kept_by_parent(order)
    if chosen is None:
        chosen = next((cpu for cpu in order if _keep(cpu)), order[0])
    os.sched_setaffinity(0, {chosen})
    return chosen


def usable_processors() -> int:
    """How many this process may run on: workers that share a host are each bound to a share of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile_threads() -> int:
    """How many threads a session is given that runs beside no measurement: no more than make it faster."""
    return min(MOST_THREADS, usable_processors())


def spare_cpus() -> frozenset[int]:
    """CPUs for work beside a measuring thread: none that it or another process's evaluators are bound to.

    A process that measures on a CPU is bound to one, its parent is not. Where nothing else is left, the thread's own.
    Empty where the system cannot bind.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    mine = os.sched_getaffinity(0)
    others = os.sched_getaffinity(os.getppid()) - mine
    if len(mine) > 1 or not others:
        return frozenset(mine)
    kept = _kept_cpus(others)
    return frozenset(others - kept) or frozenset(mine)


def bind_thread(cpus: Set[int]) -> None:
    """Let this thread run on these CPUs alone; on none in particular where there are none."""
    if cpus:
        os.sched_setaffinity(0, cpus)


def _siblings(cpu: int) -> set[int]:
    """The other CPUs of its core, which share its units and caches; none where the system does not tell."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
        ends = [part.partition("-") for part in text.strip().split(",")]
        return {each for low, _, high in ends for each in range(int(low), int(high or low) + 1)} - {cpu}
    except (OSError, ValueError):
        return set()


def _kept_cpus(cpus: Set[int]) -> set[int]:
    """CPUs that a process keeps for its evaluators, by the list of locks: to try a lock would be to hold it."""
    try:
        held = {
            line.split()[-3].rpartition(":")[2] for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        }
    except (OSError, IndexError):
        return set()
    return {cpu for cpu in cpus if Path(_path(cpu)).exists() and str(_path(cpu).stat().st_ino) in held}


def _keep(cpu: int) -> bool:
    """Lock a CPU for this process and its siblings until this process ends; False where another one has it.

    A file that cannot be used, say another user's, locks nothing: then its CPU is passed over.
    """
    import fcntl

    with contextlib.suppress(OSError):
        descriptor = _open_lock(cpu)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, _parent_mark(), 0)
        except OSError:
            os.close(descriptor)
            raise
        _held.append(descriptor)
        return True
    return False


def _kept_by_parent(cpus: Sequence[int]) -> int | None:
    """The CPU that a sibling process, a child of the same parent, keeps."""
    import fcntl

    for cpu in cpus:
        with contextlib.suppress(OSError):
            descriptor = _open_plain(_path(cpu), os.O_RDONLY)
            try:
                # Only a file that names our parent is tried: a lock held for a moment looks like one that is kept.
                if os.pread(descriptor, 64, 0) == _parent_mark():
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # nobody keeps it: what it says is old
            except BlockingIOError:
                return cpu
            finally:
                os.close(descriptor)
    return None


def _parent_mark() -> bytes:
    """The parent process as processes of all containers tell it apart, whose numbers may be the same."""
    return f"{os.getppid()} of {os.stat('/proc/self/ns/pid').st_ino}".encode()


def _open_lock(cpu: int) -> int:
    path = _path(cpu)
    with contextlib.suppress(FileNotFoundError):
        return _open_plain(path, os.O_RDWR)
    descriptor = _open_plain(path, os.O_RDWR | os.O_CREAT)
    os.fchmod(descriptor, 0o666)  # other users must be able to open it too
    return descriptor


def _open_plain(path: Path, flags: int) -> int:
    """Open a lock file; OSError for a link, or what is no file of its own: anybody may put one there."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    there = os.fstat(descriptor)
    if not stat.S_ISREG(there.st_mode) or there.st_nlink != 1:
        os.close(descriptor)
        raise OSError(f"{path} is no lock file")
    return descriptor


def _path(cpu: int) -> Path:
    return Path(tempfile.gettempdir()) / f"bitfront-cpu-{cpu}.lock"
