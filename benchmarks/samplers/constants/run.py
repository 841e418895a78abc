"""What it costs to halve or double every constant of the guided sampler, and the page that lists them.

    python -m benchmarks.samplers.constants.run --known worlds.json  # 80 draws in three worlds; goes on
    python -m benchmarks.samplers.constants.run --draws 2 --worlds branching_22 --trials 12 --no-page  # a short try
    python -m benchmarks.samplers.constants.run --page               # only write docs/development/constants.md

`--known` is a file that `benchmarks.samplers.worlds.run` wrote: the best-known fronts begin from what is in it. Runs
are kept in constants.json in the folder from which it is started, or --out, and their shares in the file
benchmarks/results/sampler_constants.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.samplers.constants import page, varied
from benchmarks.samplers.worlds import catalogue, tables
from benchmarks.samplers.worlds.catalogue import WORLDS
from benchmarks.samplers.worlds.run import save

OUT = Path("constants.json")
SHARES = RESULTS / "sampler_constants.json"
USUAL = ("branching_22", "residual_60", "tangled_60")
UNCHANGED = 8  # seeds with all constants as they are

Task = tuple[str, int, int]
"""World, seed, draw."""


def tasks(worlds: Sequence[str], draws: int) -> list[Task]:
    """Unchanged runs first; of draws every one has a seed of its own."""
    unchanged = [(world, seed, 0) for seed in range(min(UNCHANGED, draws)) for world in worlds]
    return unchanged + [(world, draw, draw) for draw in range(1, draws + 1) for world in worlds]


def perform(task: Task, trials: int) -> list[str]:
    """The codes that the sampler tried, in order."""
    return ["".join(map(str, row)) for row in varied.search(*task, trials).tolist()]


def key_of(task: Task) -> str:
    return "|".join(map(str, task))


def stored(out: Path, trials: int) -> dict[str, Any]:
    """The runs that there are, none if there is no file.

    Raises:
        ValueError: they have another number of trials, or other constants were varied: draws would mean something else.
    """
    about = {"trials": trials, "varied": [constant.key for constant in varied.varied()]}
    found = json.loads(out.read_text()) if out.exists() else {**about, "runs": {}}
    if {name: found[name] for name in about} != about:
        raise ValueError(
            f"{out}: expected runs of {trials} trials that vary the constants of today; give another --out"
        )
    return found


def run_all(todo: Sequence[Task], found: dict[str, Any], out: Path, jobs: int) -> None:
    """Run what is not there yet, storing after every run."""
    left = [task for task in todo if key_of(task) not in found["runs"]]
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(perform, task, found["trials"]): task for task in left}
        for number, future in enumerate(as_completed(waiting), 1):
            found["runs"][key_of(waiting[future])] = future.result()
            save(out, found)
            print(f"{number}/{len(left)} {key_of(waiting[future])}", flush=True)


def shares_of(found: dict[str, Any], known: Path | None, jobs: int) -> dict[str, list[float]]:
    """Run → its share over the uniform assignments after 10 trials and after all."""
    runs = {key: {"codes": codes} for key, codes in found["runs"].items()}
    worlds = sorted({key.split("|")[0] for key in runs})
    mine = {
        "runs": {f"{world}|varied": {k: r for k, r in runs.items() if k.split("|")[0] == world} for world in worlds}
    }
    best = tables.best_fronts(worlds, [mine, *([json.loads(known.read_text())] if known else [])], jobs)
    shares = {}
    for key, run in runs.items():
        world = key.split("|")[0]
        curve = tables.shares(catalogue.make(world), best[world], tables.codes_of(run))
        shares[key] = [round(float(curve[min(mark, len(curve)) - 1]), 5) for mark in (10, len(curve))]
    return shares


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(USUAL))
    parser.add_argument("--draws", type=int, default=80)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="runs, or best-known fronts, at a time")
    parser.add_argument("--known", type=Path, help="results of benchmarks.samplers.worlds.run")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", action="store_true", help="run nothing; write the page")
    parser.add_argument("--no-page", action="store_true", help="print the shares in place of storing them")
    arguments = parser.parse_args(words)
    if not arguments.page:
        found = stored(arguments.out, arguments.trials)
        run_all(tasks(arguments.worlds, arguments.draws), found, arguments.out, arguments.jobs)
        shares = shares_of(found, arguments.known, arguments.jobs)
        if arguments.no_page:
            print(json.dumps(shares))
            return
        save(SHARES, {"varied": found["varied"], "shares": shares})
    page.write(json.loads(SHARES.read_text()))


if __name__ == "__main__":
    main()
