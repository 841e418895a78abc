"""Bisection finds planted culprits in few trials, whatever they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.values import Accuracy
from studies.inspect.mix.bisection import EVERYTHING, Bisection, BisectionStep, bisect, kinds_of, most_trials
from studies.inspect.mix.evaluate import allowed_loss, is_undone
from studies.options.limits import Limits, MetricScale
from tests.support.networks import loaded

LOWERED = [f"g{number:03d}" for number in range(40)]


def planted(
    culprits: set[str], lowered: list[str] = LOWERED, ranked: list[str] | None = None, **kinds: list[str]
) -> Bisection:
    """A bisection where the loss is gone exactly when all culprits are in float."""

    def attempt(name: str, kept: tuple[str, ...]) -> BisectionStep:
        return BisectionStep(name, kept, None, "", culprits <= set(kept))

    return bisect(lowered, ranked or [], kinds, attempt)


def ids(*numbers: int) -> list[str]:
    return [LOWERED[number] for number in numbers]


@pytest.mark.parametrize("start", [0, 7, 36, 39])
@pytest.mark.parametrize("length", [1, 3, 20])
def test_a_stretch_is_found_as_it_is(start: int, length: int) -> None:
    culprits = LOWERED[start : start + length]
    found = planted(set(culprits))
    assert found.smallest is not None
    assert list(found.smallest.kept) == culprits
    assert len(found.trials) <= most_trials(len(LOWERED), 0)


def test_a_kind_of_op_is_taken_where_it_is_smaller_than_any_stretch() -> None:
    found = planted(set(ids(2, 20, 37)), Gemm=ids(2, 20, 37), Conv=ids(*range(3, 20)))
    assert found.smallest is not None
    assert (found.smallest.name, list(found.smallest.kept)) == ("all Gemm", ids(2, 20, 37))
    assert found.kind == found.smallest
    assert found.stretch is not None
    assert list(found.stretch.kept) == LOWERED[2:38]
    assert [trial.name for trial in found.trials][:3] == ["nothing", "all Gemm", "all Conv"]


def test_the_most_sensitive_are_taken_where_they_lie_apart() -> None:
    ranked = ids(2, 37, *(number for number in range(40) if number not in (2, 37)))
    found = planted(set(ids(2, 37)), ranked=ranked)
    assert found.smallest is not None
    assert (found.smallest.name, list(found.smallest.kept)) == ("the 2 most sensitive", ids(2, 37))
    assert found.kind is None
    assert found.stretch is not None
    assert list(found.stretch.kept) == LOWERED[2:38]


def test_where_nothing_is_lost_nothing_more_is_tried() -> None:
    found = planted(set())
    assert (found.lossless, found.smallest, len(found.trials)) == (True, None, 1)


def test_a_loss_that_is_spread_over_all_groups_needs_all_of_them() -> None:
    found = planted(set(LOWERED))
    assert found.smallest is not None
    assert (found.smallest.name, list(found.smallest.kept)) == (EVERYTHING, LOWERED)


def test_what_even_float_does_not_undo_is_not_explained() -> None:
    found = planted({"elsewhere"})
    assert (found.lossless, found.smallest) == (False, None)
    assert found.trials[-1].name == EVERYTHING


@pytest.mark.parametrize("culprits", [{"g000"}, {"elsewhere"}])
def test_a_single_group_is_tried_once(culprits: set[str]) -> None:
    found = planted(culprits, lowered=["g000"])
    assert [trial.kept for trial in found.trials] == [(), ("g000",)]
    assert (found.smallest is not None) == (culprits == {"g000"})


def test_a_mix_without_lower_precisions_has_nothing_to_keep() -> None:
    assert planted({"elsewhere"}, lowered=[]).smallest is None


@given(st.data())
def test_what_is_found_was_tried_undoes_the_loss_and_cannot_be_shortened(data: st.DataObject) -> None:
    lowered = LOWERED[: data.draw(st.integers(1, len(LOWERED)))]
    culprits = data.draw(st.sets(st.sampled_from(lowered), min_size=1))
    found = planted(culprits, lowered)
    assert found.smallest is not None
    kept = found.smallest.kept
    assert culprits <= set(kept)
    assert {kept[0], kept[-1]} <= culprits or found.smallest.name == EVERYTHING
    assert len({trial.kept for trial in found.trials}) == len(found.trials) <= most_trials(len(lowered), 0)


def test_kinds_of_ops_tell_convolutions_apart() -> None:
    mobile = {kind: len(groups) for kind, groups in kinds_of(loaded("mobile").groups).items()}
    assert mobile == {"spatial Conv": 1, "pointwise Conv": 4, "depthwise Conv": 2, "Gemm": 1}
    assert "MatMul of two activations" in kinds_of(loaded("transformer").groups)


def scored(loss: float, low: float, samples: int = 100) -> Accuracy:
    return Accuracy("top1", 0.9, loss, low, 2 * loss - low, samples, 100, np.zeros(samples))


def test_a_bound_on_the_metric_allows_what_fp32_has_above_it_on_the_same_samples() -> None:
    limits, top1 = Limits(accuracy_limit=0.95), MetricScale("top1", "share", True, True, False)
    for value, allowed in ((0.96, 0.01), (0.97, 0.02)):
        assert allowed_loss(limits, top1, replace(scored(0, 0), value=value)) == pytest.approx(allowed)
    assert allowed_loss(limits, top1, None) is None


def test_a_loss_is_undone_where_it_may_be_chance_or_is_allowed() -> None:
    assert is_undone(scored(0.01, -0.001), None)
    assert not is_undone(scored(0.01, 0.001), None)
    assert is_undone(scored(0.01, 0.001), 0.01)
    assert not is_undone(scored(0.02, -0.01), 0.01)
    assert not is_undone(scored(0.0, -0.01, samples=64), None)
