"""The worker processes of one host, one per slot: starting, watching, restarting and ending them.

Workers are `bitfront worker` like any other. They are in sessions of their own, so Ctrl-C reaches their parent alone,
which ends them. When the parent is gone without a word, they notice at a pipe, and end by themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from evaluators.process.child import python_path
from search.errors import InputError, RunError
from studies.options.slots import Slot, bound
from studies.run.stop import UnreachableLimitError
from studies.run_clock import for_workers
from studies.store.suggestions import PROGRAM, program

# Not `-m`: that would put the current folder first, where a user's `search/` is not ours.
_BOOT = (
    "import json, os, sys; sys.path[:] = json.loads(os.environ.pop('BITFRONT_PATH')); "
    "import bitfront.cli.main as c; c.main()"
)
_LINE = "BITFRONT_FLEET"  # the descriptor at which a worker notices the end of its parent
_RESTARTS = 5  # of one slot in a row
_STEADY_S = 300.0  # a worker that ran for so long begins a new row
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_END_S = 30.0  # for what is under way to be given up in good order
_GRACE_S = 20.0  # the same, once the parent is gone
# Exit codes after which starting again would change nothing. One that was able to work here before is another case: it
# may have been refused by a database that is just being restarted.
_REFUSED, _INTERRUPTED = 2, 130


@dataclass
class _Post:
    """A slot, and the process that fills it now."""

    slot: Slot
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    deaths: int = 0
    again_at: float | None = 0.0
    log_offset: int = 0
    last: str = ""
    refused: bool = False  # before it worked at all
    outcome: str = field(default="", compare=False)

    @property
    def over(self) -> bool:
        """Whether nobody works here nor will."""
        return self.process is None and self.again_at is None


class Fleet:
    """Workers of one study on this host. A context manager: whatever happens, none is left at its end.

    Args:
        study: its name; it is there already.
        url: of its database, which workers get through their environment, where other users cannot read it.
        slots: one worker each.
        folder: for what workers print; new, and gone when all is over.
        note: told what workers say, and what becomes of them.
        target: fingerprint of the one that they work on; empty for whichever this host is.
    """

    def __init__(
        self,
        study: str,
        url: str,
        slots: Sequence[Slot],
        folder: Path,
        note: Callable[[str], None],
        target: str = "",
    ) -> None:
        self._study = study
        self._command = ["worker", study, *(["--target", target] if target else [])]
        self._environment = {**os.environ, "BITFRONT_STORAGE": url, "BITFRONT_PATH": json.dumps(python_path())}
        self._posts = [_Post(slot, folder / f"{number}.log") for number, slot in enumerate(slots)]
        self._note = note
        self._heard: set[str] = set()
        self._done = ""
        self._unreachable = ""

    def __enter__(self) -> Fleet:
        self._line, self._ours = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            os.close(self._ours)
            os.close(self._line)

    def look(self) -> bool:
        """Start who is due, hear what is said, see who has ended; whether somebody works or will again.

        Raises:
            InputError: all were refused before they worked, say by calibration.
            UnreachableLimitError: all have ended because FP32 itself misses a limit.
            RunError: all have ended, none of them because the study is done.
        """
        for post in self._posts:
            if post.process is None and post.again_at is not None and time.monotonic() >= post.again_at:
                self._start(post)
            self._hear(post)
            if post.process is not None and post.process.poll() is not None:
                self._hear(post)
                self._note_end(post, post.process.returncode)
        if not all(post.over for post in self._posts):
            return True
        if self._unreachable:
            raise UnreachableLimitError(self._unreachable)
        if not self._done:
            said = "\n".join(f"  {post.slot.name}: {post.outcome}" for post in self._posts)
            if all(post.refused for post in self._posts):
                raise InputError(f"running study {self._study!r}: every worker of this host was refused:\n{said}")
            raise RunError(f"running study {self._study!r}: every worker of this host has ended:\n{said}")
        return False

    @property
    def reason(self) -> str:
        """Why the first worker that was done was done, in its own words."""
        return self._done

    def end(self) -> None:
        """End all workers: they give up what they are at in good order, or are killed after a while, or at once when
        this is interrupted again."""
        left = [post.process for post in self._posts if post.process is not None]
        try:
            for process in left:
                process.terminate()
            deadline = time.monotonic() + _END_S
            for process in left:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in left:
                process.kill()  # nothing happens to those that have ended
                process.wait()
            for post in self._posts:
                post.process = post.again_at = None

    # -- one worker ------------------------------------------------------------------------------------------------

    def _start(self, post: _Post) -> None:
        post.again_at, post.started = None, time.monotonic()
        with post.log.open("ab") as log, bound(post.slot.cpus):
            post.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._line,),
                start_new_session=True,
                env={
                    **self._environment,
                    **for_workers(),
                    PROGRAM: program(),
                    **post.slot.environment,
                    _LINE: str(self._line),
                },
            )

    def _hear(self, post: _Post) -> None:
        """Pass on the lines that a worker wrote; what another one has said already, once."""
        if not post.log.exists():
            return
        with post.log.open("rb") as log:
            log.seek(post.log_offset)
            whole, newline, _ = log.read().rpartition(b"\n")
        post.log_offset += len(whole) + len(newline)
        for line in filter(None, whole.decode(errors="replace").splitlines()):
            if line.startswith("error: ") or not post.last.startswith("error: "):
                post.last = line
            if line.startswith(DONE):
                self._done = self._done or line.removeprefix(DONE)
            elif line.startswith(UNREACHABLE):
                self._unreachable = line.removeprefix(UNREACHABLE)
            elif line not in self._heard:
                self._heard.add(line)
                self._note(f"{post.slot.name}: {line}")

    def _note_end(self, post: _Post, code: int) -> None:
        ran_s = time.monotonic() - post.started
        post.process, post.outcome = None, f"{how(code)}{post.last and f': {post.last}'}"
        if code == 0:
            self._done = self._done or "the study is done"
        elif self._unreachable:  # a worker that is started again would end in the same way
            self._note(f"{post.slot.name}: the worker ended")
        elif code == _INTERRUPTED or (code == _REFUSED and not post.deaths):
            post.refused = code == _REFUSED
            self._note(f"{post.slot.name}: the worker ended with {how(code)} and is not started again")
        else:
            post.deaths = 1 if ran_s > _STEADY_S else post.deaths + 1
            self._again(post, how(code))

    def _again(self, post: _Post, how_it_ended: str) -> None:
        if post.deaths > _RESTARTS:
            self._note(
                f"{post.slot.name}: the worker ended with {how_it_ended} for the {post.deaths}th time, so it is not "
                "started again"
            )
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** (post.deaths - 1), _LONGEST_PAUSE_S)
        post.again_at = time.monotonic() + pause_s
        self._note(f"{post.slot.name}: the worker ended with {how_it_ended} and is started again")


DONE = "done: "
"""What a worker of a fleet writes before the reason why it is done."""
UNREACHABLE = "unreachable: "
"""What it writes before the message of an `UnreachableLimitError`, which is one line."""


def how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return known.get(-code, f"signal {-code}")


def follow() -> bool:
    """In a worker: end, as by Ctrl-C, when the parent that started it is gone. Whether there is such a parent."""
    line = os.environ.pop(_LINE, None)
    if line is None:
        return False
    os.set_inheritable(int(line), False)
    threading.Thread(target=_end_with_parent, args=(int(line),), name="bitfront-fleet", daemon=True).start()
    return True


def _end_with_parent(line: int) -> None:
    os.read(line, 1)  # nothing is ever written: this returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)
