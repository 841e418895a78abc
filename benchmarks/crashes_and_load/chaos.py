"""Many workers on one study in PostgreSQL while everything dies around them: what is lost, doubled or left behind.

Every few seconds one worker gets SIGKILL and another SIGSTOP for longer than its lease; the database is shut down and
started again, and later killed and started again; one worker's evaluator finds no room for its files. Evaluations are
real, with ONNX Runtime, of assignments that were enqueued; a quiet run of the same ones says which must be there.

Prints one line of JSON; exits with 1 when anything is not as it must be.

usage: python -m benchmarks.crashes_and_load.chaos [--workers 8] [--trials 200] [--every 5] [--lease 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.example import load_text
from tests.support.crashes.storm import Storm, write_list
from tests.support.servers.databases import Server


def main(
    workers: int = 8, trials: int = 200, every_s: float = 5.0, lease_s: float = 3.0, seed: int = 0
) -> dict[str, Any]:
    """Run the story once; what came of it."""
    server = Server("postgresql")
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "temporary").mkdir()
            os.environ["TMPDIR"] = str(folder / "temporary")
            write_list(folder, trials, seed)
            storm = Storm(folder, server, workers=workers, trials=trials, every_s=every_s, lease_s=lease_s, seed=seed)
            story = storm.run()
            storm.compare()
    finally:
        server.close()
    asked = {"workers_at_once": workers, "every_s": every_s, "lease_s": lease_s, "seed": seed, "load": load_text()}
    return {**asdict(story), **asked, "good": story.good}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    result = main(given.workers, given.trials, given.every, given.lease, given.seed)
    print(json.dumps(result))
    sys.exit(0 if result["good"] else 1)
