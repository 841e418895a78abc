"""Steps `mixes`, `repeat` and `export`: what builds and obeys, how repeatable a latency is, whether an export holds."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.h200 import rows
from benchmarks.h200.searching import engine_of
from benchmarks.h200.setting import Setting, say
from evaluators.job import Limits
from search.space import Space
from search.values import Assignment, Precision
from studies import commands
from studies.artifacts import Artifacts
from studies.setup import artifacts_of

_ROUNDS = 20
_TRIES = 3


# -- mixes -----------------------------------------------------------------------------------------------------------


def mixes(setting: Setting, count: int) -> None:
    """Evaluate random mixes, each kept as a line as soon as it is there."""
    setting.open_data()
    file, done, groups = setting.folder / "mixes.jsonl", len(rows.mixed(setting)), _group_ids(setting)
    with setting.keeper() as keeper:
        for number, assignment in list(enumerate(random_mixes(setting.space(keeper), count)))[done:]:
            if not setting.has_time(15):
                break
            out = setting.folder / "mix.engine"
            line = rows.row(keeper.evaluate(assignment, out, Limits()), groups)
            out.unlink(missing_ok=True)
            with file.open("a") as sink:
                sink.write(json.dumps(line) + "\n")
            say(f"mix {number + 1}/{count}: {line.get('failed') or line['lat']} {line['a']}")
    setting.record("mixes", obedience(rows.mixed(setting)))
    setting.record("obedience", obedience([*rows.stored(setting), *rows.mixed(setting)], names=_group_names(setting)))
    say(json.dumps(setting.result("obedience")["counts"]))


def random_mixes(space: Space, count: int) -> list[Assignment]:
    """Distinct random assignments, the same every time: by turns group by group, and in runs of neighbours."""
    rng, found = np.random.RandomState(7), dict.fromkeys(space.baselines().values())
    uniforms = len(found)
    wanted = min(count + uniforms, space.size)
    while len(found) < wanted:
        in_runs, codes, last = bool(len(found) % 2), {}, 0.0
        for variable in space.variables:
            if not in_runs or not codes or rng.random_sample() < 0.25:
                last = rng.random_sample()
            codes[variable.id] = int(last * len(variable.precisions))
        found.setdefault(space.assignment(codes))
    return list(found)[uniforms:]


def obedience(found: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> dict[str, Any]:
    """Built and failed evaluations, groups by what was asked and whether it was got, and the exceptions by name."""
    counts: Counter[str] = Counter()
    exceptions: Counter[str] = Counter()
    for row in found:
        for place, (asked, got) in enumerate(zip(row["a"], row.get("got", ""), strict=False)):
            answer = "opaque" if got == rows.OPAQUE else "obeyed" if got == asked else "not obeyed"
            counts[f"{asked} {answer}"] += 1
            if answer == "not obeyed":
                exceptions[f"{names[place] if names else place}: asked {asked}, got {got}"] += 1
    failures = Counter(" ".join(row["failed"][:2]) for row in found if "failed" in row)
    messages = sorted({row["failed"][2] for row in found if "failed" in row})
    return {
        "asked": len(found),
        "built": sum("got" in row for row in found),
        "failures": failures,
        "messages": messages[:5],
        "counts": counts,
        "exceptions": exceptions,
    }


# -- repeat ----------------------------------------------------------------------------------------------------------


def repeat(setting: Setting, processes: int, rebuilds: int) -> None:
    """One engine timed in fresh processes, then one assignment built and timed in fresh processes."""
    setting.open_data()
    with setting.keeper() as keeper:
        space = setting.space(keeper)
        plan = engine_of(setting, keeper, "int8", space.uniform(Precision.INT8))
        digest = hashlib.sha256(plan.read_bytes()).hexdigest()
        if setting.result("repeat").get("plan") != digest:  # another machine built another plan
            setting.record("repeat", {"plan": digest, "one_plan_ms": []})
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
    now, _ = commands.front(setting.network, limits, setting.storage)
    row = now.picks.accurate
    if row is None:
        raise RuntimeError(f"{setting.network}: no evaluation keeps the latency budget; run the search first")
    folder = setting.folder / "exported"
    shutil.rmtree(folder, ignore_errors=True)
    options = {"model": str(setting.folder / "model.onnx"), **limits}
    commands.export(setting.network, folder, trial=int(now.table.trial[row]), options=options, storage=setting.storage)
    written = next(folder / name for name in ("model.plan", "model.onnx") if (folder / name).exists())
    measured = _measured(setting, int(now.table.id[row]))
    found = {"trial": int(now.table.trial[row]), "files": sorted(path.name for path in folder.iterdir())}
    setting.record("export", {**found, **_held_against(setting, measured or written, written)})
    setting.record("export", {"same_file": measured is not None and measured.read_bytes() == written.read_bytes()})
    say(json.dumps(setting.result("export")))


def _measured(setting: Setting, evaluation_id: int) -> Path | None:
    """The engine that the study keeps of an evaluation."""
    with setting.store() as (store, _, _target):
        digest = store.load(evaluation_id).artifact
    artifacts = Artifacts(artifacts_of(setting.config()))
    return artifacts.path(digest) if digest is not None and digest in artifacts else None


def _held_against(setting: Setting, measured: Path, written: Path) -> dict[str, Any]:
    with setting.keeper() as keeper:
        first = keeper.call("check_outputs", {"engine": str(measured)})
        keeper.close()
        second = keeper.call("check_outputs", {"engine": str(written)})
        params = {"engine": str(written), "measured": str(measured), "rounds": _ROUNDS}
        timed = [keeper.call("compare_latency", params) for _ in range(_TRIES)]
    equal = all(np.array_equal(first[name], second[name]) for name in first)
    return {"equal": equal, "ratios": [each["ms"] / each["other_ms"] for each in timed]}


def _group_ids(setting: Setting) -> list[str]:
    with setting.store() as (store, study, _):
        return [group.id for group in store.groups(study.id)]


def _group_names(setting: Setting) -> list[str]:
    with setting.store() as (store, study, _):
        return [group.name for group in store.groups(study.id)]
