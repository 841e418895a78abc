"""Do picks hold? Five networks, five split seeds each, and 10,000 fresh samples that no split of any study had.

    python -m benchmarks.trust.run                                  # all that is not done: under half an hour, 2 cores
    python -m benchmarks.trust.run --only encoder --seeds 0 1       # pieces; repeatable
    python -m benchmarks.trust.run --table                          # of what is done
    python -m benchmarks.trust.run --write                           # the same, into benchmarks/results
    python -m benchmarks.trust.run --only heads --seeds 0 --trials 6 --fresh 500 --out /tmp/try.json

Every study is a search and an export by the command line, with the defaults but for what `studies.NETWORKS` states.
Results go to benchmarks/results/trust.json after every study. A study that is there, made by the git commit that is
checked out, is not made again; one of another commit is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.page import write_tables
from benchmarks.trust import studies, verdicts
from benchmarks.trust.fresh import Fresh
from benchmarks.trust.studies import NETWORKS

STORED = RESULTS / "trust.json"
SEEDS = range(5)
_PRODUCT = ("search", "evaluators", "studies", "examples", "benchmarks/trust")


def commit() -> str:
    """The commit that is checked out, marked where what is measured differs from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changes = ["git", "status", "--porcelain", "--untracked-files=no", "--", *_PRODUCT]
    changed = subprocess.run(changes, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return head.stdout.strip()[:12] + ("-changed" if changed else "")


def stored(out: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"runs": {}}
    return results


def keep(out: Path, name: str, run: dict[str, Any]) -> None:
    """Add one study to the results, which are whole at any time."""
    results = stored(out)
    runs = {**results["runs"], name: run}
    order = [f"{network}-{seed}" for network in NETWORKS for seed in SEEDS]
    results["runs"] = dict(sorted(runs.items(), key=lambda item: order.index(item[0])))
    results["counts"] = [{**vars(each), "met": each.met} for each in verdicts.counts(results["runs"])]
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps(results, indent=1) + "\n")
    draft.replace(out)


def run_network(network: str, arguments: argparse.Namespace, made_by: str) -> None:
    """Run the network's studies that are not done; the fresh samples are drawn and scored in FP32 once."""
    wanted, work = NETWORKS[network], arguments.work.resolve()
    fresh = Fresh(network, studies.model_of(network), wanted.metric, arguments.fresh)
    for seed in arguments.seeds:
        name = f"{network}-{seed}"
        done = stored(arguments.out)["runs"].get(name, {})
        if done.get("commit") == made_by and not arguments.again:
            continue
        start = time.monotonic()
        figures = studies.run(network, seed, work, fresh, arguments.trials)
        seconds = round(time.monotonic() - start, 1)
        about = {"commit": made_by, "date": f"{datetime.date.today()}", "load": round(os.getloadavg()[0], 1)}
        keep(arguments.out, name, {**about, "fresh_samples": arguments.fresh, "wall_s": seconds, **figures})
        tell(name, figures, seconds)


def tell(name: str, run: dict[str, Any], seconds: float) -> None:
    losses = ", ".join(f"{100 * run[part]['loss']:.2f} {part}" for part in ("search", "final", "fresh"))
    over = run["fastest"]["best_over_it"]
    best = "none holds" if over is None else f"{over:.3f} × the fastest that holds"
    pick = "FP32" if run["is_fp32"] else run["pick"]
    print(f"{name}: {pick}, {run['over_fp32']:.3f} × FP32; loses {losses}; {run['verdict']}; {best}; {seconds:.0f} s")
    sys.stdout.flush()


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(NETWORKS), help="this network; repeatable")
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, default=list(SEEDS), metavar="N")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "trust", help="folder of the studies")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--trials", type=int, help="of every study, for a quick try")
    parser.add_argument("--fresh", type=int, default=studies.FRESH, help="fresh samples")
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--table", action="store_true", help="run nothing, tell what is done")
    parser.add_argument("--write", action="store_true", help="the same, and write benchmarks/results/trust.md")
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    start, made_by = time.monotonic(), commit()
    for network in () if arguments.table or arguments.write else arguments.only or NETWORKS:
        run_network(network, arguments, made_by)
    markdown = verdicts.text(stored(arguments.out)["runs"])
    print(f"{markdown}\n\n{time.monotonic() - start:.0f} s, commit {made_by}")
    if arguments.write:
        write_tables("trust", "Do picks hold?", "python -m benchmarks.trust.run --write", markdown)


if __name__ == "__main__":
    main()
