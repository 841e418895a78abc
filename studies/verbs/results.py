"""What the verb `demo` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from studies.run.search_result import SearchResult

if TYPE_CHECKING:  # it imports the evaluators, which reading verbs should not wait for
    from studies.export.export import Export


@dataclass(frozen=True)
class Demo:
    """What the demo left behind."""

    finished: SearchResult
    engine: Export
    report: Path
    storage: str
