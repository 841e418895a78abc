"""One network in a work folder: its model, its images, the studies that searched it, and what was recorded of it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.command_line import bitfront
from benchmarks.h200.networks import scenes
from evaluators.process.connection import ProcessLimits
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.graph import model as models
from search.graph.model import Model
from search.space.choices import Space, make_space
from search.values import Ranges
from studies.artifacts.folder import Artifacts
from studies.options.read_options import read_config
from studies.run.session.setup import _job
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store
from tests.support.evaluator_jobs import float_labels
from tests.support.networks import images, residual_cnn, save

SOURCE = "benchmarks.h200.networks.scenes"
SPLITS = {"data": "search", "calibration-data": "calibration", "final-data": "final"}  # by option of bitfront search
BUDGETED = "study"  # the search within a latency budget, whose ranges and engines other measurements take


@dataclass(frozen=True)
class NetworkFolder:
    """Where all that belongs to one network lies.

    Attributes:
        path: WORK/NETWORK, with `model.onnx` and the folder `data`.
    """

    path: Path
    backend: str = "tensorrt"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def model_file(self) -> Path:
        return self.path / "model.onnx"

    def model(self) -> Model:
        return models.load(self.model_file)

    # -- studies -----------------------------------------------------------------------------------------------------

    def database(self, study: str) -> Path:
        return self.path / f"{study}.db"

    def storage(self, study: str) -> str:
        return f"sqlite:///{self.database(study).absolute()}"

    def inputs(self) -> dict[str, str]:
        """Options of `bitfront search` but for model, study and storage."""
        return {**{option: f"{SOURCE}:{split}" for option, split in SPLITS.items()}, "backend": self.backend}

    def search(self, study: str, trials: int, limits: Mapping[str, str], **first: str) -> None:
        """Begin a study on the command line, or go on with it, until it has so many trials.

        Args:
            study: names its database; the study in it has the network's name.
            first: options that a study keeps from its beginning.
        """
        begun = self.database(study).exists()
        options = {**limits, "trials": str(trials), "storage": self.storage(study)}
        options |= {} if begun else {**self.inputs(), "study": self.name, **first}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        bitfront(*(("resume", self.name) if begun else ("search", str(self.model_file))), *words, shown=True)

    @contextmanager
    def reading(self, study: str) -> Iterator[tuple[Store, StudyRecord, TargetRecord]]:
        with Store.open(self.storage(study), write=False) as store:
            record = store.studies.load(self.name)
            yield store, record, store.targets.of_study(record.id)[0]

    def artifact(self, study: str, digest: str) -> Path:
        return Artifacts(self.path / f"{study}.db.artifacts").path(digest)

    # -- an evaluator process ----------------------------------------------------------------------------------------

    def job(self, folder: Path, **changes: Any) -> Job:
        """What an evaluator process opens, with the ranges of the search within a budget."""
        options = {"model": str(self.model_file), "study": self.name, "storage": self.storage(BUDGETED)}
        job = asdict(_job(read_config({**options, **self.inputs()}), folder))
        return Job(**{**job, "ranges": str(self.ranges_file()), **changes})

    @contextmanager
    def evaluator(self, **changes: Any) -> Iterator[EvaluatorProcess]:
        """A process on the study's inputs, or on changed ones, with a folder that goes with it."""
        with (
            TemporaryDirectory() as folder,
            EvaluatorProcess(self.job(Path(folder), **changes), self.path / "log", ProcessLimits(540)) as keeper,
        ):
            yield keeper

    def ranges_file(self) -> Path:
        """Raises FileNotFoundError where the network has not been searched yet."""
        if not self.database(BUDGETED).exists():
            raise FileNotFoundError(f"{self.name} has no study in {self.path}: run benchmarks.h200.search first")
        with self.reading(BUDGETED) as (_, _study, target):
            return self.artifact(BUDGETED, str(target.ranges_digest))

    def space(self, keeper: EvaluatorProcess) -> Space:
        ranges = Ranges.from_json(json.loads(self.ranges_file().read_text()))
        return make_space(self.model(), keeper.description.capability, ranges)

    # -- what was recorded -------------------------------------------------------------------------------------------

    def recorded(self) -> dict[str, Any]:
        file = self.path / "results.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def record(self, what: str, figures: Mapping[str, Any]) -> None:
        """Keep figures under a name, in place of what was there."""
        draft = self.path / "results.draft"
        draft.write_text(json.dumps({**self.recorded(), what: figures}, indent=1))
        draft.replace(self.path / "results.json")


# -- the command line --------------------------------------------------------------------------------------------------


def parser(description: str | None) -> argparse.ArgumentParser:
    """What every script of this folder is told."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("work", type=Path, help="folder of the networks, their studies and engines")
    found.add_argument("network", help="resnet18, mobilenet_v2 or vit_small; any name with --tiny")
    found.add_argument("--tiny", action="store_true", help="a small network and ONNX Runtime, to try it without a GPU")
    return found


def opened(given: argparse.Namespace) -> NetworkFolder:
    """The network that the command line names, with its images drawn and known to evaluator processes.

    Raises:
        SystemExit: it has not been trained.
    """
    network = NetworkFolder((given.work / given.network).absolute(), "onnxruntime" if given.tiny else "tensorrt")
    if given.tiny and not network.model_file.exists():
        _write_tiny(network.path)
    if not network.model_file.exists():
        raise SystemExit(f"{network.model_file} is not there: run python -m benchmarks.h200.networks.train first")
    data = network.path / "data"
    os.environ[scenes.FOLDER_VARIABLE] = str(data)
    for split in scenes.COUNTS:
        scenes.load(data, split)
    return network


def _write_tiny(folder: Path) -> None:
    """A small network of the tests with its own answers as labels, in place of a trained one."""
    data = folder / "data"
    data.mkdir(parents=True)
    network = residual_cnn()
    model = models.load(save(network, folder / "model.onnx"))
    for number, split in enumerate(scenes.COUNTS):
        pixels = images(96, seed=number)
        np.save(data / f"{split}-images.npy", pixels)
        np.save(data / f"{split}-labels.npy", float_labels(network, model, pixels))
