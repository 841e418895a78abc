"""A limit of another package, of a column that a shipped limit bounds too: the size of the engine's file."""

from __future__ import annotations

from studies.options.limits import Limit
from studies.options.value_kinds import SIZE

MAX_FILE = Limit(
    name="max_file_bytes",
    option="max-file",
    column="size_bytes",
    measure=lambda evaluation: evaluation.size_bytes,
    word="file",
    help="Largest file of an engine: 10MB.",
    metavar="SIZE",
    kind=SIZE,
    unit="bytes",
)
