"""Requests made from the Protocols of the line: the table, the client's end and the server's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from evaluators.process.connection import Connection, ProcessLimits
from evaluators.process.engine_files.runs import EngineFileRuns
from evaluators.process.evaluator import Setup
from evaluators.process.job import Job
from evaluators.process.requests import CALLS, OPEN, PREPARE, REQUESTS, connect, handlers, kinds_of
from evaluators.process.tasks.builds import Builds
from evaluators.process.tasks.calibrations import Calibrations
from evaluators.process.tasks.candidates import CandidateTasks
from evaluators.process.tasks.diagnoses import Diagnoses
from evaluators.process.tasks.scores import Scores
from evaluators.process.tasks.timings import Timings
from search.errors import EvaluatorError

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


@pytest.mark.parametrize("name", [PREPARE, OPEN, *REQUESTS, *CALLS])
def test_all_that_a_request_holds_can_be_read(name: str) -> None:
    for kind in kinds_of(name).values():
        with pytest.raises(msgspec.ValidationError):  # a TypeError would say that it knows no such type
            msgspec.convert(object(), kind)


def test_an_answer_of_another_type_is_told(tmp_path: Path) -> None:
    connection = Connection(Job("m", "d", str(tmp_path)), tmp_path / "log", ProcessLimits())
    with pytest.raises(EvaluatorError, match=r"another answer than setup\.try_out has: Expected `bool`, got `str`"):
        connection._result_of({"result": "yes"}, "setup.try_out")
