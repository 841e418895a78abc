"""Steps `uniform`, `search` and `compare`: the uniform assignments, a search, and both beside TensorRT's own choice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.h200 import rows
from benchmarks.h200.setting import SOURCE, Setting, changes_of_precision, say
from evaluators.process import EvaluatorProcess
from search.values import Accuracy, Assignment, Latency
from studies import commands
from studies.artifacts import Artifacts
from studies.progress import Lines
from studies.records import EvaluationRecord
from studies.setup import artifacts_of
from studies.standing import Standing
from studies.store import Store

FACTOR = 1.10  # of the fastest uniform assignment's latency: the budget of the search
_BASELINES = 3
_ROUNDS = 20
_FREE_S, _TOGETHER_S = 120.0, 100.0  # that building TensorRT's own choice and the comparison may take
_FINISH_S = 75.0  # what measuring the finalists again may take, and the start


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

    def finished(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        super().finished(record, standing, total)
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


# -- uniform ---------------------------------------------------------------------------------------------------------


def uniform(setting: Setting) -> None:
    """The uniform assignments as the study's first evaluations, then, side by side with them, TensorRT's own choice."""
    setting.open_data()
    if not _baselines_done(setting):
        _baselines(setting)
    record_baselines(setting)
    # Each may take minutes; what is left out now, the next call of this step makes up for.
    if setting.backend == "tensorrt" and setting.has_time(_FREE_S):
        setting.record("uniform", {"free": free_choice(setting)})
    if setting.has_time(_TOGETHER_S):
        # On the images of the search, so that the search's own losses can be held against it.
        setting.record("uniform", {"together": together(setting, _uniforms(setting), final_data=f"{SOURCE}:search")})
    else:
        say("time is up: call this step again")


def _baselines(setting: Setting) -> None:
    watch = Stopwatch(setting.folder / "stages.jsonl")
    if commands.exists(setting.network, setting.storage):
        more = {"trials": str(_BASELINES), "model": str(setting.folder / "model.onnx")}
        commands.resume(setting.network, more, setting.storage, watch)
    else:
        commands.search(setting.search_options(trials=str(_BASELINES)), watch)


def _baselines_done(setting: Setting) -> bool:
    if not commands.exists(setting.network, setting.storage):
        return False
    with Store.open(setting.storage, write=False) as store:
        targets = store.targets(store.study(setting.network).id)  # none where it was killed at its beginning
        settled = [t for t in targets if t.latency_band is not None]
        return any(len(store.evaluations(target.id)) >= _BASELINES for target in settled)


def record_baselines(setting: Setting) -> None:
    """What the study holds of its uniform assignments and its target."""
    model = setting.model()
    found = {row["role"].partition(":")[2]: row for row in rows.stored(setting) if row.get("role")}
    with setting.store() as (store, study, target):
        groups = [group.id for group in store.groups(study.id)]
        setting.record("study", {"target": target.target.to_json(), "tie_band": target.latency_band})
    for row in found.values():
        row["changes"] = changes_of_precision(rows.assignment(row["a"], groups), model)
    setting.record("uniform", {"rows": found, "groups": len(groups)})


def free_choice(setting: Setting) -> dict[str, Any]:
    """Build TensorRT's own choice where it is not there yet; how."""
    known: dict[str, Any] = setting.result("uniform").get("free", {})
    if known and (setting.folder / "free.plan").exists():
        return known
    job = setting.folder / "job.json"
    job.write_text(json.dumps(asdict(setting.job(setting.folder / "process"))))
    command = [sys.executable, str(Path(__file__).with_name("free.py")), str(job), str(setting.folder / "free.plan")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"building TensorRT's own choice failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"TensorRT's own choice: {found}")
    return found


def together(setting: Setting, wanted: Mapping[str, Assignment | Path], **job: Any) -> dict[str, Any]:
    """Engines side by side in one process, in turns, scored on the job's final images: figures by label."""
    with setting.keeper(**job) as keeper:
        engines = {label: str(engine_of(setting, keeper, label, what)) for label, what in wanted.items()}
        found = keeper.call("finalists", {"engines": engines, "rounds": _ROUNDS})
    figures = {}
    for label in engines:
        latency, accuracy = found["latency"][label], found["accuracy"][label]
        scores = {name: getattr(accuracy, name) for name in ("value", "loss", "loss_low", "loss_high", "samples")}
        figures[label] = {"ms": latency.value_ms, "spread": latency.spread, **scores}
        say(f"{label:8} {latency.value_ms:.4f} ms, top-1 {accuracy.value:.2%}, loss {100 * accuracy.loss:.2f} points")
    return figures


def engine_of(setting: Setting, keeper: EvaluatorProcess, label: str, what: Assignment | Path) -> Path:
    """The engine file of an assignment: the one that the study kept, one built for an earlier step, or a new one."""
    if isinstance(what, Path):
        return what
    with setting.store() as (store, _, target):
        table, assignments = store.evaluations(target.id), store.assignments(target.id)
        kept = {assignments[int(n)]: str(d) for n, d in zip(table.id, table.artifact, strict=True) if d}
    artifacts = Artifacts(artifacts_of(setting.config()))
    if what in kept and kept[what] in artifacts:
        return artifacts.path(kept[what])
    out = setting.folder / f"{what.digest[:12]}.engine"
    if not out.exists():
        say(f"building {label}")
        keeper.call("build", {"assignment": what, "out": str(out)})
    return out


def _uniforms(setting: Setting) -> dict[str, Assignment | Path]:
    with setting.store() as (store, _, target):
        table, assignments = store.evaluations(target.id), store.assignments(target.id)
        named = zip(table.id, table.role, table.status, strict=True)
        found: dict[str, Assignment | Path] = {
            str(role).partition(":")[2]: assignments[int(number)]
            for number, role, status in named
            if role.startswith("baseline:") and status == "ok"
        }
    free = setting.folder / "free.plan"
    return {**found, "free": free} if free.exists() else found


# -- search ----------------------------------------------------------------------------------------------------------


def search(setting: Setting, trials: int) -> None:
    """Go on with the study to its total of trials, within a latency budget of 1.10 of the fastest uniform one."""
    setting.open_data()
    fastest_ms = fastest_uniform_ms(setting.result("uniform"))
    before = len(rows.stored(setting))
    limit_s = max(30.0, setting.left_s() - _FINISH_S)
    options = {
        "trials": str(trials),
        "time-limit": f"{limit_s:.0f}s",
        "latency-budget": f"{1000 * FACTOR * fastest_ms:.3f}us",
        "model": str(setting.folder / "model.onnx"),
    }
    watch, start = Stopwatch(setting.folder / "stages.jsonl"), time.monotonic()
    finished = commands.resume(setting.network, options, setting.storage, watch)
    done = len(finished.standing.table) - before
    run = {"evaluations": done, "wall_s": sum(watch.walls), "command_s": time.monotonic() - start}
    runs = [*setting.result("search").get("runs", []), *([run] if done else [])]
    setting.record("search", {"runs": runs, "budget_ms": FACTOR * fastest_ms, **shares(setting)})
    say(f"{finished.reason}; {len(finished.standing.table)} in all; {shares(setting).get('per_hour', 0):.0f} an hour")


def fastest_uniform_ms(found: Mapping[str, Any]) -> float:
    """From what step `uniform` recorded: side by side where it came so far."""
    rows_ms = {label: row["lat"] for label, row in found["rows"].items() if "lat" in row}
    together_ms = {label: each["ms"] for label, each in found.get("together", {}).items() if label in rows_ms}
    return float(min((together_ms or rows_ms).values()))


def shares(setting: Setting) -> dict[str, Any]:
    """Throughput and where the time of the search went, over all that was timed and tried once."""
    file = setting.folder / "stages.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lines = [line for line in lines if None not in line.values() and line["trial"] >= _BASELINES]
    return time_shares(lines)


def time_shares(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Means per evaluation from the lines that a Stopwatch wrote, empty without any.

    `per_hour` counts everything, worker starts too; `steady_per_hour` the median evaluation. TensorRT's own: `build_s`
    (parser and builder), `load_s` (load and audit), `latency_s`, `run_s` (inference for accuracy, with transfers);
    `other_s` is the rest: data, metric, database, sampler. Shares leave out the first evaluation of each run.
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
        "per_hour": 3600 * len(lines) / sum(line["wall_s"] for line in lines),
        "steady_per_hour": 3600 / float(np.median([line["wall_s"] for line in later])),
        "timed": len(later),
    }


# -- compare ---------------------------------------------------------------------------------------------------------


def compare(setting: Setting) -> None:
    """Uniform, free choice and what the search found, side by side on images that nobody has seen."""
    setting.open_data()
    budget_ms = setting.result("search")["budget_ms"]
    now, _ = commands.front(setting.network, {"latency-budget": f"{1000 * budget_ms:.3f}us"}, setting.storage)
    if setting.backend == "tensorrt":
        free_choice(setting)  # gone on a fresh machine
    wanted, chosen = _uniforms(setting), {}
    free = setting.result("uniform").get("together", {}).get("free")
    found = {"pick": now.picks.accurate, "match": matching(now, free["loss"]) if free else None}
    with setting.store() as (store, study, target):
        assignments = store.assignments(target.id)
        groups = [group.id for group in store.groups(study.id)]
    model = setting.model()
    for label, row in found.items():
        if row is not None:
            assignment = assignments[int(now.table.id[row])]
            wanted[label] = assignment
            chosen[label] = {
                "trial": int(now.table.trial[row]),
                "a": "".join(rows.CODES[assignment[group]] for group in groups),
                "changes": changes_of_precision(assignment, model),
            }
    setting.record("compare", {"chosen": chosen, "together": together(setting, wanted)})
    setting.record("compare", {"verdict": verdict(setting.result("compare")["together"])})
    say(json.dumps(setting.result("compare")["verdict"]))


def matching(now: Standing, loss: float) -> int | None:
    """The fastest row that loses no more than `loss`."""
    fitting = np.flatnonzero(now.complete & (now.table.loss <= loss))
    return int(fitting[np.argmin(now.latency_ms[fitting])]) if len(fitting) else None


def verdict(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What the search is worth: `won_back` of the INT8 loss by the pick, its latency over INT8's (`pick_over_int8`) and
    over the fastest uniform one; `free_over_match`: how much longer TensorRT's own choice takes than what the search
    found at no greater loss. Keys only for what was measured; no share is won back where INT8 lost nothing.
    """
    found, pick, int8 = {}, figures.get("pick"), figures.get("int8")
    if pick is not None:
        uniforms = [figures[label]["ms"] for label in ("fp32", "fp16", "int8") if label in figures]
        found["pick_over_fastest"] = pick["ms"] / min(uniforms)
        if int8 is not None:
            found["pick_over_int8"] = pick["ms"] / int8["ms"]
            if int8["loss"] > 0:
                found["won_back"] = 1 - pick["loss"] / int8["loss"]
    if "match" in figures and "free" in figures:
        found["free_over_match"] = figures["free"]["ms"] / figures["match"]["ms"]
        found["match_less_loss"] = figures["free"]["loss"] - figures["match"]["loss"]
    return found
