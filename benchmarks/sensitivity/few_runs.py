"""Single groups or stretches of them: what a sensitivity pass knows after few runs of a network of 260 groups.

    python -m benchmarks.sensitivity.few_runs                # five minutes a network on a quiet core; goes on
    python -m benchmarks.sensitivity.few_runs --networks chain --work FOLDER

Of every network of `networks` the errors of all stretches that halving can lead to are measured, and those of 80 random
mixes. Then the pass is played with 16, 32, 64 and 128 runs, whose errors are looked up, in both of its ways.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table
from benchmarks.sensitivity.networks import NETWORKS, saved
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.diagnose.distributions import OutputError
from evaluators.diagnose.local_noise import Local, Network, Pair, local_noise
from evaluators.diagnose.probes import Measured, Probe, estimates
from evaluators.diagnose.schedule import Schedule
from evaluators.diagnose.sensitivity import Prober
from evaluators.lowering.placement import TENSORRT
from search.graph.model import load
from search.values import Precision
from tests.support.few_samples import Few
from tests.support.networks import observed

INT8 = Precision.INT8
RUNS = (16, 32, 64, 128)
MIXES = 80
WORK = Path(tempfile.gettempdir()) / "bitfront-few-runs"
Floats = NDArray[np.float64]
Truth = dict[str, Any]
"""`noise` of every group by itself; `stretches`, `first,behind` → error; `mixes`, [0 or 1 of every group, error]."""


def measure(name: str) -> Truth:
    """Run everything that is looked up afterwards."""
    model = load(saved(name))
    pairs = tuple((group.id, INT8) for group in model.groups if not group.pinned)
    network = Network(model, observed(model), TENSORRT)
    emulator = Emulator(OnnxRuntimeBackend("cpu", threads=1), TENSORRT)
    real, samples = Prober(emulator, network, 1e9, lambda *_: None, lambda: None), Few(model)
    parts = real.parts(pairs, samples.pool, samples)
    local = local_noise(real.emulator, network, pairs, [part.inputs for part in parts], real.notes)
    stretches: dict[str, float] = {}

    def halve(first: int, behind: int) -> None:
        stretches[f"{first},{behind}"] = real.probe(pairs[first:behind], parts).measured.error
        if behind - first > 1:
            middle = (first + behind) // 2
            halve(first, middle)
            halve(middle, behind)

    halve(0, len(pairs))
    mixes = []
    for low in _mixes(len(pairs)):
        chosen = tuple(pair for pair, is_low in zip(pairs, low, strict=True) if is_low)
        mixes.append([low.astype(int).tolist(), real.probe(chosen, parts).measured.error])
    return {"noise": [local[pair].noise for pair in pairs], "stretches": stretches, "mixes": mixes}


def _mixes(groups: int) -> Sequence[NDArray[np.bool_]]:
    """Groups in INT8: scattered ones, and a few runs of neighbours, in turn."""
    rng, found = np.random.default_rng(0), []
    for number in range(MIXES):
        share = rng.uniform(0.05, 0.95)
        low = rng.random(groups) < share if number % 2 else np.zeros(groups, bool)
        for _ in range(0 if number % 2 else 4):
            first = rng.integers(groups)
            low[first : first + rng.integers(5, 70)] = True
        found.append(low)
    return found


class Played:
    """A pass on a table instead of a network; every run takes one second."""

    def __init__(self, truth: Truth, runs: int) -> None:
        self.truth, self.runs, self.used = truth, runs, 0
        self.pairs: tuple[Pair, ...] = tuple((f"{number:04}", INT8) for number in range(len(truth["noise"])))
        self.local = {
            p: Local(OutputError(n, 0, n, 0), None, None) for p, n in zip(self.pairs, truth["noise"], strict=True)
        }
        self.schedule = Schedule(
            probe=self.probe,
            places={group: int(group) for group, _ in self.pairs},
            names={group: group for group, _ in self.pairs},
            left=lambda: float(self.runs - self.used),
            tell=lambda _: None,
            done=lambda *_: None,
        )

    def probe(self, pairs: tuple[Pair, ...]) -> Probe:
        self.used += 1
        first, behind = int(pairs[0][0]), int(pairs[-1][0]) + 1
        return Probe(pairs, Measured(self.truth["stretches"][f"{first},{behind}"], None, 1))

    def singles(self) -> Floats:
        return self._found(self.schedule.one_by_one(self.local))

    def stretches(self) -> Floats:
        return self._found(self.schedule.by_stretches(self.probe(self.pairs), 0.5, len(self.pairs)))

    def _found(self, probes: Sequence[Probe]) -> Floats:
        found = estimates(self.schedule.places, self.local, probes)
        return np.array([found[pair] for pair in self.pairs])


WAYS: dict[str, Callable[[Played], Floats]] = {"single groups": Played.singles, "stretches": Played.stretches}


def judged(errors: Floats, truth: Truth) -> list[str]:
    """How well errors of groups forecast those of mixes, and how much of the worst tenth is among their worst."""
    count = len(errors)
    alone = np.array([truth["stretches"][f"{place},{place + 1}"] for place in range(count)])
    low, measured = (np.array(column, dtype=float) for column in zip(*truth["mixes"], strict=True))
    together, worst = np.log(low @ errors), count // 10
    held = alone[np.argsort(-errors)[:worst]].sum() / np.sort(alone)[-worst:].sum()
    spread = np.log(errors / alone)
    return [
        f"{np.corrcoef(together, np.log(measured))[0, 1]:.2f}",
        f"{np.std(together - np.log(measured)):.2f}",
        f"{np.std(spread):.1f}",
        f"{100 * held:.0f}",
    ]


def text(found: dict[str, Truth]) -> str:
    heads = ["network", "runs", "way", "mixes: correlation", "mixes: spread", "groups: spread", "worst tenth held, %"]
    rows = []
    for name, truth in found.items():
        noise = np.array(truth["noise"])
        rows.append([f"`{name}`, {len(noise)} groups", "0", "each by itself", *judged(noise, truth)])
        for runs in RUNS:
            rows += [["", f"{runs}", way, *judged(play(Played(truth, runs)), truth)] for way, play in WAYS.items()]
    return table(heads, rows)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what was measured")
    arguments = parser.parse_args(words)
    arguments.work.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in arguments.networks:
        file = arguments.work / f"{name}.json"
        if not file.exists():
            draft = file.with_suffix(".draft")
            draft.write_text(json.dumps(measure(name)) + "\n")
            draft.replace(file)
        found[name] = json.loads(file.read_text())
    print(text(found))


if __name__ == "__main__":
    main()
