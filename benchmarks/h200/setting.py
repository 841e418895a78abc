"""What the steps of the proof share: where things lie, how long a step may take, how results are kept."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from benchmarks.h200.networks import scenes
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess, ProcessLimits
from search.graph import model as models
from search.graph.model import Model
from search.space.choices import Space, make_space
from search.values import Assignment, Ranges
from studies.artifacts.folder import Artifacts
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.options.config import SearchConfig, from_options
from studies.run.session.setup import _job
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store

SOURCE = "benchmarks.h200.networks.scenes"


@dataclass(frozen=True)
class Setting:
    """One network in one work folder.

    Attributes:
        options: further options of the search, as on bitfront's command line.
        minutes: a step begins nothing new after so long.
        apart: names a second study beside the first one, in a database of its own.
    """

    work: Path
    network: str
    backend: str = "tensorrt"
    minutes: float = 8.5
    options: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    apart: str = ""

    @property
    def folder(self) -> Path:
        return self.work / self.network

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def study(self) -> str:
        return f"{self.network}-{self.apart}" if self.apart else self.network

    @property
    def database(self) -> Path:
        return self.folder / f"{self.apart or 'study'}.db"

    @property
    def storage(self) -> str:
        return f"sqlite:///{self.database.absolute()}"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    def left_s(self) -> float:
        return self.started + 60 * self.minutes - time.monotonic()

    def has_time(self, for_s: float = 0.0) -> bool:
        return self.left_s() > for_s

    def search_options(self, **more: str) -> dict[str, str]:
        """Options of `bitfront search` on this network."""
        return {
            "model": str(self.folder / "model.onnx"),
            "data": f"{SOURCE}:search",
            "calibration-data": f"{SOURCE}:calibration",
            "final-data": f"{SOURCE}:final",
            "study": self.study,
            "storage": self.storage,
            "backend": self.backend,
            **self.options,
            **more,
        }

    def config(self, **more: str) -> SearchConfig:
        return from_options(self.search_options(**more))

    def model(self) -> Model:
        return models.load(self.folder / "model.onnx")

    def open_data(self) -> None:
        """Draw the images where they are not yet drawn, and let evaluator processes find them."""
        os.environ[scenes.FOLDER_VARIABLE] = str(self.data.absolute())
        for split in scenes.COUNTS:
            scenes.load(self.data, split)

    def job(self, folder: Path, **changes: Any) -> Job:
        """What an evaluator process opens, with the study's ranges once it has some."""
        job = asdict(_job(self.config(), folder))
        return Job(**{**job, "ranges": self.ranges_file(), **changes})

    @contextmanager
    def keeper(self, **changes: Any) -> Iterator[EvaluatorProcess]:
        """An evaluator process on the study's inputs, or on changed ones, with a folder that goes with it."""
        limits = ProcessLimits(timeout_s=540)
        with (
            TemporaryDirectory() as folder,
            EvaluatorProcess(self.job(Path(folder), **changes), self.folder / "log", limits) as keeper,
        ):
            yield keeper

    def space(self, keeper: EvaluatorProcess) -> Space:
        return make_space(self.model(), keeper.description.capability, self.ranges())

    def ranges(self) -> Ranges | None:
        file = self.ranges_file()
        return None if file is None else Ranges.from_json(json.loads(Path(file).read_text()))

    def ranges_file(self) -> str | None:
        if not self.database.exists():
            return None
        with self.store() as (_store, _, target):
            artifacts, digest = Artifacts(artifacts_of(self.config())), target.ranges_digest
            return None if digest is None else str(artifacts.path(digest))

    @contextmanager
    def store(self) -> Iterator[tuple[Store, StudyRecord, TargetRecord]]:
        with Store.open(self.storage, write=False) as store:
            study = store.studies.load(self.study)
            yield store, study, store.targets.of_study(study.id)[0]

    # -- results -----------------------------------------------------------------------------------------------------

    def result(self, step: str) -> dict[str, Any]:
        found = json.loads(self.results.read_text()) if self.results.exists() else {}
        return dict(found.get(step, {}))

    def record(self, step: str, figures: Mapping[str, Any]) -> None:
        """Add to the step's results, at once and whole, so that nothing is lost when time is up.

        Other processes may add to other steps' at the same time.
        """
        with FileLock(self.results.with_suffix(".lock")):
            self._record(step, figures)

    def _record(self, step: str, figures: Mapping[str, Any]) -> None:
        found = json.loads(self.results.read_text()) if self.results.exists() else {}
        made = {"date": datetime.now(timezone.utc).date().isoformat(), "python": platform.python_version()}
        found[step] = {**found.get(step, {}), **figures, **made}
        found["network"] = self.network
        draft = self.results.with_suffix(".draft")
        draft.write_text(json.dumps(found, indent=1))
        draft.replace(self.results)


def changes_of_precision(assignment: Assignment, model: Model) -> int:
    """Edges between groups of different precision: each may cost a reformat."""
    ends = [(edge.source, edge.target) for edge in model.edges if edge.source is not None]
    return sum(assignment[source] != assignment[target] for source, target in ends)


def say(text: str) -> None:
    print(text, flush=True)
