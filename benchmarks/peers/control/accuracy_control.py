"""NNCF's quantization with accuracy control: which layers it leaves in float, and how many models it judged for that.

    python -m benchmarks.peers.control.accuracy_control MODEL.onnx CALIBRATION.npz JUDGE.npz OUT.onnx --max-drop 0.003

The command above is run by the Python of the peers' environment, as those of `benchmarks.peers.quantizers`;
`quantize` does so from our own. It quantizes everything that NNCF quantizes by default. While the metric on the
samples of JUDGE.npz is worse than the float model's by more than the drop, it ranks what is quantized by how much
better the model gets without it, and puts one after the other back to float.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers.quantizers import Calibration, nncf_options, read_calibration, run_beside

RANKED_ON = 300  # samples, NNCF's default
_ROWS = 50  # samples that are scored at a time
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass
class ControlRun:
    """What accuracy control did.

    Attributes:
        judged: models that were scored on all samples: the float model, INT8, and one for every step.
        ranked: models that were run on `RANKED_ON` samples to find what to put back next.
        float_value, int8_value: the metric of the float model and of INT8 before any step, on the samples that judge.
        value: of the model that was written; None where INT8 was written.
        reverted: of every step the ops that it put back, whatever their kind; a later step may have undone it.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    judged: int = 0
    ranked: int = 0
    float_value: float | None = None
    int8_value: float | None = None
    value: float | None = None
    reverted: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def quantize(
    model: Path, calibration: Path, judge: Path, out: Path, metric: str, drop: float, timeout_s: float = 1800
) -> ControlRun:
    """Run accuracy control in the peers' environment.

    Args:
        calibration, judge: .npz files as `benchmarks.peers.quantizers` takes them.
        metric: a key of `SCORES` of `benchmarks.peers.scores`.
        drop: how much less than the float model's the metric may be, a share of one.

    Raises:
        RuntimeError: NNCF gave up, or took too long; its last lines.
    """
    files = [str(path.absolute()) for path in (model, calibration, judge, out)]
    words = [*files, "--metric", metric, "--max-drop", f"{drop:g}"]
    about = f"accuracy control of {model.name}"
    return ControlRun(**run_beside("benchmarks.peers.control.accuracy_control", words, about, timeout_s))


def weighted_ops(path: Path) -> dict[str, bool]:
    """Every convolution and matrix product with a constant weight: node name → whether the weight is in INT8."""
    graph = onnx.load(str(path)).graph
    made = {output: node for node in graph.node for output in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    ops = {}
    for node in (each for each in graph.node if each.op_type in _WEIGHTED):
        name = node.input[1]
        quantized = name in made and made[name].op_type == "DequantizeLinear"
        if quantized:
            name = made[name].input[0]
            name = made[name].input[0] if name in made and made[name].op_type == "QuantizeLinear" else name
        if name in constants or (name in made and made[name].op_type == "Constant"):
            ops[node.name] = quantized
    return ops


# -- what runs in the peers' environment -------------------------------------------------------------------------------

Item = tuple[Mapping[str, Any], Any]  # one sample as the model takes it, and its labels


class Judge:
    """Scores candidates and counts them.

    Args:
        metric: a key of `SCORES` of `benchmarks.peers.scores`.
        items: all samples that judge.
        run: what is counted goes here.
    """

    def __init__(self, metric: str, items: Sequence[Item], run: ControlRun) -> None:
        self._scores = importlib.import_module("benchmarks.peers.scores")
        self._metric, self._count, self._run = metric, len(items), run

    def __call__(self, candidate: onnx.ModelProto, chosen: Iterable[Item]) -> tuple[float, list[float]]:
        """The metric over samples, and that of every sample alone, by which NNCF tells which samples to rank on."""
        items = list(chosen)
        outputs = _outputs_of(candidate, [feed for feed, _ in items])
        rows = self._scores.SCORES[self._metric](outputs, np.concatenate([right for _, right in items]))
        value = float(self._scores.value_of(self._metric, rows))
        if len(items) == self._count:
            self._note(value)
        return value, self._each(rows)

    def _each(self, rows: Any) -> list[float]:
        """The metric of every sample; of an image, its share of right pixels in place of the mean over classes."""
        if self._metric == "miou":
            classes = int(np.sqrt(rows.shape[1]))
            right = rows.reshape(-1, classes, classes).trace(axis1=1, axis2=2)
            return [float(share) for share in right / rows.sum(1)]
        return [float(self._scores.value_of(self._metric, rows[i : i + 1])) for i in range(len(rows))]

    def _note(self, value: float) -> None:
        self._run.judged += 1
        if self._run.float_value is None:
            self._run.float_value = value
        elif self._run.int8_value is None:
            self._run.int8_value = value
        else:
            self._run.value = value


def _outputs_of(candidate: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from onnxruntime import InferenceSession

    session = InferenceSession(candidate.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    parts = []
    for start in range(0, len(feeds), _ROWS):
        some = feeds[start : start + _ROWS]
        parts.append(session.run(names, {key: np.concatenate([feed[key] for feed in some]) for key in some[0]}))
    return {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}


class _Reverted(logging.Handler):
    """Keeps the names of ops that NNCF's log says were put back to float."""

    def __init__(self, run: ControlRun) -> None:
        super().__init__(logging.INFO)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Reverted"):
            self._run.reverted.append(" ".join(text.splitlines()[1:]).replace("\t", "").strip())


def control(model: Path, samples: Calibration, judge: Path, out: Path, metric: str, drop: float) -> ControlRun:
    """Quantize by accuracy control; the options are those of NNCF's other rows of the comparison."""
    import nncf
    from nncf.quantization.algorithms.accuracy_control.evaluator import Evaluator

    run, prepared = ControlRun(), Counter[str]()
    logging.getLogger("nncf").addHandler(_Reverted(run))
    prepare = Evaluator.prepare_model

    def counting(self: Any, candidate: Any) -> Any:
        prepared["all"] += 1
        return prepare(self, candidate)

    Evaluator.prepare_model = counting
    with np.load(judge, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file}
    labels = arrays.pop("labels")
    items = [
        ({name: array[i : i + 1] for name, array in arrays.items()}, labels[i : i + 1]) for i in range(len(labels))
    ]
    options = nncf_options(samples, fast=True, smooth=False)
    options["advanced_quantization_parameters"] = options.pop("advanced_parameters")
    int8_model = nncf.quantize_with_accuracy_control(
        onnx.load(str(model)),
        nncf.Dataset(samples.feeds),
        nncf.Dataset(items, lambda item: item[0]),
        Judge(metric, items, run),
        max_drop=drop,
        drop_type=nncf.DropType.ABSOLUTE,
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(ranking_subset_size=RANKED_ON),
        **options,
    )
    onnx.save(int8_model, str(out))
    run.ranked = prepared["all"] - run.judged
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "calibration", "judge", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric", default="top1")
    parser.add_argument("--max-drop", type=float, required=True)
    arguments = parser.parse_args()
    samples = read_calibration(arguments.model, arguments.calibration)
    start = time.perf_counter()
    run = control(arguments.model, samples, arguments.judge, arguments.out, arguments.metric, arguments.max_drop)
    run.seconds = time.perf_counter() - start
    run.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run.versions = {package: version(package) for package in ("nncf", "onnxruntime")}
    sys.stdout.write(f"\n{json.dumps(asdict(run))}\n")


if __name__ == "__main__":
    main()
