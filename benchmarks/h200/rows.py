"""Evaluations as compact JSON: for tables, and as data for a simulator of a real engine builder."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200.network_folder import BUDGETED, NetworkFolder
from evaluators.process.results import FinalScores
from search.values import Assignment, Evaluation, Precision
from studies.judging.status.time_table import end_times
from studies.store.store import Store

CODES = {Precision.FP32: "f", Precision.FP16: "h", Precision.INT8: "i"}
OPAQUE = "?"
FRESH = "fresh"  # the study of a guided search from its start, without a budget
STUDIES = (BUDGETED, FRESH, "tpe", "nsga2")


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


def of_study(network: NetworkFolder, study: str) -> list[dict[str, Any]]:
    """Rows of a study, in the order they were begun; exports are none.

    `role` names baselines, `final_loss` is on other images, `wall`: seconds from the start of the command to its end.
    """
    with network.reading(study) as (store, record, target):
        groups = [group.id for group in store.studies.groups(record.id)]
        ended = {each.evaluation_id: round(each.seconds, 3) for each in end_times(store, target.id)}
        records = [store.evaluations.load(number) for number in sorted(ended)]
    found = []
    for each in records:
        if each.role != "export":
            final = {} if each.final is None else {"final_loss": each.final.loss}
            role = {"role": each.role} if each.role else {}
            more = {**final, **role, "trial": each.trial, "wall": ended[each.id]}
            found.append({**row(each.evaluation, groups), **more})
    return found


def of_finalists(found: FinalScores) -> dict[str, dict[str, float]]:
    """By label: `ms` and its `spread`, and on the final data `value`, `loss`, `loss_low`, `loss_high`, `samples`.

    An engine whose outputs are not finite there is left out.
    """
    names = ("value", "loss", "loss_low", "loss_high", "samples")
    scores = {label: {name: getattr(score, name) for name in names} for label, score in found.accuracy.items()}
    times = {label: {"ms": found.latency[label].value_ms, "spread": found.latency[label].spread} for label in scores}
    return {label: {**times[label], **scores[label]} for label in scores}


def of_mixes(network: NetworkFolder) -> list[dict[str, Any]]:
    """Rows of the mixes, as mixes.py left them; `kind` says how a mix was drawn."""
    return [line for line in _lines(network) if "a" in line]


def workers(network: NetworkFolder) -> dict[str, dict[str, float]]:
    """Worker of mixes → milliseconds that the study's uniform engines took where it ran: GPUs differ a little."""
    return {line["worker"]: line["uniform_ms"] for line in _lines(network) if "uniform_ms" in line}


def _lines(network: NetworkFolder) -> list[dict[str, Any]]:
    file = network.path / "mixes.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def every(network: NetworkFolder) -> list[dict[str, Any]]:
    """Rows of all studies and of the mixes; `source` says which."""
    found = {study: of_study(network, study) for study in STUDIES if network.database(study).exists()}
    found["mixes"] = of_mixes(network)
    return [{**row, "source": source} for source, rows in found.items() for row in rows]


def dump(network: NetworkFolder, found: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write groups, edges, what the sampler was told, and these rows to a JSON file."""
    first = next(study for study in STUDIES if network.database(study).exists())
    with network.reading(first) as (store, study, target):
        groups, edges = store.studies.groups(study.id), network.model().edges
        place = {group.id: i for i, group in enumerate(groups)}
        about: dict[str, Any] = {
            "network": network.name,
            "target": target.target.to_json(),
            "metric": study.metric,
            **_told(store, target.id, place),
            "workers": workers(network),
            "groups": [group.name for group in groups],
            "edges": [[-1 if e.source is None else place[e.source], place[e.target], e.elements] for e in edges],
        }
    lines = ",\n".join(json.dumps(each) for each in found)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')


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
