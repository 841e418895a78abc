"""What a search spends its time on; step `throughput`: a whole search in one go, from its start."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.h200 import rows
from benchmarks.h200.setting import Setting, say
from search.values import Accuracy, Latency
from studies.judging.standing import Standing
from studies.show.progress_display import Lines
from studies.store.records import EvaluationRecord
from studies.store.store import Store
from studies.verbs import commands

BASELINES = 3
FINISH_S = 75.0  # what measuring the finalists again may take, and the start


class Stopwatch(Lines):
    """Lines, and a JSON line for the time of every evaluation: of each stage, and since the one before it."""

    def __init__(self, file: Path) -> None:
        super().__init__(Console(highlight=False))
        self._file = file
        self._since = time.monotonic()
        self._entered: dict[str, float] = {}
        self._extra = False
        self.walls: list[float] = []

    def step(self, text: str, done: int, total: int) -> None:
        self._extra = True  # calibrating or measuring repeatability: not this evaluation's
        super().step(text, done, total)

    def stage(self, trial: int, stage: str) -> None:
        self._entered[stage] = time.monotonic()

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        super().evaluation(record, standing, total)
        now = time.monotonic()
        wall_s, evaluation = now - self._since, record.evaluation
        line: dict[str, Any] = {"trial": record.trial, "wall_s": wall_s, "total_s": evaluation.total_s}
        line |= {"build_s": evaluation.build_s, "load_s": self._between("audit", "latency"), "extra": self._extra}
        line |= {"latency_s": self._between("latency", "accuracy"), "first": not self.walls}
        line["run_s"] = running_s(evaluation.latency, evaluation.accuracy)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.walls.append(wall_s)
        self._since, self._entered, self._extra = now, {}, False

    def _between(self, start: str, stop: str) -> float | None:
        if start in self._entered and stop in self._entered:
            return self._entered[stop] - self._entered[start]
        return None


def running_s(latency: Latency | None, accuracy: Accuracy | None, batch: int = 32) -> float | None:
    """Seconds that the engine itself ran for an accuracy, with what it takes to bring its inputs and outputs."""
    if latency is None or accuracy is None:
        return None
    transfers = sum(latency.around_ms.get(way, 0.0) for way in ("host_to_device", "device_to_host"))
    return -(-accuracy.samples // batch) * (latency.raw_ms + transfers) / 1000


# -- shares of the time ----------------------------------------------------------------------------------------------


def stages_of(setting: Setting) -> Path:
    """The file that the study's Stopwatch writes."""
    return setting.folder / rows.stages_name(setting.apart)


def shares(setting: Setting) -> dict[str, Any]:
    """Throughput and where the time of the search went, over all that was timed and tried once."""
    file = stages_of(setting)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lines = [line for line in lines if None not in line.values() and line["trial"] >= BASELINES]
    return time_shares(lines)


def time_shares(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Means per evaluation from the lines that a Stopwatch wrote, empty without any.

    `steady_per_hour` is of the median evaluation. TensorRT's own: `build_s` (parser and builder), `load_s` (load and
    audit), `latency_s`, `run_s` (inference for accuracy, with transfers); `other_s` is the rest: data, metric,
    database, sampler. The first evaluation of each run is left out.
    """
    later = [line for line in lines if not line["first"] and not line["extra"]]
    if not later:
        return {}
    means = {key: float(np.mean([line[key] for line in later])) for key in ("build_s", "load_s", "latency_s", "run_s")}
    wall_s = float(np.mean([line["wall_s"] for line in later]))
    within_s = float(np.mean([line["total_s"] for line in later]))
    other_s = wall_s - sum(means.values())
    return {
        **means,
        "wall_s": wall_s,
        "between_s": wall_s - within_s,
        "other_s": other_s,
        "other_share": other_s / wall_s,
        "steady_per_hour": 3600 / float(np.median([line["wall_s"] for line in later])),
        "timed": len(later),
    }


# -- a whole search --------------------------------------------------------------------------------------------------


def throughput(setting: Setting, trials: int) -> bool:
    """Search once more from nothing, without a budget, so that no accuracy is cut short; False when time was up.

    `per_hour` counts from the start of the command to the last evaluation: checks, start of the evaluator process,
    calibration, baselines and tie band included, finalists not. Of `commands` that went on with it, all are counted.
    """
    setting.open_data()
    fresh, before = replace(setting, apart=rows.FRESH), setting.result("throughput")
    if before.get("evaluations", 0) >= trials:
        return True
    watch, start = Stopwatch(stages_of(fresh)), time.monotonic()
    limit_s = max(30.0, setting.left_s() - FINISH_S)
    options = {"trials": str(trials), "time-limit": f"{limit_s:.0f}s"}
    if can_go_on(fresh):
        more = {**options, "model": str(fresh.folder / "model.onnx")}
        finished = commands.resume(fresh.study, more, fresh.storage, watch)
    else:
        for path in fresh.folder.glob(f"{rows.FRESH}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        finished = commands.search(fresh.search_options(**options), watch)
    done, seconds = len(finished.standing.table), sum(walls_of(stages_of(fresh)))
    figures = {"evaluations": done, "seconds": seconds, "commands": before.get("commands", 0) + 1}
    figures |= {"command_s": before.get("command_s", 0.0) + time.monotonic() - start}
    setting.record("throughput", {**figures, "per_hour": 3600 * done / seconds, "shares": shares(fresh)})
    say(f"{finished.reason}; {3600 * done / seconds:.0f} an hour from the start")
    return done >= trials


def can_go_on(setting: Setting) -> bool:
    """Whether the study is there and has its target."""
    if not commands.exists(setting.study, setting.storage):
        return False
    with Store.open(setting.storage, write=False) as store:
        return bool(store.targets.of_study(store.studies.load(setting.study).id))


def walls_of(file: Path) -> list[float]:
    """Seconds of every evaluation that a Stopwatch timed, of all commands."""
    return [float(json.loads(line)["wall_s"]) for line in file.read_text().splitlines()]
