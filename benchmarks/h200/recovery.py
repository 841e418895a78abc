"""INT8, recovered INT8 and a mix of networks that are hard by nature: what each loses on final data, and its latency.

    python -m benchmarks.h200.networks.natural WORK        # with PyTorch: the networks and their data
    python -m benchmarks.h200.recovery WORK                # with TensorRT: two searches a network
    python -m benchmarks.h200.recovery WORK --only detector --trials 24 --time-limit 4m
    python -m benchmarks.h200.recovery WORK --backend onnxruntime --trials 4    # to try it without a GPU

Of every network there is a study with `--recover none`, of the uniform assignments alone, and one with `--recover
auto`. What `front` and `status` say of them goes to `WORK/NETWORK/recovery.json`.
The command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import bitfront

METRICS = {
    "detector": ("--metric", "map", "--decode", "yolov8"),
    "mobile": ("--metric", "top1"),
    "segmenter": ("--metric", "miou"),
}
_UNIFORM = 3  # trials: FP32, FP16, INT8


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Search a network without and with recovery; what the command line says of both studies."""
    found = {}
    for recover, trials in (("none", _UNIFORM), ("auto", given.trials)):
        found[recover] = search(folder, recover, trials, given)
        (folder / "recovery.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def search(folder: Path, recover: str, trials: int, given: argparse.Namespace) -> dict[str, Any]:
    """Begin a study, or go on with it, until it has so many trials or its time is over."""
    database = folder / f"{recover}.db"
    storage = ("--storage", f"sqlite:///{database.absolute()}")
    limits = ("--max-drop", "0.3%", "--trials", str(trials), "--time-limit", given.time_limit)
    if database.exists():
        words = ["resume", recover, *storage, *limits]
    else:
        splits = [("--data", "search"), ("--calibration-data", "calibration"), ("--final-data", "final")]
        data = [word for option, split in splits for word in (option, str(folder / f"{split}.npz"))]
        own = [*METRICS[folder.name], "--study", recover, "--recover", recover, "--backend", given.backend]
        options = [word for option in given.backend_option for word in ("--backend-option", option)]
        words = ["search", str(folder / "model.onnx"), *data, *own, *options, *storage, *limits]
    printed = bitfront(*words)
    (folder / f"{recover}.txt").write_text(printed)
    print(printed, flush=True)
    return {verb: json.loads(bitfront(verb, recover, *storage, "--json")) for verb in ("front", "status")}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", action="append", choices=list(METRICS), help="repeatable")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--time-limit", default="5m", help="of each search")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--backend-option", action="append", default=[], help="as of bitfront search; repeatable")
    given = parser.parse_args(words)
    for name in given.only or METRICS:
        if (given.work / name / "model.onnx").exists():
            measure(given.work / name, given)


if __name__ == "__main__":
    main()
