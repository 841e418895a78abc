"""Turning calls of the Protocols into messages, and messages into calls.

Most are requests of the keeper's, of `EvaluatorLine`. While it answers one, the evaluator process makes calls of its
own, of `KeeperLine`, where a metric is in the keeper's process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

from evaluators.process.handed_metric.metric_calls import KeeperLine
from evaluators.process.line import EvaluatorLine, OpenRequest


@dataclass(frozen=True)
class LineMethod:
    """One method of a line: which kind of work in its Protocol, and which method of that."""

    task: str
    method: str
    signature: inspect.Signature
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"{self.task}.{self.method}"


def _read_requests(line: type) -> dict[str, LineMethod]:
    tasks = {name: member.fget for name, member in vars(line).items() if isinstance(member, property)}
    requests = [
        LineMethod(task, method, _without_self(function), function)
        for task, getter in tasks.items()
        for method, function in vars(get_type_hints(getter)["return"]).items()
        if inspect.isfunction(function) and not method.startswith("_")
    ]
    return {request.name: request for request in requests}


def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


REQUESTS: Mapping[str, LineMethod] = _read_requests(EvaluatorLine)
CALLS: Mapping[str, LineMethod] = _read_requests(KeeperLine)
PREPARE, OPEN = "prepare", "open"  # of `OpenRequest`, which come before all of them

Ask = Callable[[str, Mapping[str, Any]], Any]


@cache
def kinds_of(name: str) -> Mapping[str, Any]:
    """The types of the arguments of a request or a call, by name, and that of its answer as `return`."""
    method = REQUESTS.get(name) or CALLS.get(name)
    return get_type_hints(getattr(OpenRequest, name) if method is None else method.function)


def connect(ask: Ask) -> EvaluatorLine:
    """The client's end of the line.

    Args:
        ask: gets the name of a request and its arguments by name, and gives the answer.
    """
    return cast(EvaluatorLine, _callers(REQUESTS, ask))


def connect_back(ask: Ask) -> KeeperLine:
    """The evaluator process's end of its calls to the keeper; `ask` as of `connect`."""
    return cast(KeeperLine, _callers(CALLS, ask))


def _callers(requests: Mapping[str, LineMethod], ask: Ask) -> SimpleNamespace:
    tasks: dict[str, dict[str, Any]] = {}
    for request in requests.values():
        tasks.setdefault(request.task, {})[request.method] = _caller(request, ask)
    return SimpleNamespace(**{task: SimpleNamespace(**calls) for task, calls in tasks.items()})


def _caller(request: LineMethod, ask: Ask) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return ask(request.name, request.signature.bind(*args, **kwargs).arguments)

    return call


def handlers(line: EvaluatorLine) -> dict[str, Callable[..., Any]]:
    """The server's end of the line: name of a request → what answers it, called with its arguments by name."""
    return {name: _handler(line, request) for name, request in REQUESTS.items()}


def call_handlers(line: KeeperLine) -> dict[str, Callable[..., Any]]:
    """The keeper's end of the calls to it, as `handlers`."""
    return {name: _handler(line, request) for name, request in CALLS.items()}


def _handler(line: EvaluatorLine | KeeperLine, request: LineMethod) -> Callable[..., Any]:
    def answer(**arguments: Any) -> Any:
        return getattr(getattr(line, request.task), request.method)(**arguments)

    return answer
