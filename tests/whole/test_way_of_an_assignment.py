"""How far it is from the loop of a search to the lowering of an assignment: few calls, in both processes together."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluators.backends.onnxruntime import builder
from evaluators.process import child, server
from evaluators.process.requests import OPEN
from search.values import Precision
from studies.run import loop
from tests.support import evaluator_jobs
from tests.support.command_line import ok, write_inputs
from tests.support.networks import residual_cnn
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

MOST = 6
ROOMS = ("search", "evaluators", "studies")
# Both ends of the line: what turns a call into a request, and a request into a call.
LINE = tuple(f"evaluators/process/{name}.py" for name in ("requests", "connection", "child", "server"))


def own_calls(stack: Sequence[traceback.FrameSummary], after: str) -> list[str]:
    """`file:function` of our frames after the last one of a file, those of the line left out."""
    names = [(str(Path(frame.filename).relative_to(ROOT)), frame.name) for frame in stack if is_own(frame.filename)]
    start = max(place for place, (file, _) in enumerate(names) if file == after) + 1
    return [f"{file}:{name}" for file, name in names[start:] if file not in LINE]


def is_own(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS


def calls_to_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From the loop to the moment that a build is asked for."""
    found: list[list[str]] = []
    send = child.Child.send

    def sent(self: child.Child, data: bytes, watch: Any) -> None:
        if b"builds.build" in data:
            found.append(own_calls(traceback.extract_stack(), str(Path(loop.__file__).relative_to(ROOT))))
        send(self, data, watch)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(child.Child, "send", sent)
    write_inputs(folder / "in")
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--trials", 1, "--quiet")
    return found[0]


def calls_to_lower(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From the request in the evaluator process, here answered in this one, to the lowering."""
    found: list[list[str]] = []
    lower = builder.lower

    def lowered(*args: Any) -> Any:
        found.append(own_calls(traceback.extract_stack()[:-1], "evaluators/process/requests.py"))
        return lower(*args)

    monkeypatch.setattr(builder, "lower", lowered)
    case = evaluator_jobs.case(folder, residual_cnn())
    service = server._Service(lambda event, value: None, lambda name, arguments: None)
    service.answer(OPEN, {"job": case.job, "metric": None})
    service.answer("builds.build", {"assignment": case.uniform(Precision.INT8), "out": folder / "out.onnx"})
    return found[0]


def test_an_assignment_goes_through_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = calls_to_request(tmp_path, monkeypatch)
    building = calls_to_lower(tmp_path, monkeypatch)
    assert asking, "the loop asks for builds"
    assert building, "a request is answered by a function of ours"
    assert len(asking) + len(building) <= MOST, [*asking, *building]
