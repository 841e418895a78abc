"""The user's own metric, by `package.module:attribute`."""

from __future__ import annotations

from typing import Any

from evaluators.metrics.contract import Labels, Metric, Outputs
from search.errors import ConfigError
from search.references import import_failure, import_module_here


def import_metric(name: str) -> Metric:
    """Import a metric by `package.module:attribute` or `file.py:attribute`; the current folder is searched too.

    Raises:
        ConfigError: no such module or attribute, or the attribute is not a metric.
    """
    module, _, attribute = name.rpartition(":")
    try:
        value = import_module_here(module)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(f"metric {name!r}: {import_failure(module, error)}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"metric {name!r}: module {module} has no {attribute}")
        value = getattr(value, part)
    return make_own_metric(name, value)


def make_own_metric(name: str, definition: Any) -> Metric:
    """The metric that a function or a class of the user's is.

    Args:
        name: of the metric, for messages and reports.
        definition: the function or class, as `registry.get_metric` describes it.

    Raises:
        ConfigError: it is neither, lacks a method, or declares an attribute of another type.
    """
    if not callable(definition):
        raise ConfigError(f"metric {name!r} must be a function or a class, got {type(definition).__name__}")
    gathers = isinstance(definition, type)
    missing = [
        method for method in ("update", "compute") if gathers and not callable(getattr(definition, method, None))
    ]
    if missing:
        raise ConfigError(
            f"metric {name!r} is a class and must have update(outputs, labels) and compute(); "
            f"it lacks {' and '.join(missing)}"
        )

    def score(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Any:
        return definition(outputs, labels)

    return Metric(
        name=name,
        unit=_read_attribute(name, definition, "unit", ""),
        higher_is_better=_read_attribute(name, definition, "higher_is_better", True),
        ratio=_read_attribute(name, definition, "ratio", False),
        needs_labels=_read_attribute(name, definition, "needs_labels", True),
        needs_reference=False,
        kind="accumulating" if gathers else "per_sample",
        score=None if gathers else score,
        make=definition if gathers else None,
        is_own=True,
        undeclared=not (gathers or hasattr(definition, "unit") or hasattr(definition, "ratio")),
    )


def _read_attribute(name: str, definition: Any, attribute: str, default: Any) -> Any:
    value = getattr(definition, attribute, default)
    if not isinstance(value, type(default)):
        raise ConfigError(f"metric {name!r}: {attribute} must be {type(default).__name__}, got {value!r}")
    return value
