"""Peak memory of the data: 5,000 samples of ImageNet's size that a generator gives, written once and read in batches.

FOLDER needs 3 GB, which are removed at the end. The peak is what Linux says of fresh processes (`ru_maxrss`): one that
only imports what the others import, one that writes the samples, one that opens them and reads all in random order.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SAMPLES, SHAPE, BATCH = 5000, (3, 224, 224), 32
SOURCE = "benchmarks.figures.data_memory:load"
INPUT = "image"
STEPS = ("import", "write", "read")


def load() -> Iterator[tuple[Any, Any]]:
    """Batches of random images, with labels."""
    import numpy as np

    random = np.random.default_rng(0)
    for start in range(0, SAMPLES, BATCH):
        size = min(BATCH, SAMPLES - start)
        yield random.random((size, *SHAPE), np.float32), random.integers(0, 1000, size)


def step(what: str, folder: Path) -> None:
    """What one fresh process does; prints seconds and MB."""
    import numpy as np

    from evaluators.data import batches
    from evaluators.data.opening import open_data
    from search.graph.model import TensorSpec

    inputs = [TensorSpec(INPUT, "float32", (BATCH, *SHAPE))]
    start = time.perf_counter()
    if what != "import":
        data = open_data(SOURCE, inputs, cache=folder / "samples")  # the first of both writes the samples
        if what == "read":
            order = np.random.RandomState(0).permutation(len(data)).astype(np.int64)
            assert sum(batch.count for batch in batches(data, order, BATCH)) == SAMPLES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{what}: {time.perf_counter() - start:.0f} s, peak {peak:.0f} MB")


def main(parent: Path) -> None:
    """Every step in a fresh process, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        for what in STEPS:
            command = [sys.executable, "-m", "benchmarks.figures.data_memory", folder, "--step", what]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step", choices=STEPS, help="one step alone, in this process")
    given = parser.parse_args()
    if given.step is None:
        main(given.folder)
    else:
        step(given.step, given.folder)
