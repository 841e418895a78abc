"""Metrics that are functions of the calling process, for example of a notebook.

Such a metric is named `NAME@DIGEST`, where the digest is that of its code. The name stands in the configuration of a
study, so two functions of one name and different code are two metrics.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evaluators.metrics.contract import Metric
from evaluators.metrics.own.code_digest import digest_code
from evaluators.metrics.own.imported_metric import make_own_metric
from search.errors import ConfigError

_HANDED = re.compile(r"\w+@[0-9a-f]{8}")
_LENT: dict[str, Any] = {}  # by name; a search asks from several threads, so that no context variable would do


def is_handed(name: str | None) -> bool:
    """Whether a metric's name is that of a function which some process was handed."""
    return name is not None and _HANDED.fullmatch(name) is not None


def name_metric(function: Any) -> str:
    """The name of a function or class that is handed in as a metric: `NAME@DIGEST`."""
    return f"{_short_name(function)}@{digest_code(function)[:8]}"


def _short_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    own = getattr(function, "__name__", "") or type(function).__name__
    return re.sub(r"\W+", "_", own).strip("_") or "metric"


@contextmanager
def lend_metric(name: str, function: Any) -> Iterator[None]:
    """Let evaluator processes that this process keeps be scored by a function, for this block.

    Args:
        name: of the metric, see `name_metric`.
        function: a function or class as `registry.get_metric` describes it.

    Raises:
        ConfigError: it is neither.
    """
    make_own_metric(name, function)
    before = _LENT.get(name)
    _LENT[name] = function
    try:
        yield
    finally:
        if before is None:
            del _LENT[name]
        else:
            _LENT[name] = before


def find_metric(name: str) -> Metric:
    """The metric of a function that this process was handed.

    Raises:
        ConfigError: nothing of this name is lent now.
    """
    if name not in _LENT:
        short = name.partition("@")[0]
        raise ConfigError(
            f"metric {name!r}: expected the Python function {short}, which was handed to bitfront.search and stands in "
            "no file, but this process does not have it. Continue in Python: bitfront.resume(study, "
            f"metric={short}), or bitfront.load(study, metric={short}) to export. The command line can use only a "
            "metric "
            "that is in a module of its own."
        )
    return make_own_metric(name, _LENT[name])
