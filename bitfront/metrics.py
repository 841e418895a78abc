"""Metrics that are given as Python objects: imported by the evaluator process, or called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.metrics.own.handed_metric import is_handed, lend_metric, name_metric
from search.errors import ConfigError, StudyError
from search.references import REFERENCE
from studies.store.store import Store

Metric = str | Callable[..., Any]


def metric_name(metric: Metric | None) -> str | None:
    """The name of a metric in a study: `package.module:function`, or `NAME@DIGEST` if it cannot be imported.

    Raises:
        ConfigError: it is neither a text nor callable.
    """
    if metric is None or isinstance(metric, str):
        return metric
    if not callable(metric):
        raise ConfigError(f"metric: expected a name, a function or a class, got {type(metric).__name__}.")
    return _import_name(metric) or name_metric(metric)


def _import_name(metric: Callable[..., Any]) -> str | None:
    """The name by which another process can import a metric; None if it cannot be imported."""
    module, name = getattr(metric, "__module__", None) or "", getattr(metric, "__qualname__", "")
    reference = f"{module}:{name}"
    known = getattr(sys.modules.get(module), name, None) is metric
    return reference if known and module != "__main__" and REFERENCE.fullmatch(reference) else None


@dataclass(frozen=True)
class OwnMetric:
    """A function of this process that is the metric of a study.

    Attributes:
        name: its name in the study.
        function: the function or class itself.
    """

    name: str
    function: Callable[..., Any]

    @property
    def short_name(self) -> str:
        """The name without the digest: the function's own name."""
        return self.name.partition("@")[0]

    @classmethod
    def of(cls, metric: Metric | None, name: str | None) -> OwnMetric | None:
        """The metric of a search; None if the evaluator process finds the metric by its name.

        Args:
            metric: the metric that the user gives; None if none is given.
            name: its name in the study.
        """
        return None if metric is None or isinstance(metric, str) or not is_handed(name) else cls(str(name), metric)

    @classmethod
    def of_study(cls, metric: Metric | None, study: str, storage: str) -> OwnMetric | None:
        """The metric of an existing study.

        Args:
            metric: the metric that the user gives; None if none is given.

        Raises:
            StudyError: there is no such study, or it has another metric.
        """
        if metric is None:
            return None
        stored = _stored_name(study, storage)
        _check_same(metric, stored, study)
        return cls.of(metric, stored)


@contextmanager
def lend(own: OwnMetric | None) -> Iterator[None]:
    """Within this block, let evaluator processes call a function of this process as their metric.

    Raises:
        ConfigError: the function is not a metric.
    """
    if own is None:
        yield
    else:
        with lend_metric(own.name, own.function):
            yield


def name_in_study(metric: Metric | None, study: str, storage: str) -> str | None:
    """The name that a study has for a metric, or the metric's own name if the study has another metric.

    Raises:
        ConfigError: the metric is neither a text nor callable.
        StudyError: there is no such study.
    """
    if metric is None:
        return None
    stored = _stored_name(study, storage)
    return stored if _is_same(metric, stored) else metric_name(metric)


def _stored_name(study: str, storage: str) -> str:
    with Store.open(storage, write=False) as store:
        record = store.studies.load(study)
    return str(record.config.get("metric") or record.metric["name"])


def _check_same(metric: Metric, stored: str, study: str) -> None:
    if _is_same(metric, stored):
        return
    name, why = _shown_name(metric, stored), ""
    if is_handed(stored) and name.partition("@")[0] == stored.partition("@")[0]:
        why = " Its code, or a number, text, list or array that it uses, has changed, as the digest behind the @ shows."
    raise StudyError(
        f"continuing study {study!r}: expected its metric {stored}, got {name}.{why} Give the function as it was, "
        "or search as a new study, because scores of two metrics cannot be compared."
    )


def _is_same(metric: Metric, stored: str) -> bool:
    """Whether a metric is that of a study, also where the study was searched by a script and now imports it."""
    name = metric_name(metric)
    if name == stored:
        return True
    if isinstance(metric, str):
        return is_handed(name) and is_handed(stored) and _digest(metric) == _digest(stored)
    if is_handed(stored):
        return _digest(name_metric(metric)) == _digest(stored)
    return stored == _import_name_in_script(metric)


def _shown_name(metric: Metric, stored: str) -> str:
    """The name of a metric as an error shows it: with the digest if the study has one to compare."""
    name = metric_name(metric)
    if isinstance(metric, str) or is_handed(name) or not is_handed(stored):
        return str(name)
    return f"{name_metric(metric)} of {metric.__module__}"


def _import_name_in_script(metric: Callable[..., Any]) -> str | None:
    """The name by which other programs import a metric of the script that runs; None for any other metric."""
    if getattr(metric, "__module__", "") != "__main__":
        return None
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if script is None else f"{Path(script).stem}:{getattr(metric, '__qualname__', '')}"


def _digest(name: str) -> str:
    return name.partition("@")[2]
