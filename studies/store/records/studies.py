"""Studies, their groups and their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class NewStudy:
    """All that is known when a study is created; every mapping is JSON-serialisable.

    Attributes:
        config: all options of the search, as given and as defaulted.
        data: sources, digests and sizes of the splits.
        metric: `name`, `unit`, `higher_is_better`, `ratio`, `relative`, `kind` (`per_sample` or `accumulating`), and
            `notes`: how it was chosen where nobody named it, and which outputs it does not score.
        model: `inputs`, `outputs` and what is needed to name its nodes.
        renewed_from: id of the study whose mixes it tries again on fresh data; None if it is no renewal, or that
            study was deleted.
    """

    name: str
    model_path: str
    model_digest: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    metric: Mapping[str, Any]
    model: Mapping[str, Any]
    environment: Mapping[str, Any]
    state: str = "created"
    renewed_from: int | None = None


@dataclass(frozen=True)
class StudyRecord:
    """A stored study; fields as in NewStudy."""

    id: int
    name: str
    state: str
    created_at: datetime
    model_path: str
    model_digest: str
    config: dict[str, Any]
    data: dict[str, Any]
    metric: dict[str, Any]
    model: dict[str, Any]
    environment: dict[str, Any]
    renewed_from: int | None = None

    def clusters(self, split: str) -> int | None:
        """How many clusters the samples of a split are in; None if the data say nothing of clusters."""
        count: int | None = self.data.get("clusters", {}).get(split)
        return count

    @property
    def batch(self) -> int:
        """The number of samples in one inference, which its latencies are of."""
        return int(self.model["inputs"][0][2][0])

    @property
    def samples_text(self) -> str:
        """How many samples calibrate, are searched on and are final, with their clusters; empty if not known."""
        parts = (("calibration", "calibrate"), ("search", "to search on"), ("final", "final"))
        return ", ".join(
            f"{self.data[split]:,} {use}" + (f" ({found:,} clusters)" if (found := self.clusters(split)) else "")
            for split, use in parts
            if split in self.data
        )


@dataclass(frozen=True)
class StudySummary:
    """One line of the list of studies; counts are over all targets of the study."""

    id: int
    name: str
    state: str
    created_at: datetime
    model_path: str
    targets: int
    ok: int
    failed: int
    running: int


@dataclass(frozen=True)
class GroupRecord:
    """What the database knows of a group: enough to name, list and explain it without the model."""

    id: str
    name: str
    op: str
    nodes: tuple[str, ...]
    anchors: tuple[str, ...]
    shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    block: str


@dataclass(frozen=True)
class FileRecord:
    """One file of a study's inputs that lies among the artifacts, for hosts that lack it.

    Attributes:
        role: the option that named it: `model`, `data`, ….
        position: 0 for the file itself; a model's external data follow.
        name: what it is called, relative to the folder of the file itself.
    """

    role: str
    position: int
    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True)
class ArtifactRecord:
    """A file in the artifact folder; `key` names a cache entry, None for what belongs to evaluations."""

    digest: str
    kind: str
    key: str | None
    size_bytes: int
    created_at: datetime
