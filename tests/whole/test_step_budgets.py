"""What a plain search runs in its own process: statements, commits, functions and files, which must not become more.

An evaluation reaches from one result that is settled to the next. Statements that only begin, end or describe are not
counted, nor are heartbeats, which come from a thread of their own: the slower a machine, the more of them.
"""

from __future__ import annotations

import inspect
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from studies.run import loop
from studies.run.claims.claim import ClaimSources
from tests.support.command_line import ok, write_inputs
from tests.support.networks import Net
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

TRIALS = 8
ROOMS = tuple(f"{ROOT}/{room}/" for room in ("search", "evaluators", "studies", "bitfront"))
NOT_COUNTED = ("BEGIN", "CREATE", "DROP", "PRAGMA", "SAVEPOINT", "RELEASE", "SET")


@dataclass
class Steps:
    """What was run during a part of a search."""

    functions: set[tuple[str, int]] = field(default_factory=set)
    statements: list[str] = field(default_factory=list)
    commits: int = 0

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}

    def note_call(self, frame: FrameType) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # and not the body of a class or module that is imported
        if is_function and code.co_filename.startswith(ROOMS):
            self.functions.add((code.co_filename, code.co_firstlineno))

    def note_statement(self, text: str) -> None:
        if text.lstrip().split(None, 1)[0].upper() not in NOT_COUNTED:
            self.statements.append(text)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Steps]]:
    """The parts of the search that is run meanwhile: all before the loop, each evaluation, and what comes after."""
    parts = [Steps()]

    def starting_part(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if before:
                parts.append(Steps())
            try:
                return function(*arguments, **options)
            finally:
                if not before:
                    parts.append(Steps())

        return call

    def note_statement(_: Any, __: Any, text: str, *___: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            parts[-1].note_statement(text)

    def note_commit(_: Any) -> None:
        parts[-1].commits += threading.current_thread() is threading.main_thread()

    def note_call(frame: FrameType, kind: str, _: Any) -> None:
        if kind == "call":
            parts[-1].note_call(frame)

    monkeypatch.setattr(loop, "run", starting_part(loop.run, before=True))
    monkeypatch.setattr(ClaimSources, "settle", starting_part(ClaimSources.settle, before=False))
    event.listen(Engine, "before_cursor_execute", note_statement)
    event.listen(Engine, "commit", note_commit)
    sys.setprofile(note_call)
    try:
        yield parts
    finally:
        sys.setprofile(None)
        event.remove(Engine, "before_cursor_execute", note_statement)
        event.remove(Engine, "commit", note_commit)


def convolutions(groups: int) -> Any:
    n, x = Net(0), "image"
    for number in range(groups - 1):
        x = n.op("Relu", [n.conv(x, f"conv{number}", 3 if number == 0 else 8, 8)], f"relu{number}")
    n.head(x, 8)
    return n.model([4, 3, 8, 8], "logits", [4, 10])


@pytest.mark.parametrize("groups", [4, 40])
def test_a_search_takes_no_more_steps_than_it_did(groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", convolutions(groups))
    fake = ("--backend", "fake", "--trials", TRIALS, "--sensitivity-time", "1s")
    with counted(monkeypatch) as parts:
        ok("search", "in/model.onnx", "--data", "in/data.npz", *fake, "--quiet")
    start, *evaluations, rest = parts
    assert len(evaluations) == TRIALS
    usual = evaluations[3:]  # the first ones are the uniform assignments

    def median(count: Callable[[Steps], int]) -> float:
        return statistics.median(count(part) for part in usual)

    reached = {
        "statements of an evaluation": (median(lambda part: len(part.statements)), 42),
        "commits of an evaluation": (median(lambda part: part.commits), 8),
        "functions of an evaluation": (median(lambda part: len(part.functions)), 864),
        "files of an evaluation": (median(lambda part: len(part.files)), 106),
        "statements before the loop": (len(start.statements), 67),
        "functions before the loop": (len(start.functions), 1350),
        "files before the loop": (len(start.files), 215),
        "statements of the search": (sum(len(part.statements) for part in parts), 530),
        "commits of the search": (sum(part.commits for part in parts), 112),
    }
    assert {what: pair for what, pair in reached.items() if pair[0] > pair[1]} == {}, reached
    assert rest.statements
