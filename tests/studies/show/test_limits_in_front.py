"""What `front` says of limits that evaluations miss."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studies.judging.rules.verdicts import Verdict
from studies.show.terminal.front_table import limits_word
from studies.store.records import OK
from studies.store.suggestions import command
from tests.support.command_line import copy_finished, ok


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("verdict", "feasible", "mismatch", "word"),
    [
        (Verdict.HOLDS, True, "", "likely"),
        (Verdict.HOLDS, False, "", "missed"),
        (Verdict.SURELY, False, "", "missed"),
        (Verdict.UNCONFIRMED, False, "", "missed"),
        (Verdict.UNCONFIRMED, True, "", "unseen"),
        (Verdict.SURELY, False, "3 groups ran in FP32", "kept"),
        (Verdict.UNCONFIRMED, False, "3 groups ran in FP32", ""),
    ],
)
def test_what_misses_a_limit_on_the_search_samples_is_missed(
    verdict: Verdict, feasible: bool, mismatch: str, word: str
) -> None:
    """Though the final samples keep it. What did not run as asked is no candidate for another reason."""
    now: Any = SimpleNamespace(limits=("a limit",))
    final = SimpleNamespace(verdict=verdict, scored=verdict is not Verdict.UNCONFIRMED)
    point: Any = SimpleNamespace(status=OK, feasible=feasible, mismatch=mismatch, final=final)
    assert limits_word(now, point) == word


def test_a_rate_that_is_missed_is_told_as_a_rate(here: Path) -> None:
    text = ok("front", "small", "--min-fps", "123456789")
    assert "the limit is 1.2346e+08 samples a second" in text
    assert re.search(r"rate is [\d,.e+]+ samples a second", text)
    assert "budget" not in text


def test_the_name_of_a_study_may_look_like_an_option() -> None:
    assert command("resume", "small", "--trials", "3", storage=None) == "bitfront resume small --trials 3"
    assert command("resume", "-x", "--trials", "3", storage=None) == "bitfront resume --trials 3 -- -x"
