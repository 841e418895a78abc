"""What commands take to start in two source trees, in turns: processor seconds and their ratio.

A study of three evaluations of the example is made by each tree first, for `front`.

usage: python -m benchmarks.figures.trees BEFORE [AFTER] [--rounds 10]     # AFTER: this tree
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.example import BATCH, DATA, MODEL, load_text

_START = (  # older trees have the command line elsewhere
    "import importlib, importlib.util; room = 'bitfront' if importlib.util.find_spec('bitfront.cli') else 'studies'; "
    "importlib.import_module(f'{room}.cli.main').main()"
)
_SEARCH = ["search", str(MODEL), "--data", str(DATA), "--batch", str(BATCH), "--study", "s", "--quiet"]
COMMANDS = {
    "--help": ["--help"],
    "front": ["front", "s"],
    "search --help": ["search", "--help"],
    "search that is refused": [*_SEARCH, "--max-drop", "1%"],  # the study is there
}


def main(trees: Sequence[Path], rounds: int) -> dict[str, float]:
    """Command → the median over rounds of after ÷ before."""
    print(f"processor seconds, {trees[0]} and {trees[1]}; {load_text()}")
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(number)) for number in range(len(trees))]
        for tree, place in zip(trees, places, strict=True):
            place.mkdir()
            _run(tree, place, [*_SEARCH, "--trials", "3"])
        for name, words in COMMANDS.items():
            spent = [[_seconds(*where, words) for where in zip(trees, places, strict=True)] for _ in range(rounds)]
            before, after = np.median(spent, axis=0)
            ratios[name] = float(np.median([b / a for a, b in spent]))
            print(f"{name}: {before:.2f} s, {after:.2f} s, {ratios[name]:.2f}x")
    return ratios


def _seconds(tree: Path, folder: Path, words: Sequence[str]) -> float:
    before = os.times()
    _run(tree, folder, words)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _run(tree: Path, folder: Path, words: Sequence[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run([sys.executable, "-c", _START, *words], cwd=folder, env=environment, capture_output=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    main([given.before.resolve(), given.after.resolve()], given.rounds)
