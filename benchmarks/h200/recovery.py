"""INT8, recovered INT8 and a mix, as engines: what each loses on final data, and its latency.

    python -m benchmarks.h200.networks.natural WORK        # with PyTorch: networks that are hard by nature, and data
    python -m benchmarks.h200.networks.train WORK          # with PyTorch: networks that were made uneven, and data
    python -m benchmarks.h200.recovery WORK                # with TensorRT: two searches a network
    python -m benchmarks.h200.recovery WORK --only detector --trials 24 --time-limit 4m
    python -m benchmarks.h200.recovery WORK --only detector --beside   # compare once more, on a quiet machine
    python -m benchmarks.h200.recovery WORK --backend onnxruntime --trials 4    # to try it without a GPU

Of every network there is a study with `--recover none`, of the uniform assignments alone, and one with `--recover
auto`. Their engines are then timed in turn by one process and scored on the final data. All of it, with what `front`
and `status` say of both studies, goes to `WORK/NETWORK/recovery.json`. The command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.command_line import bitfront
from benchmarks.h200 import rows
from benchmarks.h200.network_folder import SPLITS, NetworkFolder
from benchmarks.h200.networks import scenes
from bitfront import verbs
from evaluators.process.connection import ProcessLimits
from evaluators.process.keeper import EvaluatorProcess
from studies.options.read_options import read_config
from studies.run.session.setup import _job

METRICS = {
    "detector": {"metric": "map", "decode": "yolov8"},
    "mobile": {"metric": "top1"},
    "segmenter": {"metric": "miou"},
    "resnet18": {"metric": "top1"},
    "mobilenet_v2": {"metric": "top1"},
}
_UNIFORM = 3  # trials: FP32, FP16, INT8
_ROUNDS = 20


def measure(network: NetworkFolder, given: argparse.Namespace) -> dict[str, Any]:
    """Search a network without and with recovery; what the command line says of both studies, and their engines."""
    file = network.path / "recovery.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if not given.beside:
        for recover, trials in (("none", _UNIFORM), ("auto", given.trials)):
            found[recover] = search(network, recover, trials, given)
            file.write_text(json.dumps(found, indent=1) + "\n")
    found["together"] = side_by_side(network, given)
    file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def search(network: NetworkFolder, recover: str, trials: int, given: argparse.Namespace) -> dict[str, Any]:
    """Begin a study, or go on with it, until it has so many trials or its time is over."""
    storage = ("--storage", network.storage(recover))
    limits = ("--max-drop", "0.3%", "--trials", str(trials), "--time-limit", given.time_limit)
    if network.database(recover).exists():
        words = ["resume", network.name, *storage, *limits]
    else:
        own = {**_inputs(network, given), "study": network.name, "recover": recover, "keep-engines": "all"}
        own |= {"recover-time": given.recover_time} if given.recover_time else {}
        words = ["search", str(network.model_file), *_words(own), *storage, *limits]
    printed = bitfront(*words)
    (network.path / f"{recover}.txt").write_text(printed)
    print(printed, flush=True)
    return {verb: json.loads(bitfront(verb, network.name, *storage, "--json")) for verb in ("front", "status")}


def side_by_side(network: NetworkFolder, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The uniform engines of both studies and the pick of the second: latencies timed in turn, losses on final data."""
    plain, recovered = (uniform_engines(network, recover) for recover in ("none", "auto"))
    named = {"plain int8": plain.get("int8"), "recovered int8": recovered.pop("int8", None)}
    named = {**recovered, **named, "best": picked_engine(network)}
    engines = {label: file for label, file in named.items() if file is not None}
    with network.reading("auto") as (_, _study, target):
        # An evaluator wants ranges before it opens engines, which have their own.
        ranges = network.artifact("auto", str(target.ranges_digest))
    config = read_config({"model": str(network.model_file), **_inputs(network, given)})
    with TemporaryDirectory() as work:
        job = replace(_job(config, Path(work)), ranges=str(ranges))
        with EvaluatorProcess(job, network.path / "log", ProcessLimits(540)) as keeper:
            figures = rows.of_finalists(keeper.ask().scores.score_finalists(engines, _ROUNDS))
    for label, row in figures.items():
        loss, low, high = (100 * row[name] for name in ("loss", "loss_low", "loss_high"))
        print(
            f"{network.name} {label}: {row['ms']:.4f} ms, loses {loss:.3f} points ({low:.3f} to {high:.3f}) on "
            f"{row['samples']} final samples",
            flush=True,
        )
    return figures


def uniform_engines(network: NetworkFolder, recover: str) -> dict[str, Path]:
    """`fp32`, `fp16`, `int8` → the engine file of this uniform assignment, for those that the study has measured."""
    with network.reading(recover) as (store, _, target):
        records = [store.evaluations.load(number) for number in store.evaluations.baselines(target.id)]
    found = {record.role.removeprefix("baseline:"): record.artifact for record in records}
    return {label: network.artifact(recover, str(digest)) for label, digest in found.items() if digest}


def picked_engine(network: NetworkFolder) -> Path | None:
    """The engine of the pick `best` of the study with recovery; None if there is none."""
    now = verbs.front(network.name, storage=network.storage("auto")).standing
    if now.picks.best is None:
        return None
    with network.reading("auto") as (store, _, _target):
        record = store.evaluations.load(int(now.table.id[now.picks.best]))
    return network.artifact("auto", str(record.artifact)) if record.artifact else None


def _inputs(network: NetworkFolder, given: argparse.Namespace) -> dict[str, Any]:
    """Options of `bitfront search` for the data and the target; networks made uneven draw their data."""
    data = network.inputs()
    if (network.path / "search.npz").exists():
        data |= {option: str(network.path / f"{SPLITS[option]}.npz") for option in SPLITS}
    else:
        os.environ[scenes.FOLDER_VARIABLE] = str(network.path / "data")  # evaluator processes inherit it
    return {**data, **METRICS[network.name], "backend-option": given.backend_option}


def _words(options: dict[str, Any]) -> list[str]:
    """The same on a command line."""
    pairs = [
        (name, each) for name, value in options.items() for each in (value if isinstance(value, list) else [value])
    ]
    return [word for name, value in pairs for word in (f"--{name}", value)]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", action="append", choices=list(METRICS), help="repeatable")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--time-limit", default="5m", help="of each search")
    parser.add_argument("--recover-time", help="as of bitfront search")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--backend-option", action="append", default=[], help="as of bitfront search; repeatable")
    parser.add_argument(
        "--beside", action="store_true", help="no search: only time and score the engines that are there"
    )
    given = parser.parse_args(words)
    for name in given.only or METRICS:
        if (given.work / name / "model.onnx").exists():
            measure(NetworkFolder((given.work / name).absolute(), given.backend), given)


if __name__ == "__main__":
    main()
