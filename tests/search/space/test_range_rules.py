"""`--range`: what it reads and refuses, and which tensors it sets."""

from __future__ import annotations

import pytest

from search.errors import ConfigError
from search.space.range_rules import RangeRule, set_ranges
from search.space.rules import SampleChoice
from search.values import Ranges, TensorRange

SEEN = {name: TensorRange(-9.0, 9.0) for name in ("conv1", "conv2", "fc")}


def test_the_last_rule_that_matches_holds_and_fixes_the_range() -> None:
    rules = [RangeRule.parse("conv.*=0:6"), RangeRule.parse("2$=-1:1e1")]
    found = set_ranges(Ranges("auto", SEEN, SEEN, 4), rules)
    assert found.tensors == {"conv1": TensorRange(0, 6), "conv2": TensorRange(-1, 10), "fc": TensorRange(-9, 9)}
    assert found.fixed == ("conv1", "conv2")
    assert found.observed == SEEN, "what the data reach decides on FP16"
    assert [RangeRule.parse(str(rule)) for rule in rules] == rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv", "expected REGEX=LOW:HIGH"),
        ("=0:6", "expected REGEX=LOW:HIGH"),
        ("conv=6", "expected REGEX=LOW:HIGH"),
        ("conv=a:6", "expected numbers"),
        ("(=0:6", "expected a regular expression"),
        ("conv=0:inf", "expected finite ends"),
        ("conv=nan:1", "expected finite ends"),
        ("conv=6:6", "expected LOW < HIGH"),
    ],
)
def test_other_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--range.*{message}"):
        RangeRule.parse(text)


def test_a_rule_that_matches_no_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of 3 matches"):
        set_ranges(Ranges("auto", SEEN, SEEN, 4), [RangeRule.parse("pool=0:6")])


@pytest.mark.parametrize("text", ["", "some", "worst", "worst:", "worst:0", "worst:-1", "worst:x", "best:4"])
def test_another_choice_of_samples_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--calibration-select: expected all, confident:N"):
        SampleChoice.parse(text)
    assert SampleChoice.parse("all") is None
    assert SampleChoice.parse("worst:64") == SampleChoice("worst", 64)
