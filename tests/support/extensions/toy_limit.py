"""A limit of another package: the size of the engine's file."""

from __future__ import annotations

from studies.options.limits import Limit
from studies.options.value_kinds import SIZE

MAX_SIZE = Limit(
    name="max_size_bytes",
    option="max-size",
    column="size_bytes",
    measure=lambda evaluation: evaluation.size_bytes,
    word="size",
    help="Largest file of an engine: 10MB.",
    metavar="SIZE",
    kind=SIZE,
    unit="bytes",
)
