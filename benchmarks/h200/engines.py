"""Steps `repeat` and `export`: how repeatable a latency is, whether an exported engine holds."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.h200.searching import engine_of
from benchmarks.h200.setting import Setting, say
from search.space.choices import Space
from search.values import Assignment, Precision
from studies import commands
from studies.artifacts import Artifacts
from studies.setup import artifacts_of

_ROUNDS = 20
_TRIES = 3


# -- repeat ----------------------------------------------------------------------------------------------------------


def repeat(setting: Setting, processes: int, rebuilds: int) -> bool:
    """One engine timed in fresh processes, then one assignment built and timed in fresh processes.

    False when time was up before the last one.
    """
    setting.open_data()
    with setting.keeper() as keeper:
        space = setting.space(keeper)
        plan = engine_of(setting, keeper, "int8", space.uniform(Precision.INT8))
        digest = hashlib.sha256(plan.read_bytes()).hexdigest()
        if setting.result("repeat").get("plan") != digest:  # another machine built another plan
            setting.record("repeat", {"plan": digest, "one_plan_ms": [], "rebuilt_ms": []})
        again = {"assignment": _alternating(space), "out": str(setting.folder / "again.engine")}
        timings = (("one_plan_ms", processes, "time_engine", {"engine": str(plan)}),)
        for key, wanted, method, params in (*timings, ("rebuilt_ms", rebuilds, "time_again", again)):
            values = setting.result("repeat").get(key, [])
            while len(values) < wanted and setting.has_time(60):
                keeper.close()
                values = [*values, keeper.call(method, params).value_ms]
                say(f"{key} {len(values)}/{wanted}: {values[-1]:.4f}")
                setting.record("repeat", {key: values})
    found = setting.result("repeat")
    repeated = [key for key in ("one_plan_ms", "rebuilt_ms") if len(found.get(key, [])) > 1]
    ranges = {f"{key}_range": spanned(found[key]) for key in repeated}
    setting.record("repeat", ranges)
    say(json.dumps(ranges))
    return len(found.get("one_plan_ms", [])) >= processes and len(found.get("rebuilt_ms", [])) >= rebuilds


def spanned(values: Sequence[float]) -> float:
    """Largest less smallest, over the median."""
    return float((max(values) - min(values)) / np.median(values))


def _alternating(space: Space) -> Assignment:
    """A mix with many borders, each of which may be built in more than one way."""
    codes = {v.id: (len(v.precisions) - 1 - i) % len(v.precisions) for i, v in enumerate(space.variables)}
    return space.assignment(codes)


# -- export ----------------------------------------------------------------------------------------------------------


def export(setting: Setting) -> None:
    """Export the pick, then hold what was written against what was measured, in a fresh process."""
    setting.open_data()
    budget_ms = setting.result("search")["budget_ms"]
    limits = {"latency-budget": f"{1000 * budget_ms:.3f}us"}
    now, _ = commands.front(setting.study, limits, setting.storage)
    row = now.picks.best
    if row is None:
        raise RuntimeError(f"{setting.network}: no evaluation keeps the latency budget; run the search first")
    folder = setting.folder / "exported"
    shutil.rmtree(folder, ignore_errors=True)
    options = {"model": str(setting.folder / "model.onnx"), **limits}
    commands.export(setting.study, folder, trial=int(now.table.trial[row]), options=options, storage=setting.storage)
    written = next(folder / name for name in ("model.plan", "model.onnx") if (folder / name).exists())
    # On a fresh machine the engine that the search measured is gone: the export built and measured it anew.
    exported = json.loads((folder / "manifest.json").read_text())["evaluation"]
    measured = _measured(setting, exported["id"])
    found = {"trial": int(now.table.trial[row]), "files": sorted(path.name for path in folder.iterdir())}
    found |= {"rebuilt": exported["rebuilt"], "same_file": measured.read_bytes() == written.read_bytes()}
    setting.record("export", {**found, **_held_against(setting, measured, written)})
    say(json.dumps(setting.result("export")))


def _measured(setting: Setting, evaluation_id: int) -> Path:
    """The engine that the study keeps of an evaluation."""
    with setting.store() as (store, _, _target):
        digest = store.load(evaluation_id).artifact
    artifacts = Artifacts(artifacts_of(setting.config()))
    if digest is None or digest not in artifacts:
        raise RuntimeError(f"{setting.network}: the engine of evaluation {evaluation_id} is not kept")
    return artifacts.path(digest)


def _held_against(setting: Setting, measured: Path, written: Path) -> dict[str, Any]:
    with setting.keeper() as keeper:
        first = keeper.call("check_outputs", {"engine": str(measured)})
        keeper.close()
        second = keeper.call("check_outputs", {"engine": str(written)})
        params = {"engine": str(written), "measured": str(measured), "rounds": _ROUNDS}
        timed = [keeper.call("compare_latency", params) for _ in range(_TRIES)]
    equal = all(np.array_equal(first[name], second[name]) for name in first)
    return {"equal": equal, "ratios": [each["engine"] / each["measured"] for each in timed]}
