"""The digest of a metric's code: what makes two functions one metric, and what does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evaluators.metrics.own.code_digest import digest_code
from evaluators.metrics.own.handed_metric import find_metric, is_handed, lend_metric, name_metric
from search.errors import ConfigError


def defined(source: str, name: str = "score", **names: Any) -> Any:
    """What a notebook's cell defines under a name."""
    space = {"__name__": "__main__", "np": np, **names}
    exec(source, space)
    return space[name]


PLAIN = "def score(outputs, labels):\n    return outputs['y'].argmax(1) == labels + 1\n"
HELPED = "def helper(x):\n    return x + {add}\n" + "def score(outputs, labels):\n    return helper(labels)\n"
CLASS = """
class score:
    def __init__(self):
        self.total = 0
    def update(self, outputs, labels):
        self.total += {add}
    def compute(self):
        return self.total
"""


@pytest.mark.parametrize(
    "other",
    [
        "# a remark\n\n\n" + PLAIN,
        PLAIN.replace(":\n", ":\n    '''What it does.'''\n    # and why\n", 1),
        PLAIN.replace("outputs['y']", "(outputs['y'])"),
        "import os\nunused = os.getpid()\n" + PLAIN,
    ],
)
def test_remarks_and_what_is_not_used_change_nothing(other: str) -> None:
    assert digest_code(defined(PLAIN)) == digest_code(defined(other))


def test_the_name_of_a_function_is_no_part_of_its_code() -> None:
    renamed = defined(PLAIN.replace("score", "other"), "other")
    assert digest_code(renamed) == digest_code(defined(PLAIN))
    assert name_metric(renamed) == f"other@{digest_code(renamed)[:8]}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: defined(PLAIN), lambda: defined(PLAIN.replace("+ 1", "+ 2"))),
        (lambda: defined(PLAIN), lambda: defined(PLAIN.replace("argmax", "argmin"))),
        (lambda: defined(HELPED.format(add=1)), lambda: defined(HELPED.format(add=2))),
        (lambda: defined(CLASS.format(add=1)), lambda: defined(CLASS.format(add=2))),
        (lambda: using(np.array([1.0, 2.0])), lambda: using(np.array([1.0, 3.0]))),
        (lambda: using([1, 2]), lambda: using([1, 3])),
        (lambda: using({"cat": 1}), lambda: using({"cat": 2})),
        (lambda: functools.partial(using(1), labels=1), lambda: functools.partial(using(1), labels=2)),
        (lambda: with_ratio(True), lambda: with_ratio(False)),
    ],
)
def test_other_code_or_values_are_another_metric(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    assert digest_code(first()) == digest_code(first())
    assert digest_code(first()) != digest_code(second())


def using(value: Any) -> Any:
    """A function that reads a variable of its notebook."""
    return defined("def score(outputs, labels):\n    return value\n", value=value)


def with_ratio(ratio: bool) -> Any:
    score = defined(PLAIN)
    score.ratio = ratio
    return score


def test_variables_of_an_enclosing_function_count() -> None:
    def enclosing(weight: float) -> Any:
        return lambda outputs, labels: weight

    assert digest_code(enclosing(1.0)) == digest_code(enclosing(1.0)) != digest_code(enclosing(2.0))
    assert name_metric(enclosing(1.0)).startswith("lambda@")


def test_what_refers_to_itself_has_a_digest() -> None:
    looped: list[Any] = [1]
    looped.append(looped)
    again = defined("def score(outputs, labels):\n    return score(outputs, looped)\n", looped=looped)
    assert len(digest_code(again)) == 64


def test_objects_that_are_no_values_count_by_their_type() -> None:
    assert digest_code(using(iter([1]))) == digest_code(using(iter([2]))) != digest_code(using(object()))


def test_a_metric_is_known_while_it_is_lent() -> None:
    name = name_metric(defined(PLAIN))
    assert is_handed(name)
    assert not any(map(is_handed, ("top1", "package.module:function", "score@12", None)))
    with lend_metric(name, defined(PLAIN)):
        with lend_metric(name, defined(PLAIN)):
            pass
        assert find_metric(name).name == name
    with pytest.raises(ConfigError, match=r"bitfront\.resume\(study, metric=score\)"):
        find_metric(name)
