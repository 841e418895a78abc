"""The option table: all options, in the order of help and reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from studies.options.builder_options import builder_options, export_options
from studies.options.config import own_options
from studies.options.diagnosis.thresholds import threshold_options
from studies.options.limits import limit_options
from studies.options.option import Option

_BEFORE_LIMITS = "study"
_BEFORE_BACKENDS = "evaluation_memory_bytes"


def option_rows() -> Iterator[Option]:
    """Every option that a search takes: of the configuration itself, of the limits, of the backends."""
    for row in own_options():
        yield row
        if row.field == _BEFORE_LIMITS:
            yield from limit_options()
        if row.field == _BEFORE_BACKENDS:
            yield from builder_options()


def option_table() -> Mapping[str, Option]:
    """The same by name, as files and the command line of `search` name them."""
    return {row.name: row for row in option_rows()}


def options_of(verb: str) -> tuple[Option, ...]:
    """The rows that a verb takes on the command line."""
    return tuple(row for row in (*option_rows(), *export_options(), *threshold_options()) if verb in row.verbs)
