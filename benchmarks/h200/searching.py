"""Steps `uniform`, `search` and `compare`: the uniform assignments, a search, and both beside TensorRT's own choice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.h200 import rows
from benchmarks.h200.setting import SOURCE, Setting, changes_of_precision, say
from benchmarks.h200.timing import BASELINES, FINISH_S, Stopwatch, shares, stages_of
from evaluators.process.keeper import EvaluatorProcess
from search.values import Assignment
from studies.artifacts.folder import Artifacts
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.judging.standing import Standing
from studies.store.store import Store
from studies.verbs import commands

FACTOR = 1.10  # of the fastest uniform assignment's latency: the budget of the search
_ROUNDS = 20
_FREE_S, _TOGETHER_S = 120.0, 100.0  # that building TensorRT's own choice and the comparison may take


# -- uniform ---------------------------------------------------------------------------------------------------------


def uniform(setting: Setting) -> bool:
    """The uniform assignments as the study's first evaluations, then, side by side with them, TensorRT's own choice.

    Each part may take minutes; False when time was up before the last one, which another call makes up for.
    """
    baselines(setting)
    if setting.backend == "tensorrt":
        if not setting.has_time(_FREE_S):
            return False
        setting.record("uniform", {"free": free_choice(setting)})
    if _uniforms(setting).keys() <= setting.result("uniform").get("together", {}).keys():
        return True
    if not setting.has_time(_TOGETHER_S):
        return False
    # On the images of the search, so that the search's own losses can be held against it.
    setting.record("uniform", {"together": together(setting, _uniforms(setting), final_data=f"{SOURCE}:search")})
    return True


def baselines(setting: Setting) -> None:
    """The uniform assignments alone, with their engines kept."""
    setting.open_data()
    if not _baselines_done(setting):
        _baselines(setting)
    record_baselines(setting)
    _keep_engines(setting)


def _baselines(setting: Setting) -> None:
    watch = Stopwatch(stages_of(setting))
    if commands.exists(setting.study, setting.storage):
        more = {"trials": str(BASELINES), "model": str(setting.folder / "model.onnx")}
        commands.resume(setting.study, more, setting.storage, watch)
    else:
        # The search that follows keeps those on its front alone.
        commands.search(setting.search_options(**{"trials": str(BASELINES), "keep-engines": "all"}), watch)


def _keep_engines(setting: Setting) -> None:
    """Copy the engines of the uniform assignments to where `engine_of` looks, as building them again takes minutes."""
    artifacts = Artifacts(artifacts_of(setting.config()))
    with setting.store() as (store, _, target):
        table, assignments = store.evaluations.table(target.id), store.evaluations.assignments(target.id)
    for number, role, digest in zip(table.id, table.role, table.artifact, strict=True):
        out = _built(setting, assignments[int(number)])
        if role.startswith("baseline:") and digest and str(digest) in artifacts and not out.exists():
            shutil.copyfile(artifacts.path(str(digest)), out)


def _built(setting: Setting, assignment: Assignment) -> Path:
    """Where the engine of an assignment lies once a step has built or copied it."""
    return setting.folder / f"{assignment.digest[:12]}.engine"


def _baselines_done(setting: Setting) -> bool:
    if not commands.exists(setting.study, setting.storage):
        return False
    with Store.open(setting.storage, write=False) as store:
        targets = store.targets.of_study(
            store.studies.load(setting.study).id
        )  # none where it was killed at its beginning
        settled = [t for t in targets if t.latency_band is not None]
        return any(len(store.evaluations.table(target.id)) >= BASELINES for target in settled)


def record_baselines(setting: Setting) -> None:
    """What the study holds of its uniform assignments and its target."""
    model = setting.model()
    found = {row["role"].partition(":")[2]: row for row in rows.stored(setting) if row.get("role")}
    with setting.store() as (store, study, target):
        groups = [group.id for group in store.studies.groups(study.id)]
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
        engines = {label: engine_of(setting, keeper, label, what) for label, what in wanted.items()}
        found = keeper.ask().scores.score_finalists(engines, _ROUNDS)
    figures = {}
    for label in engines:
        latency, accuracy = found.latency[label], found.accuracy[label]
        scores = {name: getattr(accuracy, name) for name in ("value", "loss", "loss_low", "loss_high", "samples")}
        figures[label] = {"ms": latency.value_ms, "spread": latency.spread, **scores}
        say(f"{label:8} {latency.value_ms:.4f} ms, top-1 {accuracy.value:.2%}, loss {100 * accuracy.loss:.2f} points")
    return figures


def engine_of(setting: Setting, keeper: EvaluatorProcess, label: str, what: Assignment | Path) -> Path:
    """The engine file of an assignment: the one that the study kept, one built for an earlier step, or a new one."""
    if isinstance(what, Path):
        return what
    with setting.store() as (store, _, target):
        table, assignments = store.evaluations.table(target.id), store.evaluations.assignments(target.id)
        kept = {assignments[int(n)]: str(d) for n, d in zip(table.id, table.artifact, strict=True) if d}
    artifacts = Artifacts(artifacts_of(setting.config()))
    if what in kept and kept[what] in artifacts:
        return artifacts.path(kept[what])
    out = _built(setting, what)
    if not out.exists():
        say(f"building {label}")
        keeper.ask().builds.rebuild(what, out)
    return out


def uniform_engines(setting: Setting) -> dict[str, Path]:
    """The kept engines of the uniform assignments, by label."""
    uniforms = {label: what for label, what in _uniforms(setting).items() if not isinstance(what, Path)}
    return {label: path for label, what in uniforms.items() if (path := _built(setting, what)).exists()}


def _uniforms(setting: Setting) -> dict[str, Assignment | Path]:
    with setting.store() as (store, _, target):
        table, assignments = store.evaluations.table(target.id), store.evaluations.assignments(target.id)
        named = zip(table.id, table.role, table.status, strict=True)
        found: dict[str, Assignment | Path] = {
            str(role).partition(":")[2]: assignments[int(number)]
            for number, role, status in named
            if role.startswith("baseline:") and status == "ok"
        }
    free = setting.folder / "free.plan"
    return {**found, "free": free} if free.exists() else found


# -- search ----------------------------------------------------------------------------------------------------------


def search(setting: Setting, trials: int) -> bool:
    """Go on with the study to its total of trials, within a latency budget of 1.10 of the fastest uniform one.

    False when time was up before that.
    """
    setting.open_data()
    fastest_ms = fastest_uniform_ms(setting.result("uniform"))
    before = len(rows.stored(setting))
    limit_s = max(30.0, setting.left_s() - FINISH_S)
    options = {
        "trials": str(trials),
        "time-limit": f"{limit_s:.0f}s",
        "latency-budget": f"{1000 * FACTOR * fastest_ms:.3f}us",
        "keep-engines": "front",
        "model": str(setting.folder / "model.onnx"),
    }
    watch, start = Stopwatch(stages_of(setting)), time.monotonic()
    finished = commands.resume(setting.study, options, setting.storage, watch)
    done = len(finished.standing.table) - before
    run = {"evaluations": done, "wall_s": sum(watch.walls), "command_s": time.monotonic() - start}
    runs = [*setting.result("search").get("runs", []), *([run] if done else [])]
    total = len(finished.standing.table)  # more than in all runs, where one of them was killed
    setting.record("search", {"runs": runs, "total": total, "budget_ms": FACTOR * fastest_ms, **shares(setting)})
    steady = shares(setting).get("steady_per_hour", 0)
    say(f"{finished.reason}; {total} in all; the median one makes {steady:.0f} an hour")
    return total >= trials


def fastest_uniform_ms(found: Mapping[str, Any]) -> float:
    """From what step `uniform` recorded: side by side where it came so far."""
    rows_ms = {label: row["lat"] for label, row in found["rows"].items() if "lat" in row}
    together_ms = {label: each["ms"] for label, each in found.get("together", {}).items() if label in rows_ms}
    return float(min((together_ms or rows_ms).values()))


# -- compare ---------------------------------------------------------------------------------------------------------


def compare(setting: Setting) -> None:
    """Uniform, free choice and what the search found, side by side on images that nobody has seen."""
    setting.open_data()
    budget_ms = setting.result("search")["budget_ms"]
    now, _ = commands.front(setting.study, {"latency-budget": f"{1000 * budget_ms:.3f}us"}, setting.storage)
    if setting.backend == "tensorrt":
        free_choice(setting)  # gone on a fresh machine
    wanted, chosen = _uniforms(setting), {}
    free = setting.result("uniform").get("together", {}).get("free")
    found = {"pick": now.picks.best, "match": matching(now, free["loss"]) if free else None}
    with setting.store() as (store, study, target):
        assignments = store.evaluations.assignments(target.id)
        groups = [group.id for group in store.studies.groups(study.id)]
    model = setting.model()
    for label, row in found.items():
        if row is not None:
            assignment = assignments[int(now.table.id[row])]
            wanted[label] = assignment
            chosen[label] = {
                "trial": int(now.table.trial[row]),
                "a": rows.letters(assignment, groups),
                "changes": changes_of_precision(assignment, model),
                **_as_built(setting, int(now.table.id[row])),
            }
    setting.record("compare", {"chosen": chosen, "together": together(setting, wanted)})
    setting.record("compare", {"verdict": verdict(setting.result("compare")["together"])})
    say(json.dumps(setting.result("compare")["verdict"]))


def _as_built(setting: Setting, evaluation_id: int) -> dict[str, Any]:
    """`build` in seconds and `moves` of the engine that the search built."""
    with setting.store() as (store, _, _target):
        evaluation = store.evaluations.load(evaluation_id).evaluation
    moves = None if evaluation.engine is None else evaluation.engine.moves
    return {key: value for key, value in (("build", evaluation.build_s), ("moves", moves)) if value is not None}


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
