"""How often drift is called where there is none, and whether it is found where there is: real runs of a real model.

The samples of `examples/digits` that say something each, one of every cluster, are drawn at random as calibration
samples and as fresh ones, again and again. The model is calibrated on the former by minmax and run on both by ONNX
Runtime, as `bitfront drift` does, and the decision is that of `bitfront drift`. Then the fresh samples are made twice
as bright. Prints one line of JSON; exits with 1 when there is an alarm without a change, or none with one.

usage: python -m benchmarks.drift.false_alarms [--resamplings 100] [--changes 10] [--samples 120] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.example import BATCH, DATA, MODEL
from evaluators.calibration.activations import collect
from evaluators.calibration.sample_runs import SampleRuns, Steps
from evaluators.calibration.sample_statistics import SampleStatistics, observe_samples
from evaluators.data import Dataset
from evaluators.data.opening import open_data
from search.graph import model as models
from search.values import Ranges
from studies.inspect.drift.shifts import Verdict, judge_drift


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resamplings", type=int, default=100, help="of unchanged data")
    parser.add_argument("--changes", type=int, default=10, help="resamplings that are made twice as bright")
    parser.add_argument("--samples", type=int, default=120, help="that calibrate, and as many fresh ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = models.load(MODEL, batch=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(str(DATA), model.inputs)
        bright = open_data(str(_write_bright(Path(folder) / "bright.npz")), model.inputs)
        random = np.random.default_rng(options.seed)
        trial = _Trial(model, data, random, options.samples)
        same = Counter(trial.run(data) for _ in range(options.resamplings))
        changed = Counter(trial.run(bright) for _ in range(options.changes))
    found = {"samples": options.samples, "unchanged": _plain(same), "twice_as_bright": _plain(changed)}
    sys.stdout.write(json.dumps(found) + "\n")
    return int(same[Verdict.DRIFT] > 0 or changed[Verdict.DRIFT] < options.changes)


class _Trial:
    """One division of the samples after another."""

    def __init__(self, model: models.Model, data: Dataset, random: np.random.Generator, samples: int) -> None:
        self._model = model
        self._data = data
        self._random = random
        self._samples = samples
        ids = data.clusters
        every = np.arange(len(data))
        self._independent = every if ids is None else np.sort(np.unique(ids, return_index=True)[1])

    def run(self, fresh: Dataset) -> Verdict:
        """The verdict on samples of `fresh` that did not calibrate."""
        order = self._random.permutation(self._independent)[: 2 * self._samples]
        before, after = np.sort(order[: self._samples]), np.sort(order[self._samples :])
        ranges = collect(self._model, self._data, before, "minmax")
        return judge_drift(self._look(self._data, before, ranges), self._look(fresh, after, ranges)).verdict

    def _look(self, data: Dataset, indices: NDArray[np.int64], ranges: Ranges) -> SampleStatistics:
        return observe_samples(SampleRuns(self._model, data, indices, 1, Steps(None, 0)), ranges)


def _write_bright(path: Path) -> Path:
    """The example's images twice as bright."""
    arrays = dict(np.load(DATA, allow_pickle=False))
    names = [spec.name for spec in models.load(MODEL, batch=BATCH).inputs]
    np.savez(path, **{name: 2 * array if name in names else array for name, array in arrays.items()})
    return path


def _plain(counts: Counter[Verdict]) -> dict[str, int]:
    return {verdict.value: count for verdict, count in sorted(counts.items())}


if __name__ == "__main__":
    sys.exit(main())
