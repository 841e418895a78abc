"""The evaluator process: reads requests from one pipe, answers on another, ends when its keeper does.

Standard output and error are a log file; nothing is ever read back from them.
"""

from __future__ import annotations

import errno
import gc
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluators.engine import DeviceError, OutOfMemoryError
from evaluators.process import wire
from evaluators.process.job import Job, Limits
from search import errors
from search.errors import BitfrontError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def main(requests_fd: int, answers_fd: int) -> None:
    """Serve until the request pipe closes.

    Every request is a line `{"method", "params"}`; the answers to it are any number of `{"event", "value"}` lines and
    one `{"result"}` or `{"error", "message", "replace"}` line; `replace` asks the keeper for a new process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the keeper's to handle
    gc.freeze()  # imported modules stay: whoever measures memory, and collects first, need not look through them
    for fd in (requests_fd, answers_fd):
        os.set_inheritable(fd, False)  # what users' code starts has no business on the line
    answers = os.fdopen(answers_fd, "w", encoding="utf-8")
    lines = _read_ahead(requests_fd)
    service = _Service(lambda event, value: _send(answers, wire.dumps({"event": event, "value": value})))
    while True:
        _send(answers, _answer(service, wire.loads(lines.get())))


def _read_ahead(requests_fd: int) -> queue.Queue[str]:
    """Read requests in a thread of their own, so that a closed pipe ends the process even in the middle of a build."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        with os.fdopen(requests_fd, encoding="utf-8") as requests:
            for line in requests:
                lines.put(line)
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)  # with whatever users' code has started
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _send(answers: Any, line: str) -> None:
    answers.write(line + "\n")
    answers.flush()


def _answer(service: _Service, request: dict[str, Any]) -> str:
    try:
        method: Callable[..., Any] = getattr(service, request["method"])
        return wire.dumps({"result": method(**request["params"])})
    except (DeviceError, OutOfMemoryError, MemoryError) as error:
        return _failed(type(error).__name__, str(error) or "out of memory", replace=True)
    except BitfrontError as error:
        return _failed(_class_of(error), str(error))
    except (Exception, SystemExit) as error:
        with suppress(OSError):  # the disk may be full
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return _failed("OutOfMemoryError", str(error), replace=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return _failed("ArtifactError", f"writing a file: {error}. Make room, then resume the study.")
        return _failed("Unexpected", f"{type(error).__name__}: {error}")


def _failed(error: str, message: str, *, replace: bool = False) -> str:
    return wire.dumps({"error": error, "message": message, "replace": replace})


def _class_of(error: BitfrontError) -> str:
    """The nearest class that the keeper knows too; errors of single modules are named by what they are a kind of."""
    named = (cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
    found = next(named)
    return found if found != "BitfrontError" else "Unexpected"


class _Service:
    """The methods that a keeper may call, with plain parameters."""

    def __init__(self, report: Callable[[str, Any], None]) -> None:
        self._report = report
        self._evaluator: Any = None

    def open(self, job: dict[str, Any]) -> dict[str, Any]:
        from evaluators.cores import pin_to_one_cpu
        from evaluators.process.evaluator import Evaluator

        parsed = Job(**job)
        evaluator = Evaluator(parsed, self._report)
        if evaluator.target.relative and int(parsed.options.get("threads", 1)) == 1:
            pin_to_one_cpu()  # before the first session: its threads stay where they are started
        self._evaluator = evaluator
        described: dict[str, Any] = evaluator.describe()
        return described

    def adopt(self, changes: dict[str, Any]) -> None:
        self._evaluator.adopt(changes)

    def try_out(self) -> None:
        self._evaluator.try_out()

    def knobs(self) -> dict[str, str]:
        return dict(self._evaluator.backend.knobs())

    def calibration_key(self, method: str, cache: dict[str, float] | None = None) -> str:
        return str(self._evaluator.calibration_key(method, cache))

    def calibrate(self, method: str, cache: dict[str, float] | None = None) -> Any:
        return self._evaluator.calibrate(method, cache)

    def evaluate(self, assignment: Any, out: str, limits: dict[str, Any], profile: bool = False) -> Any:
        return self._evaluator.evaluate(assignment, Path(out), Limits(**limits), profile=profile)

    def finalists(self, engines: dict[str, str], rounds: int, reference_ms: float | None = None) -> Any:
        return self._evaluator.finalists(engines, rounds, reference_ms)

    def time_together(self, engines: dict[str, str], rounds: int, reference_ms: float | None = None) -> Any:
        return self._evaluator.time_together(engines, rounds, reference_ms)

    def build(self, assignment: Any, out: str) -> None:
        self._evaluator.build(assignment, Path(out))

    def first_build(self, assignment: Any) -> float:
        return float(self._evaluator.first_build(assignment))

    def time_again(self, assignment: Any, out: str, reference_ms: float | None = None) -> Any:
        return self._evaluator.time_again(assignment, Path(out), reference_ms)

    def time_engine(self, engine: str, reference_ms: float | None = None) -> Any:
        return self._evaluator.time_engine(Path(engine), reference_ms)

    def load_engine(self, engine: str) -> None:
        self._evaluator.load_engine(Path(engine))

    def check_outputs(self, engine: str) -> Any:
        return self._evaluator.check_outputs(Path(engine))

    def profile(self, engine: str, count: int) -> Any:
        return self._evaluator.profile(Path(engine), count)

    def compare(self, engine: str, assignment: Any, groups: bool, samples: int) -> Any:
        return self._evaluator.compare(Path(engine), assignment, groups, samples)

    def sensitivity(self, seconds: float, pairs: Any = None, placement: str | None = None) -> Any:
        return self._evaluator.sensitivity(seconds, pairs, placement)

    def compare_latency(self, engine: str, measured: str, rounds: int) -> Any:
        return self._evaluator.compare_latency(Path(engine), Path(measured), rounds)

    def tensor_types(self, engine: str) -> Any:
        return self._evaluator.tensor_types(Path(engine))

    def export_onnx(self, assignment: Any, out: str) -> None:
        self._evaluator.export_onnx(assignment, Path(out))

    def export_timing_cache(self, out: str) -> bool:
        return bool(self._evaluator.export_timing_cache(Path(out)))
