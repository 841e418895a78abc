"""Evaluations as compact JSON: for tables, and as data for a simulator of a real engine builder."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.h200.setting import Setting
from search.values import Assignment, Evaluation, Precision
from studies.store.store import Store

CODES = {Precision.FP32: "f", Precision.FP16: "h", Precision.INT8: "i"}
OPAQUE = "?"
FRESH = "fresh"  # the study of step `throughput`
APART = (FRESH, "tpe", "nsga2")  # studies beside the first one


def row(evaluation: Evaluation, groups: Collection[str]) -> dict[str, Any]:
    """One evaluation; keys only for what was reached.

    `a` asked and `got` ran: a letter a group (f, h, i; ? opaque). `lat`, `spread`: median ms, inter-quartile range over
    median. `loss`, `loss_low`, `loss_high`: share of one, with its 95 % interval. `correct` of `samples`, `total` in
    the split. `build`, `seconds`: of the build, of all. `layers`, `moves`: of the engine.
    """
    found: dict[str, Any] = {"a": letters(evaluation.assignment, groups)}
    if evaluation.audit:
        got = {audit.group: OPAQUE if audit.got is None else CODES[audit.got] for audit in evaluation.audit}
        found["got"] = "".join(got[group] for group in groups)
    if evaluation.failure is not None:
        failure = evaluation.failure
        found["failed"] = [failure.stage.value, failure.kind.value, failure.message[:300]]
    if evaluation.latency is not None:
        found |= {"lat": round(evaluation.latency.value_ms, 6), "spread": round(evaluation.latency.spread, 5)}
    if evaluation.accuracy is not None:
        score = evaluation.accuracy
        found |= {"loss": score.loss, "loss_low": score.loss_low, "loss_high": score.loss_high}
        found |= {"correct": float(score.scores.sum()), "samples": score.samples, "total": score.total}
    if evaluation.engine is not None:
        found |= {"layers": evaluation.engine.layers, "moves": evaluation.engine.moves}
    found |= {"build": evaluation.build_s, "seconds": evaluation.total_s, "attempts": evaluation.attempts}
    return {key: value for key, value in found.items() if value is not None}


def letters(assignment: Assignment, groups: Collection[str]) -> str:
    """A letter a group: f, h, i."""
    return "".join(CODES[assignment[group]] for group in groups)


def stored(setting: Setting) -> list[dict[str, Any]]:
    """Rows of the study, in the order they were evaluated; `role` names baselines, `final_loss` is on other images."""
    with setting.store() as (store, study, target):
        groups = [group.id for group in store.studies.groups(study.id)]
        records = [store.evaluations.load(int(number)) for number in store.evaluations.table(target.id).id]
    found = []
    for record in records:
        if record.status != "running":
            final = {} if record.final is None else {"final_loss": record.final.loss}
            role = {"role": record.role} if record.role else {}
            found.append({**row(record.evaluation, groups), **final, **role, "trial": record.trial})
    return found


def mixed(setting: Setting) -> list[dict[str, Any]]:
    """Rows of the mixes of every worker, as `proof.py mixes` left them; `kind` says how a mix was drawn."""
    return [line for line in _lines(setting) if "a" in line]


def workers(setting: Setting) -> dict[str, dict[str, float]]:
    """Worker of mixes → milliseconds that the study's uniform engines took where it ran: GPUs differ a little."""
    return {line["worker"]: line["uniform_ms"] for line in _lines(setting) if "uniform_ms" in line}


def _lines(setting: Setting) -> list[dict[str, Any]]:
    files = sorted(setting.folder.glob("mixes*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines if _is_whole(line)]


def _is_whole(line: str) -> bool:
    """A worker that was killed may have left half a line."""
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def every(setting: Setting) -> list[dict[str, Any]]:
    """Rows of the study, of those beside it, and of the mixes; `source` says which.

    `wall` of studies: seconds from the start of the command until it was there, of all commands that went on with it;
    `begins`: the first evaluation of a command.
    """
    found = {own.apart or "study": _timed(own) for own in studies(setting)}
    found["mixes"] = mixed(setting)
    return [{**row, "source": source} for source, rows in found.items() for row in rows]


def studies(setting: Setting) -> list[Setting]:
    """Of the network, those that there are, the first one first."""
    return [own for name in ("", *APART) if (own := replace(setting, apart=name)).database.exists()]


def _timed(setting: Setting) -> list[dict[str, Any]]:
    file, told, total = setting.folder / stages_name(setting.apart), dict[int, dict[str, Any]](), 0.0
    for line in file.read_text().splitlines() if file.exists() else []:
        if _is_whole(line):
            timed = json.loads(line)
            total += timed["wall_s"]
            told[timed["trial"]] = {"wall": round(total, 3), **({"begins": True} if timed["first"] else {})}
    return [{**row, **told.get(row["trial"], {})} for row in stored(setting)]


def stages_name(apart: str) -> str:
    """The file in which a Stopwatch leaves what every evaluation of a study took."""
    return f"{apart}.stages.jsonl" if apart else "stages.jsonl"


def dump(setting: Setting, out: Path) -> int:
    """Write groups, edges and every evaluation to a JSON file; how many."""
    with studies(setting)[0].store() as (store, study, target):
        groups, edges = store.studies.groups(study.id), setting.model().edges
        about: dict[str, Any] = {"network": setting.network, "target": target.target.to_json(), "metric": study.metric}
        place = {group.id: i for i, group in enumerate(groups)}
        about |= _told(store, target.id, place)
    found = every(setting)
    about |= {
        "workers": workers(setting),
        "groups": [group.name for group in groups],
        "edges": [[-1 if e.source is None else place[e.source], place[e.target], e.elements] for e in edges],
    }
    lines = ",\n".join(json.dumps(each) for each in found)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')
    return len(found)


def _told(store: Store, target: int, place: Mapping[str, int]) -> dict[str, Any]:
    """What the guided sampler was told: layers of the uniform engines in the order they ran, each [name, kind, place of
    its group, whether it only moves, ms], and [place, precision, relative output error alone] of the sensitivities."""
    profiles = {}
    for number in store.evaluations.baselines(target):
        profile, label = store.engines.profile(number), store.evaluations.load(number).role.removeprefix("baseline:")
        layers = [[t.name, t.kind, None if t.group is None else place[t.group], t.moves, t.ms] for t in profile]
        profiles[CODES[Precision.parse(label)]] = layers
    errors = store.spaces.sensitivities(target)
    # JSON has no infinity: None stands for an output that is not finite.
    alone = [[place[g], CODES[p], e if math.isfinite(e) else None] for (g, p), e in errors.items()]
    return {"profiles": {letter: layers for letter, layers in profiles.items() if layers}, "sensitivities": alone}


def assignment(codes: str, groups: Sequence[str]) -> Assignment:
    """The assignment that a row's letters stand for."""
    named = {code: precision for precision, code in CODES.items()}
    return Assignment({group: named[code] for group, code in zip(groups, codes, strict=True)})
