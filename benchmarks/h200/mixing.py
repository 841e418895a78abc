"""Step `mixes`: what builds and obeys, and rows for a simulator: evaluations of random mixes, all images scored."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.h200 import rows
from benchmarks.h200.searching import uniform_engines
from benchmarks.h200.setting import Setting, say
from evaluators.process.job import Limits
from evaluators.process.keeper import EvaluatorProcess
from search.space.choices import Space, Variable
from search.values import Assignment, Precision

_LEAST_S = 15.0
_FEW = (1, 1, 2, 3, 4)  # layers that differ from a uniform assignment
Shard = tuple[int, int]


def mixes(setting: Setting, count: int, shard: Shard = (0, 1)) -> bool:
    """Evaluate this worker's share of the mixes, until all workers have `count`; False when time was up before that.

    Each row is kept as a line of the worker's own file as soon as it is there. Ranges are those of the first study.

    Raises:
        FileNotFoundError: the network has no study yet.
    """
    setting = _studied(setting)
    setting.open_data()
    groups, worker = _groups(setting), f"{shard[0]}of{shard[1]}"
    file = setting.folder / f"mixes.{worker}.jsonl"
    with setting.keeper() as keeper:
        space, out = setting.space(keeper), setting.folder / f"mix.{worker}.engine"
        uniform_ms = _uniform_ms(setting, keeper, space, out)
        _append(file, {"worker": worker, "uniform_ms": uniform_ms, "gpu": _gpu()})
        drawn = random_mixes(space, count * shard[1])
        for kind, assignment in shared(drawn, shard):
            known = {row["a"] for row in rows.mixed(setting)}
            if len(known) >= count or not setting.has_time(_LEAST_S):
                break
            if rows.letters(assignment, groups) in known:
                continue
            line = rows.row(keeper.evaluate(assignment, out, Limits()), groups)
            out.unlink(missing_ok=True)
            _append(file, {**line, "kind": kind, "worker": worker})
            say(f"mix {len(known) + 1}/{count}: {kind}, {line.get('failed') or line['lat']} {line['a']}")
    return record_obedience(setting) >= count


def record_obedience(setting: Setting) -> int:
    """Obedience over the mixes and over all that was ever built; how many mixes there are."""
    mixed, groups = rows.mixed(setting), _groups(rows.studies(setting)[0])
    setting.record("mixes", obedience(mixed))
    setting.record("obedience", obedience(rows.every(setting), names=list(groups.values())))
    say(json.dumps(setting.result("obedience")["counts"]))
    return len(mixed)


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


def _append(file: Path, line: Mapping[str, Any]) -> None:
    with file.open("a") as sink:
        sink.write("\n" + json.dumps(line))  # a worker that was killed may have left half a line


def _studied(setting: Setting) -> Setting:
    """That of the first study that there is: a network may have been searched from its start only."""
    found = rows.studies(setting)
    if not found:
        raise FileNotFoundError(f"drawing mixes of {setting.network}: no study in {setting.folder}; search it first")
    return found[0]


def _uniform_ms(setting: Setting, keeper: EvaluatorProcess, space: Space, out: Path) -> dict[str, float]:
    """What the uniform engines take on this worker's GPU: GPUs of one model differ a little. Built where not kept."""
    found = {}
    kept = uniform_engines(setting)
    for label, assignment in space.baselines().items():
        if label in kept:
            found[label] = keeper.ask().timings.time_engine(kept[label]).value_ms
        elif (latency := keeper.evaluate(assignment, out, Limits()).latency) is not None:
            found[label] = latency.value_ms
            out.unlink(missing_ok=True)
    return found


def _gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def _groups(setting: Setting) -> dict[str, str]:
    """Id → name."""
    with setting.store() as (store, study, _):
        return {group.id: group.name for group in store.studies.groups(study.id)}


# -- which mixes -----------------------------------------------------------------------------------------------------


def shared(drawn: Sequence[tuple[str, Assignment]], shard: Shard) -> Iterator[tuple[str, Assignment]]:
    """One worker's mixes: every `shard[1]`-th, kinds by turns whatever the number of workers."""
    for place, mix in enumerate(drawn):
        if (place + place // len(_DRAWS)) % shard[1] == shard[0]:
            yield mix


def random_mixes(space: Space, count: int) -> list[tuple[str, Assignment]]:
    """Distinct mixes with their kinds, the same every time; more of them begin with the same ones.

    By turns: every layer at random; runs of neighbours, every other time without FP32; all INT8 but a few layers; all
    FP16 but a few. So they are spread out and still dense near where the front lies.
    """
    rng, uniforms = np.random.RandomState(7), space.baselines()
    found: dict[Assignment, str] = dict.fromkeys(uniforms.values(), "")
    wanted = min(count + len(uniforms), space.size)
    attempt = 0
    while len(found) < wanted:
        kind, draw = _DRAWS[attempt % len(_DRAWS)]
        found.setdefault(space.assignment(draw(space, rng)), kind)
        attempt += 1
    return [(kind, assignment) for assignment, kind in found.items() if kind]


def _at_random(space: Space, rng: np.random.RandomState) -> dict[str, int]:
    return {variable.id: rng.randint(len(variable.precisions)) for variable in space.variables}


def _in_runs(space: Space, rng: np.random.RandomState) -> dict[str, int]:
    without_fp32, last, codes = rng.random_sample() < 0.5, rng.random_sample(), {}
    for variable in space.variables:
        if rng.random_sample() < 0.25:
            last = rng.random_sample()
        lowest = int(without_fp32 and len(variable.precisions) > 2)
        codes[variable.id] = lowest + int(last * (len(variable.precisions) - lowest))
    return codes


def _near(precision: Precision) -> Callable[[Space, np.random.RandomState], dict[str, int]]:
    def draw(space: Space, rng: np.random.RandomState) -> dict[str, int]:
        codes = space.codes(space.uniform(precision))
        for variable in _chosen(space.variables, min(int(rng.choice(_FEW)), len(space.variables)), rng):
            others = [code for code in range(len(variable.precisions)) if code != codes[variable.id]]
            # FP32 is seldom worth its time: once in four.
            first = len(others) > 1 and rng.random_sample() < 0.75
            codes[variable.id] = others[-1] if first else others[rng.randint(len(others))]
        return codes

    return draw


def _chosen(variables: Sequence[Variable], count: int, rng: np.random.RandomState) -> list[Variable]:
    """So many, neighbours every other time."""
    if rng.random_sample() < 0.5:
        start = rng.randint(len(variables) - count + 1)
        return list(variables[start : start + count])
    return [variables[place] for place in rng.choice(len(variables), count, replace=False)]


_DRAWS: tuple[tuple[str, Callable[[Space, np.random.RandomState], dict[str, int]]], ...] = (
    ("random", _at_random),
    ("runs", _in_runs),
    ("near INT8", _near(Precision.INT8)),
    ("near FP16", _near(Precision.FP16)),
)
