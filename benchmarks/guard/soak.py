"""A long run of a guarded service: killed and restarted, its engines failing in between; no request may be lost.

A child process answers requests one line each. It is killed (-9) at random moments and started again; the fast engine,
the safe one, or both fail for a while in turn. Every request ends with the right answer or with an error that says what
failed. Memory is compared between a tenth and the end of each child's life. Prints one line of JSON; exits with 1 when
anything is not as it must be.

usage: python -m benchmarks.guard.soak [--requests 100000] [--kills 10] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from studies.guard import Guard, GuardError, GuardOptions

STRETCH = 500  # requests between two changes of what fails
FAILING = ("", "fast", "", "safe", "", "both", "", "shift")


def main(requests: int = 100_000, kills: int = 10, seed: int = 0) -> dict[str, Any]:
    """Run the story once; what came of it."""
    random_ = random.Random(seed)
    moments = set(random_.sample(range(requests), kills))
    counts: Counter[str] = Counter()
    growth: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "guard.json"
        child = start(state)
        first = memory_mb(child)
        for i in range(requests):
            if i in moments:
                growth.append(memory_mb(child) - first)
                child.kill()
                child.wait()
                child = start(state)
                first = memory_mb(child)
            counts[ask(child, i, FAILING[i // STRETCH % len(FAILING)])] += 1
        growth.append(memory_mb(child) - first)
        child.kill()
        child.wait()
    good = counts["lost"] == counts["wrong"] == 0 and counts["answered"] + counts["error"] == requests
    return {
        "requests": requests,
        "kills": kills,
        **{name: counts[name] for name in ("answered", "error", "lost", "wrong")},
        "memory_growth_mb": round(max(growth), 1),
        "good": good,
    }


def start(state: Path) -> subprocess.Popen[str]:
    """A fresh child; it has answered once when this returns."""
    command = [sys.executable, "-m", "benchmarks.guard.soak", "--serve", str(state)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    for i in range(200):
        ask(child, i, "")
    return child


def memory_mb(child: subprocess.Popen[str]) -> float:
    return float(psutil.Process(child.pid).memory_info().rss / 2**20)


def ask(child: subprocess.Popen[str], number: int, failing: str) -> str:
    """`answered`, `error` where the service said what failed, `wrong` or `lost`."""
    stdin, stdout = _pipe(child.stdin), _pipe(child.stdout)
    stdin.write(json.dumps({"x": number, "failing": failing}) + "\n")
    stdin.flush()
    line = stdout.readline()
    if not line:
        return "lost"
    answer = json.loads(line)
    if "error" in answer:
        needed = failing in ("safe", "both")
        return "error" if needed and "safe engine raised" in answer["error"] else "wrong"
    right = answer["y"] == 2 * number
    shifted = failing == "shift" and answer["y"] == -2 * number
    return "answered" if right or shifted else "wrong"


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise RuntimeError("the child has no pipe")
    return pipe


def serve(state: Path) -> None:
    """The child: doubles a number by way of a guard over two engines that fail as they are told."""
    failing = ""

    def engine(name: str) -> Any:
        def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            if failing in (name, "both"):
                raise RuntimeError("planted")
            sign = -1 if failing == "shift" and name == "fast" else 1
            return {"y": sign * 2 * inputs["x"]}

        return run

    options = GuardOptions(share=0.2, window=10, probe_after_s=0.05, outputs="values")
    with Guard(engine("fast"), engine("safe"), options, state=state, tell=lambda text: None) as guard:
        for line in sys.stdin:
            asked = json.loads(line)
            failing = asked["failing"]
            try:
                answer = {"y": float(guard.run({"x": np.array([asked["x"]], np.float64)})["y"][0])}
            except GuardError as error:
                answer = {"error": str(error)}  # type: ignore[dict-item]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
    else:
        result = main(given.requests, given.kills, given.seed)
        print(json.dumps(result))
        sys.exit(0 if result["good"] else 1)
