"""What a run holds open, from joining a study to leaving it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import Model
from search.space.choices import Space
from studies.artifacts.folder import Artifacts
from studies.crew.leases import WorkerLease
from studies.options.config import Limits, SearchConfig
from studies.run.pace import Pace
from studies.show.progress import Progress
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store


@dataclass
class Work:
    """What a run holds open.

    Attributes:
        lease: of this process, which is a worker of the target.
        knobs: of the backend; part of every evaluation's digest.
        engine_file: what an exported engine is called.
        folder: of this run alone; engines are built here before they are kept.
        pace: of a run that may have a time limit.
    """

    store: Store
    artifacts: Artifacts
    keeper: EvaluatorProcess
    lease: WorkerLease
    study: StudyRecord
    target: TargetRecord
    config: SearchConfig
    limits: Limits
    space: Space
    model: Model
    knobs: dict[str, str]
    engine_file: str
    folder: Path
    progress: Progress
    pace: Pace = field(default_factory=Pace)
