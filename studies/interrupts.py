"""Handling Ctrl-C and SIGTERM, which may come at any moment and be lost or turned into another error.

A transaction is brought to its end first: SQLAlchemy, interrupted in the middle of its own book-keeping, may leave a
connection behind that holds a lock, and what is cleaned up after that waits for it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_LONGEST_S = 5.0  # that an interrupt is held back, of a server that does not answer say
_SOON_S = 0.01  # once the finalizer that dropped one is over


class _Now:
    """The state of the main thread, the only one that signals interrupt.

    Attributes:
        depth: how many blocks it is in that hold interrupts back.
        since: when the one came that is held back.
        cut: whether the outermost of them is being cut off, having taken too long.
        dropping: whether it is being told of one that was dropped, where another would be dropped too.
        number: of the last signal that came.
    """

    depth = 0
    since: float | None = None
    cut = False
    dropping = False
    number = signal.SIGINT


def interrupt(number: int, frame: FrameType | None = None) -> None:
    """A signal handler: raises KeyboardInterrupt, after what is going on where that must not be cut off."""
    _Now.number = signal.Signals(number)
    now = time.monotonic()
    if _Now.dropping:
        _send_after(_SOON_S, None)
        return
    if _Now.depth and not _Now.cut:
        if _Now.since is None:
            _Now.since = now
            _send_after(_LONGEST_S, now)
        if now - _Now.since < 0.9 * _LONGEST_S:  # a timer may be early
            return
        _Now.cut = True
    _Now.since = None
    raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """Let an interrupt that `interrupt` handles come after this block, but no more than a few seconds late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Now.depth += 1
    try:
        yield
    finally:
        _Now.depth -= 1
        _Now.cut = _Now.cut and _Now.depth > 0
        if not _Now.depth and _Now.since is not None:
            _Now.since = None
            raise KeyboardInterrupt


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM by `interrupt`; raise again what a finalizer or a weak reference's callback dropped.

    In another thread than the main one it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A shell lets what it starts in the background ignore Ctrl-C.
    ours = [number for number, handler in before.items() if handler in (signal.default_int_handler, signal.SIG_DFL)]
    former_hook = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            former_hook(dropped)
            return
        _Now.dropping = True
        try:
            _send_after(_SOON_S, None)
        finally:
            _Now.dropping = False

    sys.unraisablehook = hook
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = former_hook
        for number in ours:
            signal.signal(number, before[number])


def came_of_interrupt(error: BaseException | None, before: BaseException | None = None) -> bool:
    """Whether an error came of an interrupt: was raised while that was on its way.

    Args:
        before: what was being handled already when the work began that raised the error.
    """
    while error is not None and error is not before:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _send_after(seconds: float, since: float | None) -> None:
    timer = threading.Timer(seconds, _send, (since,))
    timer.daemon = True
    timer.start()


def _send(since: float | None) -> None:
    """Send the last signal again, where it is handled here; of one that was held back, where it still is."""
    main = threading.main_thread().ident
    if main is not None and _Now.since == since and signal.getsignal(_Now.number) is interrupt:
        signal.pthread_kill(main, _Now.number)
