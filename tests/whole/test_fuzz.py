"""A short run of the fuzz, which `.ci/run` runs for two minutes: what strangers may have written is read or refused."""

from __future__ import annotations

import pytest

from tests.support.fuzz.readers import READERS, fuzz, run_case


@pytest.mark.slow
def test_forty_cases_end_in_an_answer_or_a_message() -> None:
    assert fuzz(seed=1, cases=40) == []


def test_the_fuzz_sees_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_nothing(_: object) -> None:
        raise KeyError("a fault")

    for kind in READERS:
        monkeypatch.setitem(READERS, kind, (read_nothing, 1))
    assert "a traceback" in run_case(1, 1)
    assert "KeyError: 'a fault'" in run_case(1, 1)
