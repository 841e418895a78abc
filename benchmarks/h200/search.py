"""A search with an allowed loss beside the uniform assignments and TensorRT's own choice of precisions.

    python -m benchmarks.h200.search WORK MODEL.onnx --data search.npz --calibration-data c.npz --final-data final.npz
    python -m benchmarks.h200.search WORK MODEL.onnx --data data.npz --final-data final.npz --backend onnxruntime

All engines are timed in turns by one process and scored on the final data, which the search never saw. The search lies
in WORK and is gone on with where it was stopped. Without a GPU, `--backend onnxruntime` tries everything but
TensorRT's own choice. `--other NAME=FILE.onnx` adds a model that another tool quantized, with the same inputs and
outputs, built as it is. Prints a table, and writes it with its figures to WORK/results.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import ROOT
from benchmarks.command_line import bitfront
from benchmarks.page import table
from bitfront import verbs
from evaluators.process.connection import ProcessLimits
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.results import FinalScores
from studies.artifacts.folder import Artifacts
from studies.options.read_options import read_config
from studies.run.session.setup import _job
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store

STUDY = "study"
_ROUNDS = 20
_LONGEST_S = 540
HEAD = ("engine", "latency", "over the fastest uniform one", "loss, points")


@dataclass(frozen=True)
class Folder:
    """Where the search of one network lies.

    Attributes:
        options: of `bitfront search`, but for model, study and storage.
    """

    path: Path
    model: Path
    options: Mapping[str, str]

    @property
    def storage(self) -> str:
        return f"sqlite:///{(self.path / 'study.db').absolute()}"

    def search(self, trials: int) -> None:
        """Begin the study, or go on with it, until it has so many trials."""
        more = {"trials": str(trials), "storage": self.storage}
        if (self.path / "study.db").exists():
            bitfront("resume", STUDY, *_words(more), shown=True)
        else:
            bitfront("search", str(self.model), *_words({**self.options, **more, "study": STUDY}), shown=True)

    def read(self, store: Store) -> tuple[StudyRecord, TargetRecord]:
        study = store.studies.load(STUDY)
        return study, store.targets.of_study(study.id)[0]

    def artifact(self, digest: str) -> Path:
        return Artifacts(self.path / "study.db.artifacts").path(digest)

    def job(self, folder: Path) -> Job:
        """What an evaluator process opens, with the ranges of the study."""
        config = read_config({**self.options, "model": str(self.model), "study": STUDY, "storage": self.storage})
        with Store.open(self.storage, write=False) as store:
            ranges = self.artifact(str(self.read(store)[1].ranges_digest))
        return Job(**{**asdict(_job(config, folder)), "ranges": str(ranges)})


def _words(options: Mapping[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def find_engines(folder: Folder) -> dict[str, Path]:
    """Engines of the uniform assignments, by precision, and of the pick; raises SystemExit where there is no pick."""
    now = verbs.front(STUDY, storage=folder.storage).standing
    best = now.picks.best
    if best is None:
        raise SystemExit("the search found nothing that keeps the allowed loss: give it more --trials")
    with Store.open(folder.storage, write=False) as store:
        _, target = folder.read(store)
        records = [store.evaluations.load(number) for number in store.evaluations.baselines(target.id)]
        chosen = store.evaluations.load(int(now.table.id[best]))
    engines = {record.role.removeprefix("baseline:"): folder.artifact(str(record.artifact)) for record in records}
    return {**engines, "the pick": folder.artifact(str(chosen.artifact))}


def build_own_choice(folder: Folder, name: str = "own", *qdq_model: Path) -> Path:
    """TensorRT's own choice of precisions, built in a process of its own where it is not there yet.

    Args:
        qdq_model: a model with Q/DQ to build in place of the study's.
    """
    engine, job = folder.path / f"{name}.plan", folder.path / "job.json"
    if not engine.exists():
        job.write_text(json.dumps(asdict(folder.job(folder.path / "process"))))
        command = [sys.executable, "-m", "benchmarks.h200.own_choice", str(job), str(engine), *map(str, qdq_model)]
        subprocess.run(command, cwd=ROOT, check=True)
    return engine


def measure_together(folder: Folder, engines: Mapping[str, Path]) -> FinalScores:
    """Latencies in turns by one process, and scores on the final data."""
    with (
        TemporaryDirectory() as name,
        EvaluatorProcess(folder.job(Path(name)), folder.path / "log", ProcessLimits(_LONGEST_S)) as keeper,
    ):
        return keeper.ask().scores.score_finalists(engines, _ROUNDS)


def compare_engines(scores: FinalScores) -> list[list[str]]:
    """A row for every engine whose outputs are finite; losses with half the width of their 95 % interval."""
    times = {label: scores.latency[label].value_ms for label in scores.accuracy}
    fastest = min(ms for label, ms in times.items() if label in ("fp32", "fp16", "int8"))
    rows = []
    for label, score in scores.accuracy.items():
        loss = f"{100 * score.loss:.2f} ± {50 * (score.loss_high - score.loss_low):.2f}"
        rows.append([label, f"{times[label]:.4f} ms", f"{times[label] / fastest:.3f}×", loss])
    return rows


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the study and its engines")
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help="that is searched on, as `bitfront search` takes it")
    parser.add_argument("--calibration-data")
    parser.add_argument("--final-data", required=True)
    parser.add_argument("--metric", default="top1")
    parser.add_argument("--shape")
    parser.add_argument("--max-drop", default="1%")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--time-limit", default="none")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=FILE.onnx")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parsed(words)
    names = ("data", "calibration-data", "final-data", "metric", "shape", "max-drop", "backend", "time-limit")
    values = {name: getattr(arguments, name.replace("-", "_")) for name in names}
    options: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    arguments.work.mkdir(parents=True, exist_ok=True)
    folder = Folder(arguments.work.absolute(), arguments.model, {**options, "keep-engines": "all"})
    folder.search(arguments.trials)
    engines = find_engines(folder)
    if arguments.backend == "tensorrt":
        engines["TensorRT's own choice"] = build_own_choice(folder)
    others = {name: Path(file) for name, _, file in (each.partition("=") for each in arguments.other)}
    for name, file in others.items():
        with suppress(subprocess.CalledProcessError):  # whose process has printed why
            engines[name] = build_own_choice(folder, name, file) if arguments.backend == "tensorrt" else file
    rows = compare_engines(measure_together(folder, engines))
    rows += [[name, "refused", "", ""] for name in others if name not in engines]
    (folder.path / "results.json").write_text(json.dumps([dict(zip(HEAD, row, strict=True)) for row in rows], indent=1))
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
