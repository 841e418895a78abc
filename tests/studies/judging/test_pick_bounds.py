"""Simulated searches of known true losses: what is called sure is true, and the line ends in what holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluators.measure.mean_bounds import sample_losses
from search.values import BOUND_TRIES, bound_level
from studies.judging.rules.candidates import Aim
from studies.judging.rules.picks import choose, line
from studies.judging.rules.verdicts import FinalBounds, quantile
from studies.options.limits import Limits
from tests.support.simulated_picks import BOUNDS, LINES, World, confirmed, fastest_surely, worlds


@pytest.fixture(scope="module")
def searches() -> list[World]:
    """Of three limits and numbers of samples, in which one standard error is about half of the limit or less."""
    kinds = ((300, 0.02, 1.4), (1000, 0.01, 1.4), (2000, 0.005, 0.6), (2000, 0.02, 0.6))
    return [each for samples, limit, centre in kinds for each in worlds(60, samples, limit, centre)]


def shares(searches: list[World], name: str) -> tuple[int, float]:
    """How many searches had a mix that this bound calls sure, and in which share that was true."""
    found = [(each, row) for each in searches if (row := fastest_surely(each, BOUNDS[name])) is not None]
    return len(found), sum(each.truth[row] <= each.limit for each, row in found) / len(found)


@pytest.mark.slow
def test_what_is_called_sure_in_the_search_is_true(searches: list[World]) -> None:
    count, share = shares(searches, "Šidák, those that keep the limit")
    assert share >= 0.95
    assert count >= shares(searches, "Šidák, all mixes")[0], "and it calls no fewer sure than the stricter bound"
    for careless in ("the estimate alone", "one-sided 95 %", "shrunk to a curve"):
        assert shares(searches, careless)[1] < 0.95, f"{careless} would do, and knows nothing of how many were tried"


def test_a_line_by_how_sure_ends_in_what_holds_more_often_than_the_fastest_first(searches: list[World]) -> None:
    ends = {name: [confirmed(each, order(each)) for each in searches] for name, order in LINES.items()}
    held = {name: [end for end in found if end.row is not None] for name, found in ends.items()}
    true = {name: sum(end.true for end in found) / len(found) for name, found in held.items()}
    assert true["by how sure, in steps"] >= 0.9 > true["sure ones, then the fastest"]
    assert len(held["by how sure, in steps"]) >= len(held["sure ones, then the fastest"])
    sure = [end for end in held["by how sure, in steps"] if end.surely]
    assert sum(end.true for end in sure) >= 0.95 * len(sure)
    assert sum(end.covered for end in held["by how sure, in steps"]) >= 0.95 * len(held["by how sure, in steps"])


@pytest.mark.parametrize("gain", [0.01, 0.03, 1.0])
def test_what_is_kept_is_true_and_what_ties_with_fp32_is_never_the_best(searches: list[World], gain: float) -> None:
    """Mixes save a share of what they save in the world, so that some, many or none tie with FP32; row 2 is a float."""
    kept, true = 0, 0
    for each in searches:
        fp32, band = 0, 0.01
        columns = replace(each.candidates, latency_ms=1 - gain * (1 - each.latency), floats=(2,))
        queue = [row for row in line(columns, Aim.FASTEST) if row != fp32]
        means, margin = each.final.mean(axis=1), np.full(len(each.loss), np.nan)
        for row in queue:
            bounds = sample_losses(each.final[row], most=1.0).uppers([bound_level(tries) for tries in BOUND_TRIES])
            margin[row] = FinalBounds(loss=bounds).margin(Limits(max_drop=each.limit), higher_is_better=True)
        looked = np.isin(np.arange(len(means)), queue)
        holds, fails = looked & (means <= each.limit), looked & (means > each.limit)
        best = choose(replace(columns, holds=holds, fails=fails, final_margin=margin), Aim.FASTEST).best
        assert best is not None
        if best != fp32:
            assert columns.latency_ms[best] * (1 + band) < columns.latency_ms[fp32]
            if margin[best] >= quantile(queue.index(best) + 1):
                kept, true = kept + 1, true + bool(each.truth[best] <= each.limit)
    assert true >= 0.95 * kept
    assert kept > 60 or gain < 1.0, "else it says nothing"
    assert kept == 0 or gain > 0.01, "all tie with FP32"
