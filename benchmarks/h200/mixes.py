"""Build and evaluate random mixes: what builds and runs as asked, and rows for a simulator of the network.

All images are scored. Ranges are those of the search within a budget, which has to be there. It goes on where it was
stopped.

usage: python -m benchmarks.h200.mixes WORK NETWORK [--mixes 100] [--tiny]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.h200 import network_folder, rows
from benchmarks.h200.network_folder import NetworkFolder
from benchmarks.h200.search import uniform_engines
from evaluators.process.job import Limits
from search.space.choices import Space, Variable
from search.values import Assignment, Precision

_FEW = (1, 1, 2, 3, 4)  # layers that differ from a uniform assignment
_WORKER = "here"


def evaluate_mixes(network: NetworkFolder, count: int) -> None:
    """Evaluate mixes until there are so many; each row is kept as a line as soon as it is there."""
    with network.reading(network_folder.BUDGETED) as (store, study, _):
        groups = [group.id for group in store.studies.groups(study.id)]
    engines, _ = uniform_engines(network)
    out, known = network.path / "mix.engine", {row["a"] for row in rows.of_mixes(network)}
    with network.evaluator() as keeper:
        space = network.space(keeper)
        times = {label: keeper.ask().timings.time_engine(engine) for label, engine in engines.items()}
        _append(network, {"worker": _WORKER, "uniform_ms": {label: each.value_ms for label, each in times.items()}})
        for kind, assignment in random_mixes(space, count):
            if rows.letters(assignment, groups) in known:
                continue
            row = rows.row(keeper.evaluate(assignment, out, Limits()), groups)
            out.unlink(missing_ok=True)
            known.add(row["a"])
            _append(network, {**row, "kind": kind, "worker": _WORKER})
            print(f"mix {len(known)}/{count}: {kind}, {row.get('failed') or row['lat']} {row['a']}", flush=True)


def _append(network: NetworkFolder, line: Mapping[str, Any]) -> None:
    with (network.path / "mixes.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


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


# -- which mixes -----------------------------------------------------------------------------------------------------


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


def main(words: Sequence[str] | None = None) -> None:
    parser = network_folder.parser(__doc__)
    parser.add_argument("--mixes", type=int, default=100)
    given = parser.parse_args(words)
    network = network_folder.opened(given)
    evaluate_mixes(network, given.mixes)
    print(json.dumps(obedience(rows.of_mixes(network))["counts"]))


if __name__ == "__main__":
    main()
