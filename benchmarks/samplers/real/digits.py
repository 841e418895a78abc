"""The guided sampler against TPE on the example, for real: ONNX Runtime on one core of the CPU.

    python -m benchmarks.samplers.real.digits       # 5 seeds: guided 40 trials, tpe 120; goes on where stopped
    python -m benchmarks.samplers.real.digits --seeds 1 --trials guided=8 tpe=12 --work FOLDER --out FILE
    python -m benchmarks.samplers.real.digits --table

Every search is a study in a database of its own under --work; benchmarks/results/digits_samplers.json holds what all of
them found. Latencies are ratios to the FP32 baseline of the same search, which runs in turns with every candidate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS, ROOT
from benchmarks.page import table
from bitfront import verbs
from studies.judging.rules.hypervolume import Reference, hypervolume, hypervolume_history, reference_of
from studies.judging.standing import Standing
from studies.options.read_options import read_config

EXAMPLE = ROOT / "examples" / "digits"
OUT = RESULTS / "digits_samplers.json"
TRIALS = {"guided": 40, "tpe": 120}
NAMES = {"tpe": "TPE, multivariate"}  # in the table
MOST_DROP = 0.01
BATCH = 16
Floats = NDArray[np.float64]


def searched(sampler: str, seed: int, trials: int, work: Path) -> dict[str, Any]:
    """Begin or go on with one search to its end; every evaluation of it."""
    storage = f"sqlite:///{(work / f'{sampler}-{seed}.db').resolve()}"
    start = time.monotonic()
    if verbs.exists("digits", storage=storage):
        found = verbs.resume("digits", {"trials": trials}, storage=storage)
    else:
        options = {"model": str(EXAMPLE / "digits.onnx"), "data": str(EXAMPLE / "digits.npz"), "study": "digits"}
        options |= {"storage": storage, "sampler": sampler, "seed": str(seed), "trials": str(trials)}
        options |= {"batch": str(BATCH), "threads": "1", "keep-engines": "none"}
        found = verbs.search(read_config(options))
    return {**rows(found.standing), "trials": trials, "command_s": round(time.monotonic() - start, 1)}


def rows(now: Standing) -> dict[str, Any]:
    """Finished evaluations in the order they were made.

    `rows`: [latency over FP32's, loss, whether the loss is of every sample]. `uniform` places the baselines among them;
    `final` is [place, loss on samples that the search never saw].
    """
    base = now.measures.row_of("baseline:fp32")
    assert base is not None, "a search without its FP32 baseline"
    table, order = now.table, np.argsort(now.table.id, kind="stable")
    place = {int(row): number for number, row in enumerate(order)}
    ratio = table.latency_ms / table.latency_ms[base]
    finals = now.final.column("loss")
    return {
        "rows": [[round(float(ratio[r]), 5), float(table.loss[r]), bool(now.measures.complete[r])] for r in order],
        "uniform": sorted(place[row] for row in now.measures.baselines),
        "final": [[place[r], float(finals[r])] for r in place if np.isfinite(finals[r])],
        "band": now.target.band,
    }


def judged(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each search's share of the hypervolume of all searches' fronts together, over trials; and its pick.

    One reference point for all: the median of the uniform assignments' latencies and losses over the searches.
    """
    corner = corner_of(list(runs.values()))
    everything = [row for run in runs.values() for row in run["rows"] if row[2]]
    best = hypervolume([row[0] for row in everything], [row[1] for row in everything], corner)
    return {name: _judged(run, corner, best) for name, run in runs.items()}


def corner_of(runs: Sequence[Mapping[str, Any]]) -> Reference:
    count = min(len(run["uniform"]) for run in runs)
    uniform = np.array([[run["rows"][place][:2] for place in run["uniform"][:count]] for run in runs])
    ratio, loss = np.median(uniform, axis=0).T
    return reference_of(ratio.tolist(), loss.tolist())


def _judged(run: Mapping[str, Any], corner: Reference, best: float) -> dict[str, Any]:
    ratio, loss, complete = (np.array(column) for column in zip(*run["rows"], strict=True))
    shares = hypervolume_history(ratio, loss, complete.astype(bool), corner) / best
    kept = np.flatnonzero(complete.astype(bool) & (loss <= MOST_DROP))
    found: dict[str, Any] = {"shares": [round(float(share), 4) for share in shares]}
    if len(kept):
        place = int(kept[np.argmin(ratio[kept])])
        found |= {"pick_ratio": float(ratio[place]), "pick_loss": float(loss[place]), "pick_at": place + 1}
        finals = {int(at): value for at, value in run["final"]}
        found |= {"pick_final_loss": finals[place]} if place in finals else {}
    return found


def text(found: Mapping[str, Any]) -> str:
    """Markdown, of every sampler; and the trials that each needs to reach what guided has at its end."""
    results = judged(found["runs"])
    by_sampler: dict[str, list[dict[str, Any]]] = {}
    for name, result in results.items():
        by_sampler.setdefault(name.split("-")[0], []).append(result)
    marks = sorted({20, *TRIALS.values()})
    heads = ["sampler", "seeds", *(f"after {mark}" for mark in marks), "fastest at ≤ 1 % drop in the search"]
    rows = []
    for sampler, runs in by_sampler.items():
        cells = [_mean([run["shares"][mark - 1] for run in runs if len(run["shares"]) >= mark]) for mark in marks]
        picks = [run["pick_ratio"] for run in runs if "pick_ratio" in run]
        pick = f"{1 / np.mean(picks):.2f}× FP32 ({1 / max(picks):.2f} to {1 / min(picks):.2f})" if picks else "none"
        name = NAMES.get(sampler, sampler)
        rows.append([name, str(len(runs)), *cells, pick, _finals(runs)])
    return "\n\n".join([table([*heads, "its final loss"], rows), _needed(by_sampler)])


def _finals(runs: Sequence[Mapping[str, Any]]) -> str:
    """Losses of the picks on the final split, by seed; searches score only their finalists there."""
    picks = [run for run in runs if "pick_ratio" in run]
    losses = [run["pick_final_loss"] for run in picks if "pick_final_loss" in run]
    told = ", ".join(f"{loss:.1%}" for loss in losses)
    return f"{told} ({len(losses)} of {len(picks)} scored)" if losses else "none scored"


def _mean(shares: Sequence[float]) -> str:
    return f"{np.mean(shares):.1%} ± {np.std(shares):.1%}" if shares else ""


def _needed(by_sampler: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Trials of the others to reach the median seed of guided."""
    guided = [run["shares"][-1] for run in by_sampler.get("guided", [])]
    if not guided:
        return ""
    goal, told = float(np.median(guided)), []
    for sampler, runs in by_sampler.items():
        if sampler != "guided":
            reached = [next((i for i, s in enumerate(run["shares"], 1) if s >= goal), np.inf) for run in runs]
            told.append(f"{sampler}: {', '.join('never' if np.isinf(r) else f'{r:.0f}' for r in reached)}")
    return f"Trials to reach {goal:.1%}, by seed: {'; '.join(told)}."


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", nargs="+", metavar="SAMPLER=N", default=[f"{k}={v}" for k, v in TRIALS.items()])
    parser.add_argument("--work", type=Path, default=Path("/tmp/bitfront-digits-samplers"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="run nothing; print the table")
    arguments = parser.parse_args(words)
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": {}}
    asked = {name: int(trials) for name, trials in (pair.split("=") for pair in arguments.trials)}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.seeds if not arguments.table else 0):
        for sampler, trials in asked.items():
            if found["runs"].get(f"{sampler}-{seed}", {}).get("trials") == trials:
                continue
            run = searched(sampler, seed, trials, arguments.work)
            found["runs"][f"{sampler}-{seed}"] = run
            found["date"] = datetime.now(timezone.utc).date().isoformat()
            arguments.out.write_text(_json(found))
            print(f"{sampler} seed {seed}: {len(run['rows'])} evaluations, {run['command_s']} s", flush=True)
    print(text(found))


def _json(found: Mapping[str, Any]) -> str:
    """A line a search."""
    runs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in found["runs"].items())
    return f'{{\n "date": {json.dumps(found["date"])},\n "runs": {{\n{runs}\n }}\n}}\n'


if __name__ == "__main__":
    main()
