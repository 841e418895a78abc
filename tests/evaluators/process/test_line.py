"""Requests made from the Protocols of the line: the table, the client's end and the server's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.process.engine_files.runs import EngineFileRuns
from evaluators.process.evaluator import Evaluator, Setup
from evaluators.process.requests import REQUESTS, connect, handlers, value_types
from evaluators.process.results import Built, DataDescription
from evaluators.process.tasks.builds import Builds
from evaluators.process.tasks.calibrations import Calibrations
from evaluators.process.tasks.candidates import CandidateTasks
from evaluators.process.tasks.diagnoses import Diagnoses
from evaluators.process.tasks.scores import Scores
from evaluators.process.tasks.timings import Timings
from search.values import Evaluation, Precision, Stage

TASKS = {
    "builds": Builds,
    "calibrations": Calibrations,
    "candidates": CandidateTasks,
    "diagnoses": Diagnoses,
    "engine_files": EngineFileRuns,
    "scores": Scores,
    "setup": Setup,
    "timings": Timings,
}


def test_every_request_is_a_method_of_the_class_that_answers_it() -> None:
    assert {request.task for request in REQUESTS.values()} == set(TASKS)
    for request in REQUESTS.values():
        assert callable(getattr(TASKS[request.task], request.method)), request.name


def test_a_call_becomes_a_message_with_its_arguments_by_name() -> None:
    made: list[tuple[str, Mapping[str, Any]]] = []

    def ask(request: str, arguments: Mapping[str, Any]) -> str:
        made.append((request, dict(arguments)))
        return "answer"

    line = connect(ask)
    assert line.timings.profile(Path("x"), count=3) == "answer"
    line.setup.knobs()
    assert made == [("timings.profile", {"engine": Path("x"), "count": 3}), ("setup.knobs", {})]


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    line = connect(lambda request, arguments: pytest.fail("it was sent"))
    with pytest.raises(TypeError, match="count"):
        line.timings.profile(Path("x"))  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        line.timings.nonsense()  # type: ignore[attr-defined]


def test_both_ends_together_are_the_object_itself() -> None:
    seen: list[Any] = []
    real: Any = SimpleNamespace(setup=SimpleNamespace(adopt=lambda changes: seen.append(changes)))
    answers = handlers(real)
    connect(lambda request, arguments: answers[request](**arguments)).setup.adopt({"ranges": "r"})
    assert seen == [{"ranges": "r"}]


def test_all_that_requests_hold_can_go_over_the_line() -> None:
    assert {Built, DataDescription, Evaluation, Precision, Stage} <= value_types()
    assert Evaluator not in value_types()
    assert len({cls.__name__ for cls in value_types()}) == len(value_types()), "messages name them so"
