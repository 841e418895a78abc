"""Kill a search at random moments and resume it each time: what is lost, doubled or left behind.

    python benchmarks/kills.py [KILLS] [TRIALS] [SEED]

Kills (-9) take, in turn, the main process, and the evaluator process with the main process up to a second later. Prints
one line of JSON; exits with 1 when anything is not as it must be.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main(kills: int = 20, trials: int = 40, seed: int = 0) -> dict[str, object]:
    """Run the story once; what came of it."""
    from tests.support.command_line import write_inputs
    from tests.support.crashes.kill_and_resume import survive
    from tests.support.networks import mobile_cnn

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "temporary").mkdir()
        os.environ["TMPDIR"] = str(folder / "temporary")
        write_inputs(folder / "in", mobile_cnn())
        first = ("in/model.onnx", "--data", "in/data.npz", "--study", "killed", "--trials", trials, "--quiet")
        story = survive(folder, first, "killed", kills=kills, trials=trials, seed=seed)
        swept = not list((folder / "temporary").glob("bitfront-run-*"))
    figures = {**asdict(story), "kills": kills, "trials": trials, "seed": seed, "temporary_files_swept": swept}
    return {**figures, "seconds": round(time.monotonic() - start, 1), "good": _good(figures)}


def _good(figures: dict[str, object]) -> bool:
    none = all(figures[key] == 0 for key in ("lost", "changed", "duplicated", "running_left", "untold"))
    whole = figures["evaluations"] == figures["trials"] and figures["front_equal"] and figures["temporary_files_swept"]
    return bool(none and whole)


if __name__ == "__main__":
    result = main(*map(int, sys.argv[1:]))
    print(json.dumps(result))
    sys.exit(0 if result["good"] else 1)
