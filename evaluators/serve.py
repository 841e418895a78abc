"""The evaluator process: reads requests from one pipe, answers on another, ends when its keeper does.

Standard output and error are a log file; nothing is ever read back from them.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluators import wire
from evaluators.backends.base import DeviceError, OutOfMemoryError
from evaluators.job import Job, Limits
from search.errors import BitfrontError


def main(requests_fd: int, answers_fd: int) -> None:
    """Serve until the request pipe closes.

    Every request is a line `{"method", "params"}`; the answers to it are any number of `{"event", "value"}` lines and
    one `{"result"}` or `{"error", "message", "replace"}` line; `replace` asks the keeper for a new process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the keeper's to handle
    answers = os.fdopen(answers_fd, "w", encoding="utf-8")
    lines = _read_ahead(requests_fd)
    service = _Service(lambda event, value: _send(answers, {"event": event, "value": value}))
    while True:
        request = lines.get()
        _send(answers, _answer(service, wire.loads(request)))


def _read_ahead(requests_fd: int) -> queue.Queue[str]:
    """Read requests in a thread of their own, so that a closed pipe ends the process even in the middle of a build."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        with os.fdopen(requests_fd, encoding="utf-8") as requests:
            for line in requests:
                lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _send(answers: Any, message: dict[str, Any]) -> None:
    answers.write(wire.dumps(message) + "\n")
    answers.flush()


def _answer(service: _Service, request: dict[str, Any]) -> dict[str, Any]:
    try:
        method: Callable[..., Any] = getattr(service, request["method"])
        return {"result": method(**request["params"])}
    except (DeviceError, OutOfMemoryError, MemoryError) as error:
        return {"error": type(error).__name__, "message": str(error) or "out of memory", "replace": True}
    except BitfrontError as error:
        return {"error": type(error).__name__, "message": str(error), "replace": False}
    except Exception as error:
        traceback.print_exc()
        return {"error": "Unexpected", "message": f"{type(error).__name__}: {error}", "replace": False}


class _Service:
    """The methods that a keeper may call, with plain parameters."""

    def __init__(self, report: Callable[[str, Any], None]) -> None:
        self._report = report
        self._evaluator: Any = None

    def open(self, job: dict[str, Any]) -> dict[str, Any]:
        from evaluators.evaluator import Evaluator
        from evaluators.latency import pin_to_one_cpu

        parsed = Job(**job)
        if (parsed.device or "cpu").startswith("cpu") and int(parsed.options.get("threads", 1)) == 1:
            pin_to_one_cpu()
        self._evaluator = Evaluator(parsed, self._report)
        described: dict[str, Any] = self._evaluator.describe()
        return described

    def adopt(self, changes: dict[str, Any]) -> None:
        self._evaluator.adopt(changes)

    def try_out(self) -> None:
        self._evaluator.try_out()

    def calibration_key(self, method: str) -> str:
        return str(self._evaluator.calibration_key(method))

    def calibrate(self, method: str) -> Any:
        return self._evaluator.calibrate(method)

    def evaluate(self, assignment: Any, out: str, limits: dict[str, Any]) -> Any:
        return self._evaluator.evaluate(assignment, Path(out), Limits(**limits))

    def finalists(self, engines: dict[str, str], rounds: int) -> Any:
        return self._evaluator.finalists(engines, rounds)

    def time_again(self, assignment: Any, out: str) -> Any:
        return self._evaluator.time_again(assignment, Path(out))

    def check_outputs(self, engine: str) -> Any:
        return self._evaluator.check_outputs(Path(engine))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
