"""What decides about a step: its error on held-out samples, and its loss on all calibration samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Arrays
from evaluators.metrics.registry import get_metric
from evaluators.recovery.held_out import HeldOut, HeldOutComparison

BATCH, DECIDING, OTHERS = 8, 3, 10
CLASSES = 4


def logits(number: int) -> NDArray[np.float32]:
    """The float model's of a batch."""
    return np.random.default_rng(number).standard_normal((BATCH, CLASSES)).astype(np.float32)


def batch(number: int) -> Batch:
    return Batch({"number": np.full((BATCH, 1), number)}, logits(number).argmax(axis=1), BATCH)


class Session:
    """INT8 whose outputs are off by some noise, and which gets the first sample of some batches wrong.

    Args:
        noise: of the outputs.
        wrong: numbers of these batches.
    """

    def __init__(self, noise: float, wrong: range = range(0)) -> None:
        self._noise = noise
        self._wrong = wrong

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        number = int(inputs["number"][0, 0])
        made = logits(number)
        # In the direction of the best class: it changes no class.
        made[np.arange(BATCH), made.argmax(axis=1)] += self._noise
        if number in self._wrong:
            made[0] = -made[0]
        return {"logits": made}


def compared(folder: Path, before: Session, after: Session, others: int = OTHERS) -> HeldOutComparison:
    held_out = HeldOut(
        Session(0.0),
        lambda: [batch(number) for number in range(DECIDING)],
        get_metric("top1"),
        folder,
        seconds=60.0,
        others=lambda: [batch(number) for number in range(DECIDING, DECIDING + others)],
    )
    return held_out.compare(held_out.measure(before), held_out.measure(after))


WRONG = range(DECIDING, DECIDING + OTHERS)


def test_a_small_gain_in_the_error_is_no_excuse_for_a_larger_loss(tmp_path: Path) -> None:
    found = compared(tmp_path, Session(1.0), Session(0.8, wrong=WRONG[:1]))
    assert not found.better
    assert found.reason.endswith("the loss is larger: 0.009615 instead of 0 on 104 calibration samples")
    assert compared(tmp_path, Session(1.0), Session(0.8)).better


def test_losses_are_told_by_the_samples_that_steps_fit_to_as_well(tmp_path: Path) -> None:
    assert compared(tmp_path, Session(1.0), Session(0.8, wrong=WRONG), others=0).better
    assert not compared(tmp_path, Session(1.0), Session(0.8, wrong=WRONG)).better


def test_errors_are_told_by_held_out_samples_alone(tmp_path: Path) -> None:
    found = compared(tmp_path, Session(1.0, wrong=WRONG), Session(1.0))
    assert not found.better
    assert found.reason == "the error stays as it was"


@pytest.mark.parametrize(("wrong", "better"), [(WRONG[:1], True), (WRONG, False)])
def test_a_large_gain_is_outweighed_only_by_a_loss_beyond_chance(wrong: range, better: bool, tmp_path: Path) -> None:
    assert compared(tmp_path, Session(1.0), Session(0.3, wrong=wrong)).better is better


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (1.0, 0.5, r"the error falls to \d\d % \(\d\d % to \d\d %\) of what it was"),
        (1.0, 3.0, r"the error rises to (\d+|> 1000) % .* of what it was"),
    ],
)
def test_what_a_step_does_to_the_error_is_told_in_percents(
    before: float, after: float, says: str, tmp_path: Path
) -> None:
    assert re.fullmatch(says, compared(tmp_path, Session(before), Session(after)).reason)


class TokenSession:
    """Outputs of a width for each token, whose number differs between batches and, with `longer`, from the float ones.

    Args:
        noise: relative to the outputs.
    """

    def __init__(self, noise: float, longer: int = 0) -> None:
        self._noise = noise
        self._longer = longer

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        number = int(inputs["number"][0, 0])
        exact = np.random.default_rng(number).standard_normal((BATCH, 3 + number % 2 + self._longer, 8))
        return {"tokens": exact * (1 + self._noise)}


def tokens_held_out(folder: Path) -> HeldOut:
    return HeldOut(
        TokenSession(0.0),
        lambda: [batch(number) for number in range(DECIDING)],
        get_metric("sqnr"),
        folder,
        seconds=60.0,
    )


def test_batches_may_differ_in_their_numbers_of_channels(tmp_path: Path) -> None:
    held_out = tokens_held_out(tmp_path)
    assert held_out.measure(TokenSession(0.1)).error == pytest.approx(0.01, rel=0.2)
    assert held_out.distance(TokenSession(0.1)) == pytest.approx(0.01)


def test_float_models_whose_outputs_differ_in_shape_are_not_equal(tmp_path: Path) -> None:
    assert tokens_held_out(tmp_path).distance(TokenSession(0.0, longer=1)) == np.inf


class PartsSession:
    """Rows that are parts of samples in turn, or that no number of samples divides.

    Args:
        width: rows for each batch.
    """

    def __init__(self, noise: float, width: int) -> None:
        self._noise = noise
        self._width = width

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        rng = np.random.default_rng(int(inputs["number"][0, 0]))
        return {"parts": rng.standard_normal((self._width, 5)) * (1 + self._noise)}


@pytest.mark.parametrize(
    ("width", "units", "reason"),
    [(4 * BATCH, DECIDING * BATCH, "the error falls to"), (BATCH + 1, DECIDING, "3 held-out batches are too few")],
)
def test_samples_decide_where_outputs_hold_parts_of_them(width: int, units: int, reason: str, tmp_path: Path) -> None:
    def samples() -> list[Batch]:
        return [batch(number) for number in range(DECIDING)]

    held_out = HeldOut(PartsSession(0.0, width), samples, get_metric("sqnr"), tmp_path, seconds=60.0)
    assert held_out.units == units
    before, after = (held_out.measure(PartsSession(noise, width)) for noise in (0.1, 0.05))
    assert len(after.errors) == units
    assert held_out.compare(before, after).reason.startswith(reason)
