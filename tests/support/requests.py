"""Requests to evaluator processes, seen by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.line import EvaluatorLine
from evaluators.process.requests import connect, handlers


@dataclass(frozen=True)
class Asked:
    """A request that is about to be made.

    Attributes:
        name: of its method, say `rebuild`.
        make: makes it, and gives the answer.
    """

    keeper: EvaluatorProcess
    name: str
    arguments: Mapping[str, Any]
    make: Callable[[], Any]


def watch_requests(monkeypatch: pytest.MonkeyPatch, around: Callable[[Asked], Any]) -> None:
    """Let `around` make every request of every keeper, evaluations excepted; what it gives is the answer."""
    real = EvaluatorProcess.ask

    def ask(keeper: EvaluatorProcess, *args: Any, **options: Any) -> EvaluatorLine:
        answers = handlers(real(keeper, *args, **options))

        def make(request: str, arguments: Mapping[str, Any]) -> Any:
            name = request.rpartition(".")[2]
            return around(Asked(keeper, name, arguments, lambda: answers[request](**arguments)))

        return connect(make)

    monkeypatch.setattr(EvaluatorProcess, "ask", ask)
