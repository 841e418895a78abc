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
from benchmarks.h200.network_folder import SOURCE
from benchmarks.h200.networks import scenes
from evaluators.process.connection import ProcessLimits
from evaluators.process.keeper import EvaluatorProcess
from studies import verbs
from studies.artifacts.folder import Artifacts
from studies.options.read_options import read_config
from studies.run.session.setup import _job
from studies.store.store import Store

METRICS = {
    "detector": {"metric": "map", "decode": "yolov8"},
    "mobile": {"metric": "top1"},
    "segmenter": {"metric": "miou"},
    "resnet18": {"metric": "top1"},
    "mobilenet_v2": {"metric": "top1"},
}
_UNIFORM = 3  # trials: FP32, FP16, INT8
_ROUNDS = 20


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Search a network without and with recovery; what the command line says of both studies, and their engines."""
    file = folder / "recovery.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if not given.beside:
        for recover, trials in (("none", _UNIFORM), ("auto", given.trials)):
            found[recover] = search(folder, recover, trials, given)
            file.write_text(json.dumps(found, indent=1) + "\n")
    found["together"] = side_by_side(folder, given)
    file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def search(folder: Path, recover: str, trials: int, given: argparse.Namespace) -> dict[str, Any]:
    """Begin a study, or go on with it, until it has so many trials or its time is over."""
    storage = ("--storage", _storage(folder, recover))
    limits = ("--max-drop", "0.3%", "--trials", str(trials), "--time-limit", given.time_limit)
    if _database(folder, recover).exists():
        words = ["resume", recover, *storage, *limits]
    else:
        own = {**_inputs(folder, given), "study": recover, "recover": recover, "keep-engines": "all"}
        own |= {"recover-time": given.recover_time} if given.recover_time else {}
        words = ["search", str(folder / "model.onnx"), *_words(own), *storage, *limits]
    printed = bitfront(*words)
    (folder / f"{recover}.txt").write_text(printed)
    print(printed, flush=True)
    return {verb: json.loads(bitfront(verb, recover, *storage, "--json")) for verb in ("front", "status")}


def side_by_side(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The uniform engines of both studies and the pick of the second: latencies timed in turn, losses on final data."""
    engines = {label: file for label, file in uniform_engines(folder, "auto").items() if label != "int8"}
    for label, recover in (("plain int8", "none"), ("recovered int8", "auto")):
        int8 = uniform_engines(folder, recover).get("int8")
        if int8 is not None:
            engines[label] = int8
    pick = picked_engine(folder)
    if pick is not None:
        engines["best"] = pick
    config = read_config({"model": str(folder / "model.onnx"), **_inputs(folder, given)})
    with TemporaryDirectory() as work:
        job = replace(_job(config, Path(work)), ranges=str(ranges_file(folder)))
        with EvaluatorProcess(job, folder / "log", ProcessLimits(540)) as keeper:
            found = keeper.ask().scores.score_finalists(engines, _ROUNDS)
    figures = {}
    for label, file in engines.items():
        latency, accuracy = found.latency[label], found.accuracy[label]
        scores = {name: getattr(accuracy, name) for name in ("value", "loss", "loss_low", "loss_high", "samples")}
        figures[label] = {"engine": file.name, "ms": latency.value_ms, "spread": latency.spread, **scores}
        low, high = 100 * accuracy.loss_low, 100 * accuracy.loss_high
        print(
            f"{folder.name} {label}: {latency.value_ms:.4f} ms, loses {100 * accuracy.loss:.3f} points ({low:.3f} to "
            f"{high:.3f}) on {accuracy.samples} final samples",
            flush=True,
        )
    return figures


def ranges_file(folder: Path) -> Path:
    """The ranges of the study with recovery. An evaluator wants some before it opens engines, which have their own."""
    with Store.open(_storage(folder, "auto"), write=False) as store:
        target = store.targets.of_study(store.studies.load("auto").id)[0]
    return _artifact(folder, "auto", str(target.ranges_digest))


def uniform_engines(folder: Path, recover: str) -> dict[str, Path]:
    """`fp32`, `fp16`, `int8` → the engine file of this uniform assignment, for those that the study has measured."""
    with Store.open(_storage(folder, recover), write=False) as store:
        target = store.targets.of_study(store.studies.load(recover).id)[0]
        records = [store.evaluations.load(number) for number in store.evaluations.baselines(target.id)]
    found = {record.role.removeprefix("baseline:"): record.artifact for record in records}
    return {label: _artifact(folder, recover, str(digest)) for label, digest in found.items() if digest}


def picked_engine(folder: Path) -> Path | None:
    """The engine of the pick `best` of the study with recovery; None if it has none or the pick is FP32."""
    now = verbs.front("auto", storage=_storage(folder, "auto")).standing
    if now.picks.best is None:
        return None
    with Store.open(_storage(folder, "auto"), write=False) as store:
        record = store.evaluations.load(int(now.table.id[now.picks.best]))
    return _artifact(folder, "auto", str(record.artifact)) if record.artifact else None


def _inputs(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Options of `bitfront search` for the data and the target; networks made uneven draw their data."""
    splits = {"data": "search", "calibration-data": "calibration", "final-data": "final"}
    if (folder / "search.npz").exists():
        data = {option: str(folder / f"{split}.npz") for option, split in splits.items()}
    else:
        os.environ[scenes.FOLDER_VARIABLE] = str((folder / "data").absolute())  # evaluator processes inherit it
        data = {option: f"{SOURCE}:{split}" for option, split in splits.items()}
    return {**data, **METRICS[folder.name], "backend": given.backend, "backend-option": given.backend_option}


def _words(options: dict[str, Any]) -> list[str]:
    """The same on a command line."""
    pairs = [
        (name, each) for name, value in options.items() for each in (value if isinstance(value, list) else [value])
    ]
    return [word for name, value in pairs for word in (f"--{name}", value)]


def _database(folder: Path, recover: str) -> Path:
    return folder / f"{recover}.db"


def _storage(folder: Path, recover: str) -> str:
    return f"sqlite:///{_database(folder, recover).absolute()}"


def _artifact(folder: Path, recover: str, digest: str) -> Path:
    return Artifacts(folder / f"{recover}.db.artifacts").path(digest)


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
            measure(given.work / name, given)


if __name__ == "__main__":
    main()
