"""The file of a guard's state where it cannot be written: nothing is counted twice, and nothing is forgotten."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from studies.guard.reports import TroubleReports
from studies.guard.state import Breaker
from studies.guard.state_file import StateKeeper


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def keeper(tmp_path: Path, said: list[str]) -> StateKeeper:
    keeper = StateKeeper(tmp_path / "state.json", TroubleReports(said.append))
    keeper.change(add_bad_window)
    assert not said
    return keeper


def add_bad_window(known: Breaker) -> Breaker:
    return replace(known, bad=known.bad + 1)


def block(folder: Path) -> Path:
    """Let no state be written: a folder stands where this process writes its new file."""
    obstacle = folder / f"state.json.{os.getpid()}.new"
    obstacle.mkdir()
    return obstacle


def test_what_cannot_be_written_counts_once_and_is_kept_in_memory(
    keeper: StateKeeper, tmp_path: Path, said: list[str]
) -> None:
    block(tmp_path)
    for bad in (2, 3, 4):
        before, after = keeper.change(add_bad_window)
        assert (before.bad, after.bad) == (bad - 1, bad)
        keeper.refresh()
        assert keeper.breaker.bad == bad
    assert len(said) == 1
    assert "It is kept in memory for now" in said[0]


def test_what_was_kept_in_memory_is_written_once_that_works_again(keeper: StateKeeper, tmp_path: Path) -> None:
    obstacle = block(tmp_path)
    keeper.change(add_bad_window)
    obstacle.rmdir()
    keeper.change(lambda known: known)
    assert StateKeeper(tmp_path / "state.json", TroubleReports(print)).breaker.bad == 2


def test_what_another_process_has_written_meanwhile_counts(keeper: StateKeeper, tmp_path: Path) -> None:
    obstacle = block(tmp_path)
    keeper.change(add_bad_window)
    obstacle.rmdir()
    StateKeeper(tmp_path / "state.json", TroubleReports(print)).change(lambda known: replace(known, bad=7))
    before, after = keeper.change(add_bad_window)
    assert (before.bad, after.bad) == (7, 8)
