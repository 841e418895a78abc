"""The main loop of an evaluator process: it reads requests from a pipe, answers on another, and ends with its keeper.

Standard output and error are a log file; nothing is ever read back from them.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluators.engine import DeviceError, OutOfMemoryError
from evaluators.metrics.contract import MetricFacts
from evaluators.process import wire
from evaluators.process.job import Job
from evaluators.process.line import EvaluatorLine
from evaluators.process.requests import OPEN, PREPARE, Ask, connect_back, handlers, kinds_of
from evaluators.process.results import Description
from search import errors
from search.errors import BitfrontError

if TYPE_CHECKING:
    from evaluators.process.tasks.open_model import PreparedBackend

_PR_SET_PDEATHSIG = 1  # of Linux
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def main(requests_fd: int, answers_fd: int) -> None:
    """Serve until the request pipe closes.

    Every request is a line `{"request", "arguments"}`, named as in `requests.REQUESTS`, the first of them `OPEN`, or
    `PREPARE` and then `OPEN`; the answers to it are any number of `{"event", "value"}` lines and one `{"result"}` or
    `{"error", "message", "replace"}` line; `replace` asks the keeper for a new process. Before that line the process
    may make calls itself, as `{"call", "arguments"}` with a name of `requests.CALLS`; the next line that it reads is
    the answer, `{"result"}` or `{"error", "message"}`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the keeper's to handle
    gc.freeze()  # imported modules stay: whoever measures memory, and collects first, need not look through them
    for fd in (requests_fd, answers_fd):
        os.set_inheritable(fd, False)  # what users' code starts has no business on the line
    answers = os.fdopen(answers_fd, "w", encoding="utf-8")
    lines = _read_ahead(requests_fd)

    def call(name: str, arguments: Mapping[str, Any]) -> Any:
        _send(answers, wire.dumps({"call": name, "arguments": dict(arguments)}))
        # What the keeper answers to a call; raises the error that it raised.
        reply = json.loads(lines.get())
        if "error" in reply:
            raise getattr(errors, reply["error"])(reply["message"])
        return wire.read(reply["result"], kinds_of(name)["return"])

    service = _Service(lambda event, value: _send(answers, wire.dumps({"event": event, "value": value})), call)
    while True:
        _send(answers, _answer(service, json.loads(lines.get())))


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
        name = request["request"]
        arguments = wire.read_arguments(request["arguments"], kinds_of(name))
        return wire.dumps({"result": service.answer(name, arguments)})
    except (DeviceError, OutOfMemoryError, MemoryError) as error:
        return _dump_failure(type(error).__name__, str(error) or "out of memory", replace=True)
    except BitfrontError as error:
        return _dump_failure(_class_of(error), str(error))
    except (Exception, SystemExit) as error:
        with suppress(OSError):  # the disk may be full
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return _dump_failure("OutOfMemoryError", str(error), replace=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return _dump_failure("ArtifactError", f"writing a file: {error}. Free some space, then try again.")
        return _dump_failure("Unexpected", f"{type(error).__name__}: {error}")


def _dump_failure(error: str, message: str, *, replace: bool = False) -> str:
    return wire.dumps({"error": error, "message": message, "replace": replace})


def _class_of(error: BitfrontError) -> str:
    """The nearest class that the keeper knows too; errors of single modules are named by what they are a kind of."""
    named = (cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
    nearest = next(named)
    return nearest if nearest != "BitfrontError" else "Unexpected"


class _Service:
    """Opens a job when it is asked to, and answers what the line has from then on."""

    def __init__(self, report: Callable[[str, Any], None], call: Ask) -> None:
        self._report = report
        self._call = call
        self._handlers: Mapping[str, Callable[..., Any]] = {PREPARE: self._prepare, OPEN: self._open}
        self._prepared: PreparedBackend | None = None

    def answer(self, request: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to one request; raises what it raises."""
        return self._handlers[request](**arguments)

    def _prepare(self, job: Job) -> None:
        import evaluators.process.evaluator  # noqa: F401 - takes a second
        from evaluators.process.tasks.open_model import prepare_backend

        with suppress(Exception):  # opening says what is wrong, once it is known that nothing else is
            self._prepared = prepare_backend(job)

    def _open(self, job: Job, metric: MetricFacts | None) -> Description:
        from evaluators.cores import pin_to_one_cpu
        from evaluators.process.engine_files.runs import EngineFileEvaluator
        from evaluators.process.evaluator import Evaluator
        from evaluators.process.handed_metric.remote_metric import make_remote_metric

        if job.only_builds:
            _end_with_keeper()
        evaluator: EvaluatorLine
        if job.engine_files:
            only_files = EngineFileEvaluator(job, self._report)
            description, evaluator = only_files.describe(), cast(EvaluatorLine, only_files)
        else:
            back = connect_back(self._call)
            handed = None if metric is None else make_remote_metric(metric, back, Path(job.folder))
            whole = Evaluator(job, self._report, handed, self._prepared)
            description, evaluator = whole.setup.describe(), whole
        if not job.only_builds and description.target.relative and int(job.options.get("threads", 1)) == 1:
            pin_to_one_cpu()  # before the first session: its threads stay where they are started
        self._handlers = handlers(evaluator)
        gc.freeze()  # all of this stays: collecting garbage, without which memory cannot be told, need not look at it
        return description


def _end_with_keeper() -> None:
    """End when the keeper's thread that started this process does: a builder may be stopped, and reads no pipe then."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
