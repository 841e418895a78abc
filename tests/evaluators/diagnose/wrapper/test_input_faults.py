"""Faults at the inputs of a user's own program: each usual one is planted and named; others are not named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import InputFault
from evaluators.diagnose.wrapper.input_faults import find_input_fault
from tests.support.input_faults import DEVIATION, MEAN, cut_middle

Array = NDArray[Any]
RNG = np.random.default_rng(0)
FIRST, SECOND = RNG.normal(size=(3 * 16 * 16, 64)).astype(np.float32) / 28, RNG.normal(size=(64, 10)).astype(np.float32)


def network(inputs: Any) -> dict[str, Array]:
    images = inputs["image"]
    return {"y": np.tanh(images.reshape(len(images), -1) @ FIRST) @ SECOND}


def pictures() -> Array:
    """(32, 3, 16, 16) as a network takes them that wants mean and deviation of ImageNet."""
    smooth = np.cumsum(np.cumsum(RNG.normal(size=(32, 3, 16, 16)), 2), 3)
    share = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return np.asarray((share - MEAN) / DEVIATION, np.float32)


def look(
    change: Callable[[Array], Array], noise: float = 0.01, images: Callable[[], Array] = pictures
) -> InputFault | None:
    given = images()
    own = network({"image": np.ascontiguousarray(change(given))})["y"]
    own = own + noise * own.std() * RNG.normal(size=own.shape)
    batches = [({"image": given[i : i + 8]}, 8) for i in range(0, 32, 8)]
    return find_input_fault({"y": own}, batches, [network], 10.0)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x: x / 255, "divided by 255 once more"),
        (lambda x: x * 255, "not divided by 255"),
        (lambda x: x[:, ::-1], "BGR for RGB"),
        (lambda x: x * DEVIATION + MEAN, "are not applied"),
        (lambda x: (x - MEAN) / DEVIATION, "are applied twice"),
        (lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape), "NHWC and read as NCHW"),
        (cut_middle, "its middle is cut out"),
        (lambda x: x[..., ::-1], "mirrored"),
        (lambda x: x[..., ::-1, :], "upside down"),
        (lambda x: x.transpose(0, 1, 3, 2), "height and width are swapped"),
        (lambda x: x[:, ::-1].transpose(0, 2, 3, 1).reshape(x.shape), "BGR for RGB, and its memory is in the layout"),
        (lambda x: (x * DEVIATION + MEAN) * 255, "are not applied, nor is it divided by 255"),
        (lambda x: ((x * DEVIATION + MEAN) * 255 - MEAN) / DEVIATION, "not divided by 255 before mean and"),
        (lambda x: x * DEVIATION, "the deviation (that of ImageNet) is not applied"),
        (lambda x: (x * DEVIATION + MEAN) * 2 - 1, "scaled to -1 to 1 where mean and deviation"),
        (lambda x: ((x * DEVIATION + MEAN)[:, ::-1] - MEAN) / DEVIATION, "are applied in the order RGB"),
    ],
)
def test_the_usual_faults_are_named(change: Callable[[Array], Array], cause: str) -> None:
    found = look(change)
    assert found is not None
    assert cause in found.cause
    assert found.after_db > 30 > found.before_db + 10


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x: x[..., ::-1], "BGR for RGB"),
        (lambda x: ((x.transpose(0, 3, 1, 2) - MEAN) / DEVIATION).transpose(0, 2, 3, 1), "are applied twice"),
        (lambda x: x.transpose(0, 3, 1, 2).reshape(x.shape), "NCHW and read as NHWC"),
        (lambda x: cut_middle(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1), "its middle is cut out"),
    ],
)
def test_they_are_named_where_the_channels_are_last_too(change: Callable[[Array], Array], cause: str) -> None:
    found = look(change, images=lambda: np.ascontiguousarray(pictures().transpose(0, 2, 3, 1)))
    assert found is not None
    assert cause in found.cause


@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: np.roll(x, 3, axis=3), lambda x: x * 0.5 + 0.1, lambda x: RNG.normal(size=x.shape)],
)
def test_what_none_of_them_explains_is_not_named(change: Callable[[Array], Array]) -> None:
    assert look(change) is None
