"""Search a network within 1.10 times the latency of its fastest uniform assignment, and compare what came out.

Compared are the uniform assignments, TensorRT's own choice of precisions, the pick of the search, and the fastest that
it found at no more loss than TensorRT's own choice: timed in turns by one process, on images that the search never saw.
The search goes on where it was stopped.

usage: python -m benchmarks.h200.search WORK NETWORK [--trials 60] [--tiny]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.h200 import network_folder, rows
from benchmarks.h200.network_folder import BUDGETED, SOURCE, NetworkFolder
from bitfront import verbs
from search.graph.model import Model
from search.values import Assignment
from studies.judging.standing import Standing

FACTOR = 1.10  # of the fastest uniform assignment's latency: the budget of the search
_BASELINES = 3
_ROUNDS = 20


def search(network: NetworkFolder, trials: int) -> float:
    """Search within the budget; the budget in milliseconds."""
    if not network.database(BUDGETED).exists():
        network.search(BUDGETED, _BASELINES, {}, **{"keep-engines": "all"})
    uniform = [row["lat"] for row in rows.of_study(network, BUDGETED) if row.get("role") and "lat" in row]
    budget_ms = FACTOR * min(uniform)
    network.search(BUDGETED, trials, {"latency-budget": f"{1000 * budget_ms:.3f}us"})
    return budget_ms


# -- TensorRT's own choice ---------------------------------------------------------------------------------------------


def own_choice(network: NetworkFolder) -> dict[str, Any]:
    """Build TensorRT's own choice of precisions in a process of its own, where it is not there yet; how."""
    known: dict[str, Any] = network.recorded().get("uniform", {}).get("free", {})
    if known and (network.path / "free.plan").exists():
        return known
    job = network.path / "job.json"
    job.write_text(json.dumps(asdict(network.job(network.path / "process"))))
    command = [sys.executable, "-m", "benchmarks.h200.own_choice", str(job), str(network.path / "free.plan")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"building TensorRT's own choice failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"TensorRT's own choice: {found}", flush=True)
    return found


# -- side by side ------------------------------------------------------------------------------------------------------


def compare(network: NetworkFolder, budget_ms: float) -> dict[str, Any]:
    """Uniform assignments, TensorRT's own choice and what the search found, side by side; what is recorded of it."""
    engines, built = uniform_engines(network)
    found: dict[str, Any] = {"rows": built}
    now = verbs.front(network.name, {"latency_budget_ms": budget_ms}, storage=network.storage(BUDGETED)).standing
    wanted = {"pick": now.picks.best}
    if network.backend == "tensorrt":
        found["free"], engines["free"] = own_choice(network), network.path / "free.plan"
        # On the images of the search, so that the search's own losses can be held against it.
        searched = together(network, {"free": engines["free"]}, final_data=f"{SOURCE}:search")
        wanted["match"] = fastest_at(now, searched["free"]["loss"])
    network.record("uniform", found)
    chosen = {}
    for label, row in wanted.items():
        if row is not None:
            number = int(now.table.id[row])
            engines[label], chosen[label] = engine_of(network, number), described(network, number)
    figures = together(network, engines)
    return {"chosen": chosen, "together": figures, "verdict": verdict(figures)}


def uniform_engines(network: NetworkFolder) -> tuple[dict[str, Path], dict[str, Any]]:
    """Of the uniform assignments, by label: engines, and what `described` says of each."""
    with network.reading(BUDGETED) as (store, _, target):
        numbers = store.evaluations.baselines(target.id)
        labels = [store.evaluations.load(number).role.removeprefix("baseline:") for number in numbers]
    pairs = list(zip(labels, numbers, strict=True))
    engines = {label: engine_of(network, number) for label, number in pairs}
    return engines, {label: described(network, number) for label, number in pairs}


def engine_of(network: NetworkFolder, number: int) -> Path:
    """The engine of an evaluation; the study keeps them all."""
    with network.reading(BUDGETED) as (store, _, _target):
        return network.artifact(BUDGETED, str(store.evaluations.load(number).artifact))


def described(network: NetworkFolder, number: int) -> dict[str, Any]:
    """A row of an evaluation, with its trial and its changes of precision."""
    with network.reading(BUDGETED) as (store, study, _):
        record, groups = store.evaluations.load(number), [group.id for group in store.studies.groups(study.id)]
    changes = changes_of_precision(record.evaluation.assignment, network.model())
    return {**rows.row(record.evaluation, groups), "trial": record.trial, "changes": changes}


def changes_of_precision(assignment: Assignment, model: Model) -> int:
    """Edges between groups of different precision: each may cost a reformat."""
    ends = [(edge.source, edge.target) for edge in model.edges if edge.source is not None]
    return sum(assignment[source] != assignment[target] for source, target in ends)


def together(network: NetworkFolder, engines: Mapping[str, Path], **changes: Any) -> dict[str, Any]:
    """Engines timed in turns by one process and scored on the final images: figures by label."""
    with network.evaluator(**changes) as keeper:
        found = keeper.ask().scores.score_finalists(engines, _ROUNDS)
    figures = rows.of_finalists(found)
    for label, row in figures.items():
        print(f"{label:8} {row['ms']:.4f} ms, top-1 {row['value']:.2%}, loss {100 * row['loss']:.2f} points")
    return figures


def fastest_at(now: Standing, loss: float) -> int | None:
    """The fastest row that loses no more than `loss`."""
    fitting = np.flatnonzero(now.measures.complete & (now.table.loss <= loss))
    return int(fitting[np.argmin(now.measures.latency_ms[fitting])]) if len(fitting) else None


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
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = network_folder.parser(__doc__)
    parser.add_argument("--trials", type=int, default=60)
    given = parser.parse_args(words)
    network = network_folder.opened(given)
    budget_ms = search(network, given.trials)
    network.record("search", {"budget_ms": budget_ms})
    network.record("compare", compare(network, budget_ms))
    print(json.dumps(network.recorded()["compare"]["verdict"]))


if __name__ == "__main__":
    main()
