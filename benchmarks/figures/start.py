"""What an evaluator process takes before it can read a request, without SymPy and with it, in turns.

usage: python -m benchmarks.figures.start [--rounds 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import numpy as np

from benchmarks import ROOT
from benchmarks.example import BATCH, MODEL, load_text

_LATE = "from evaluators.late_imports import import_late; import_late(); "
_START = (
    "import evaluators.process.server, evaluators.process.evaluator, evaluators.backends.onnxruntime, onnxruntime; "
    f"from pathlib import Path; from search.graph.model import load; load(Path({str(MODEL)!r}), batch={BATCH})"
)


def main(rounds: int = 10) -> dict[str, float]:
    """`late_s`, `early_s`: processor time of a start, the median; `ratio`: the median of early ÷ late over rounds."""
    print(f"processor seconds from nothing to the model loaded; {load_text()}")
    early, late = np.array([(_seconds(_START), _seconds(_LATE + _START)) for _ in range(rounds)]).T
    result = {"late_s": np.median(late), "early_s": np.median(early), "ratio": np.median(early / late)}
    print(f"{result['late_s']:.2f} s without SymPy, {result['early_s']:.2f} s with it, {result['ratio']:.2f}x")
    return {name: float(value) for name, value in result.items()}


def _seconds(code: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    main(parser.parse_args().rounds)
