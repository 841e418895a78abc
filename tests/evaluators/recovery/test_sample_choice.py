"""Which calibration samples `--calibration-select` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.recovery.sample_choice import choose_samples, farthest_first
from search.errors import ConfigError
from search.space.rules import SampleChoice

INDICES = np.array([3, 5, 8, 13, 21, 34])
SCORES = np.array([[0, 5], [1, 1.5], [9, 0], [2, 2.1], [4, 0], [0, 1]], np.float32)


@dataclass(frozen=True)
class Rows:
    """A network that hands its input on, with an error for each sample."""

    errors: NDArray[np.float32]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"y": inputs["x"] * (1 + self.errors[inputs["number"].astype(int)][:, None])}


@dataclass(frozen=True)
class FlatOf:
    """The rows of a network's output three times each."""

    network: Rows

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"y": np.repeat(self.network.run(inputs)["y"], 3, axis=0)}


def batches() -> list[Batch]:
    """Four samples and two, the second batch filled up."""
    return [
        Batch({"x": SCORES[rows], "number": np.array(rows)}, None, len(set(rows)))
        for rows in ([0, 1, 2, 3], [4, 5, 5, 5])
    ]


EXACT = Rows(np.zeros(6, np.float32))


def chosen(kind: str, count: int, errors: NDArray[np.float32] | None = None) -> list[int]:
    rough = Rows(np.zeros(6, np.float32) if errors is None else errors)
    return choose_samples(SampleChoice(kind, count), INDICES, batches(), EXACT, lambda: rough).tolist()


def test_confident_samples_have_the_largest_margins() -> None:
    assert chosen("confident", 3) == [3, 8, 21]


def test_the_worst_samples_are_those_on_which_int8_agrees_least() -> None:
    assert chosen("worst", 2, np.array([0.1, 0, 0.2, 0.5, 0, np.nan], np.float32)) == [13, 34]


def test_the_worst_samples_are_those_whose_outputs_have_another_shape() -> None:
    class Longer(Rows):
        def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            made = inputs["x"]
            return {"y": np.pad(made, ((0, 0), (0, 1))) if 5 in inputs["number"] else made}

    rough = Longer(np.zeros(6, np.float32))
    assert choose_samples(SampleChoice("worst", 2), INDICES, batches(), EXACT, lambda: rough).tolist() == [21, 34]


def test_parts_of_samples_in_turn_are_told_apart() -> None:
    """Outputs of (samples · tokens, …), as behind a Reshape."""

    rough = Rows(np.array([0.1, 0, 0.2, 0.5, 0, 0], np.float32))
    for kind in ("diverse", "worst"):
        choice = SampleChoice(kind, 2)
        found = choose_samples(choice, INDICES, batches(), FlatOf(EXACT), lambda: FlatOf(rough))
        assert found.tolist() == choose_samples(choice, INDICES, batches(), EXACT, lambda: rough).tolist()


def test_diverse_samples_are_far_from_each_other() -> None:
    features = np.array([[0.0], [0.1], [10.0], [10.1], [-10.0]])
    assert sorted(farthest_first(features, 3)) in ([0, 3, 4], [1, 3, 4])
    beside = np.column_stack([features, np.full(5, 6.0), np.zeros(5)])  # what tells nothing changes nothing
    assert farthest_first(beside, 5).tolist() == farthest_first(features, 5).tolist()
    assert len(set(farthest_first(beside, 5))) == 5
    assert len(set(chosen("diverse", 4))) == 4
    assert chosen("diverse", 4) == chosen("diverse", 4)


def test_equal_samples_are_still_chosen_once() -> None:
    assert sorted(farthest_first(np.zeros((5, 2)), 4).tolist()) == sorted(set(farthest_first(np.zeros((5, 2)), 4)))


def test_all_are_taken_where_there_are_no_more() -> None:
    assert chosen("worst", 9) == INDICES.tolist()


def test_outputs_that_are_no_scores_have_no_margin() -> None:
    @dataclass(frozen=True)
    class Maps:
        def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {"y": np.zeros((4, 2, 3, 3), np.float32)}

    with pytest.raises(ConfigError, match="expected scores of classes"):
        choose_samples(SampleChoice("confident", 2), INDICES, batches(), Maps(), Maps)
