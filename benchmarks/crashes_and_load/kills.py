"""Kill a search at random moments and resume it each time: what is lost, doubled or left behind.

Kills (-9) take, in turn, the main process, and the evaluator process with the main process up to a second later. Prints
one line of JSON; exits with 1 when anything is not as it must be.

usage: python -m benchmarks.crashes_and_load.kills [--kills 20] [--trials 40] [--builders 0] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.support.command_line import write_inputs
from tests.support.crashes.kill_and_resume import survive
from tests.support.networks import mobile_cnn


def main(kills: int = 20, trials: int = 40, seed: int = 0, builders: int = 0) -> dict[str, object]:
    """Run the story once; what came of it."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "temporary").mkdir()
        os.environ["TMPDIR"] = str(folder / "temporary")
        write_inputs(folder / "in", mobile_cnn())
        first = ("in/model.onnx", "--data", "in/data.npz", "--study", "killed", "--trials", trials)
        more = ("--builders", builders, "--quiet")
        story = survive(folder, (*first, *more), "killed", kills=kills, trials=trials, seed=seed)
        swept = not list((folder / "temporary").glob("bitfront-run-*"))
    figures = {**asdict(story), "kills": kills, "trials": trials, "seed": seed, "temporary_files_swept": swept}
    return {**figures, "seconds": round(time.monotonic() - start, 1), "good": _good(figures)}


def _good(figures: dict[str, object]) -> bool:
    none = all(figures[key] == 0 for key in ("lost", "changed", "duplicated", "running_left", "untold"))
    whole = figures["evaluations"] == figures["trials"] and figures["front_equal"] and figures["temporary_files_swept"]
    return bool(none and whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--builders", type=int, default=0, help="processes that only build; the database is SQLite")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    result = main(given.kills, given.trials, given.seed, given.builders)
    print(json.dumps(result))
    sys.exit(0 if result["good"] else 1)
