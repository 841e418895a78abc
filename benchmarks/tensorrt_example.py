"""Record what TensorRT's inspector says, and search the shipped example on a GPU.

usage: python benchmarks/tensorrt_example.py FOLDER [--trials 40]

Writes into FOLDER: inspector_NETWORK_MIX.json (raw inspector text, for the audit's tests), digits.json (front of the
search), and the exported engine's manifest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from evaluators import calibration, data
from evaluators.backends.tensorrt import TensorRTBackend
from networks import NETWORKS, images, save  # the small networks of the tests
from search.graph.model import load
from search.space.choices import make_space
from studies import commands, tables_text
from studies.progress import Lines


def record_inspector(folder: Path) -> None:
    """Raw inspector text of a few small engines with the assignment that made each."""
    backend = TensorRTBackend()
    for name in ("residual", "transformer"):
        path = save(NETWORKS[name](), folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", image=images(32))
        model = load(path)
        dataset = data.open_data(str(folder / f"{name}.npz"), model.inputs)
        ranges = calibration.collect(model, dataset, np.arange(32), "minmax")
        space = make_space(model, backend.capability(), ranges)
        builder = backend.builder(model, ranges)
        mixes = {
            **space.baselines(),
            "mixed": space.assignment({v.id: i % len(v.precisions) for i, v in enumerate(space.variables)}),
        }
        for label, assignment in mixes.items():
            engine = builder.build(builder.lower(assignment), folder / "engine.plan")
            text = builder.inspect(engine.path)
            record = {"assignment": assignment.to_json(), "inspector": text}
            (folder / f"inspector_{name}_{label}.json").write_text(json.dumps(record))
            answers = [row.answer.value for row in builder.audit(engine, assignment).rows]
            print(name, label, {answer: answers.count(answer) for answer in set(answers)})


def search_digits(folder: Path, trials: int) -> None:
    model, samples = commands.example_files()
    storage = f"sqlite:///{folder / 'digits.db'}"
    options = {
        "model": str(model),
        "data": str(samples),
        "batch": "128",
        "storage": storage,
        "study": "digits",
        "backend": "tensorrt",
        "max-drop": "1%",
        "trials": str(trials),
        "granularity": "block",
    }
    start = time.monotonic()
    finished = commands.search(options, Lines(Console(highlight=False)))
    answer = tables_text.front_json(finished.standing, finished.mixes)
    answer["seconds"] = time.monotonic() - start
    answer["obedience"] = [[p.label, a.value, count] for (p, a), count in finished.obedience.items()]
    (folder / "digits.json").write_text(json.dumps(answer, indent=1, default=str))
    for row in answer["rows"]:
        print(row["trial"], row["role"], row["latency_ms"], row["speedup"], row["loss"], row["mix"], row["picks"])
    print(answer["obedience"], answer["seconds"], answer["latency_tie_band"])
    done = commands.export("digits", folder / "engine", storage=storage)
    print("exported", sorted(path.name for path in done.folder.iterdir()), done.holds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=40)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record_inspector(arguments.folder)
    search_digits(arguments.folder, arguments.trials)


if __name__ == "__main__":
    main()
