"""The figures of the CPU are measured on rows that the store takes as a study's."""

from __future__ import annotations

import pytest

from benchmarks.figures import database


@pytest.mark.slow
def test_the_front_of_planted_evaluations_is_timed() -> None:
    assert database.main(60).keys() == {"front_s", "front_import_s", "front_call_s"}
