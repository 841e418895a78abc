"""The command of `run.py`. The lines above the mark are not part of the script."""

from __future__ import annotations

import argparse
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evaluators.backends.run_script.onnxruntime_engine import ENGINE, Engine

INPUTS: dict[str, dict[str, Any]] = {}

# -- part of run.py --


def main() -> None:
    options = read_arguments()
    if options.out and not options.out.absolute().parent.is_dir():
        raise SystemExit(f"run.py: --out {options.out}: expected a file in a folder that is there.")
    engine = Engine(Path(__file__).resolve().parent / ENGINE, options.gpu)
    samples = read_samples(options.data) if options.data else random_samples(options.batch or measured_batch())
    check_samples(samples, options.batch)
    batches = list(split(samples, options.batch or measured_batch()))
    parts = [row_wise(engine.run(batch), used, options.batch or measured_batch()) for batch, used in batches]
    outputs = {key: array for name in parts[0] for key, array in join(name, [part[name] for part in parts]).items()}
    for name, array in outputs.items():
        print(f"output {name}: shape {'x'.join(map(str, array.shape))}, {array.dtype}")
    engine.time(batches[0][0], options.warm_up)
    start = time.perf_counter()
    times = engine.time(batches[0][0], options.repeat)
    wall = 1000 * (time.perf_counter() - start) / len(times)
    typical = f"median {np.median(times):.4g} ms, mean {times.mean():.4g} ms"
    print(f"latency of one batch of {options.batch or measured_batch()}: {typical}"
          f"{engine.clock and f' {engine.clock}'}, of {len(times)} runs ({engine.description})")  # fmt: skip
    if engine.clock and wall > 1.05 * times.mean():
        print(f"the machine is busy; on the wall clock one took {wall:.4g} ms")
    if options.out:
        try:
            np.savez(options.out, **outputs)
        except OSError as error:
            raise SystemExit(f"run.py: --out {options.out} cannot be written: {error}.") from error


def join(name: str, parts: list[Any]) -> dict[str, Any]:
    """All rows of an output; where they have several shapes, as what a detector finds, those of each run."""
    if len({part.shape[1:] for part in parts}) == 1:
        return {name: np.concatenate(parts)}
    return {f"{name}.{run}": part for run, part in enumerate(parts)}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Run {ENGINE}: outputs' shapes and a latency.")
    parser.add_argument("--data", type=Path, help="an .npz with one array for each input (or .npy for one input)")
    parser.add_argument("--out", type=Path, help="an .npz to write the outputs to")
    parser.add_argument("--batch", type=positive, help="samples in one run, where the engine takes several sizes")
    parser.add_argument("--repeat", type=positive, default=100, help="timed runs (default 100)")
    parser.add_argument("--warm-up", type=positive, default=10, help="runs before those (default 10)")
    parser.add_argument("--gpu", type=int, default=0, help="number of the GPU, for engines that run on one (default 0)")
    return parser.parse_args()


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def measured_batch() -> int:
    return int(next(iter(INPUTS.values()))["measured"][0])


def read_samples(path: Path) -> dict[str, Any]:
    """One array for each input, from a file; other arrays in it, say labels, are left alone."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            arrays = {next(iter(INPUTS)): content} if isinstance(content, np.ndarray) else content
            missing = [name for name in INPUTS if name not in arrays]
            if not missing:
                return {name: arrays[name] for name in INPUTS}
            names = ", ".join(arrays)
        raise SystemExit(f"run.py: --data {path}: expected arrays {', '.join(INPUTS)}, found {names}.")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SystemExit(f"run.py: --data {path} cannot be read: {error}.") from error


def random_samples(batch: int) -> dict[str, Any]:
    """One batch: normal numbers, and zeros for integers, which are valid indices of every table."""
    random = np.random.default_rng(0)
    shapes = {name: (batch, *facts["measured"][1:]) for name, facts in INPUTS.items()}
    kinds = {name: np.dtype(facts["dtype"]).kind for name, facts in INPUTS.items()}
    return {
        name: random.standard_normal(shape) if kinds[name] == "f" else np.zeros(shape, INPUTS[name]["dtype"])
        for name, shape in shapes.items()
    }


def check_samples(samples: dict[str, Any], batch: int | None) -> None:
    """Refuse what the engine does not take, and give the arrays the engine's types."""
    counts = {len(array) if array.ndim else 0 for array in samples.values()}
    if len(counts) != 1 or 0 in counts:
        raise SystemExit("run.py: expected the same number of samples for every input, at least one.")
    for name, facts in INPUTS.items():
        shape = (batch or facts["measured"][0], *samples[name].shape[1:])
        limits = list(zip(facts["least"], shape, facts["most"], strict=False))
        if len(shape) != len(facts["least"]) or not all(low <= size <= high for low, size, high in limits):
            least, actual, most = ("x".join(map(str, each)) for each in (facts["least"], shape, facts["most"]))
            takes = least if least == most else f"{least} to {most}"
            raise SystemExit(f"run.py: input {name}: the engine takes {takes}, and a batch would be {actual}.")
        if not np.can_cast(samples[name].dtype, facts["dtype"], "same_kind"):
            raise SystemExit(f"run.py: input {name}: expected {facts['dtype']}, got {samples[name].dtype}.")
        samples[name] = np.ascontiguousarray(samples[name], facts["dtype"])


def split(samples: dict[str, Any], batch: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Batches, and how many samples of each count: the last one is filled up with its last sample."""
    count = len(next(iter(samples.values())))
    for start in range(0, count, batch):
        places = np.minimum(np.arange(start, start + batch), count - 1)
        yield {name: array[places] for name, array in samples.items()}, min(batch, count - start)


def row_wise(outputs: dict[str, Any], used: int, batch: int) -> dict[str, Any]:
    """Outputs without what was filled up; those that have no row for each sample stay whole."""
    arrays = {name: np.atleast_1d(array) for name, array in outputs.items()}
    return {name: array[:used] if len(array) == batch else array for name, array in arrays.items()}


if __name__ == "__main__":
    main()
