"""The comparison with other quantizers: its samples, its scores, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import run, samples, scores, tables
from benchmarks.peers.cases import CASES, OF_TRUST
from benchmarks.peers.detections import Detections, judge_detections
from benchmarks.peers.scores import Scored
from benchmarks.peers.work import CaseWork, Results
from evaluators.metrics.registry import get_metric


def detections_and_labels(count: int) -> tuple[dict[str, Any], Any]:
    """Outputs (count, 8, 12) of a detector that finds most objects and invents some, and the objects."""
    rng = np.random.default_rng(3)
    labels = samples.draw_block("detector", "evaluation", 0)["labels"][:count]
    outputs = np.zeros((count, 8, 12), np.float32)
    for row, objects in enumerate(labels):
        boxes = np.concatenate([objects[objects[:, 4] >= 0]] * 2)
        boxes[:, :4] += rng.normal(0, 1, (len(boxes), 4))
        places = np.arange(len(boxes))
        outputs[row, :2, places] = (boxes[:, :2] + boxes[:, 2:4]) / 2
        outputs[row, 2:4, places] = boxes[:, 2:4] - boxes[:, :2]
        found = np.where(rng.random(len(boxes)) < 0.9, boxes[:, 4], rng.integers(0, 4, len(boxes)))
        outputs[row, 4 + found.astype(int), places] = rng.uniform(0.02, 1, len(boxes))
    return {"detections": outputs}, labels


def test_average_precision_is_that_of_the_metric() -> None:
    outputs, labels = detections_and_labels(120)
    gathering = get_metric("map", "yolov8").accumulator()
    gathering.update(outputs, labels, count=len(labels))
    found = Detections(judge_detections(outputs, labels)).average_precision()
    assert 0.1 < found < 0.9
    assert found == pytest.approx(gathering.compute(), abs=1e-9)


def test_average_precision_leaves_out_classes_that_no_object_has() -> None:
    outputs, labels = detections_and_labels(60)
    of_two = np.where(labels[:, :, 4:] < 2, labels, -1)
    rows = judge_detections(outputs, of_two)
    each = [Detections(keep_class(rows, number)).average_precision() for number in (0, 1)]
    assert Detections(rows).average_precision() == pytest.approx(np.mean(each))
    assert Detections(judge_detections(outputs, np.full_like(labels, -1))).average_precision() == 0


def keep_class(rows: Any, number: int) -> Any:
    """What average precision is made of, with no objects of other classes."""
    kept = rows.copy()
    others = [other for other in range(samples.DETECTED) if other != number]
    kept[:, [other - samples.DETECTED for other in others]] = 0
    return kept


@pytest.mark.parametrize("metric", scores.SCORES)
def test_a_weight_of_two_is_a_sample_that_is_there_twice(metric: str) -> None:
    rows = some_scores(metric)
    weights = np.arange(len(rows)) % 3
    twice = Scored(metric, rows.repeat(weights, axis=0))
    assert Scored(metric, rows).value(weights) == pytest.approx(twice.value(), abs=1e-12)


def some_scores(metric: str) -> Any:
    rng = np.random.default_rng(0)
    if metric == "map":
        return judge_detections(*detections_and_labels(60))
    return rng.integers(1, 30, (60, 25)) if metric == "miou" else (rng.random(60) < 0.8).astype(float)


@pytest.mark.parametrize("metric", scores.SCORES)
def test_a_loss_is_paired(metric: str) -> None:
    """What is equal loses nothing, with no doubt about it, however much samples differ."""
    rows = some_scores(metric)
    found, worse = Scored(metric, rows), Scored(metric, rows[::-1])
    same = scores.loss_of(found, found)
    assert (same.loss, same.low, same.high) == (0, 0, 0)
    there, back = scores.loss_of(found, worse), scores.loss_of(worse, found)
    assert there.loss == pytest.approx(-back.loss)
    assert there.low == pytest.approx(-back.high)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TRUST)
def test_networks_of_the_trust_benchmark_have_samples_and_a_score(name: str) -> None:
    case = OF_TRUST[name]
    assert case.draw is not None
    fitted, scored = (case.draw(purpose, samples.BLOCK) for purpose in ("calibration", "evaluation"))
    (key,) = set(scored) - {"labels"}
    assert not {row.tobytes() for row in fitted[key]} & {row.tobytes() for row in scored[key]}
    found = scores.score(case.model, scored, case.metric)
    assert 0.35 < scores.value_of(case.metric, found) < 0.999


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_samples_come_again_and_purposes_do_not_overlap(name: str) -> None:
    calibration, evaluation = (samples.draw_block(name, purpose, 0) for purpose in ("calibration", "evaluation"))
    again = samples.draw_block(name, "evaluation", 0)
    (key,) = set(again) - {"labels"}
    assert np.array_equal(again[key], evaluation[key])
    assert again[key].dtype == np.float32
    assert len({row.tobytes() for row in (*calibration[key], *evaluation[key])}) == 2 * samples.BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_float_network_knows_its_task_and_is_small(name: str) -> None:
    case = CASES[name]
    assert name == "digits" or case.model.stat().st_size <= 300_000
    arrays = samples.draw_block(name, "evaluation", 0)
    assert 0.35 < scores.value_of(case.metric, scores.score(case.model, arrays, case.metric)) < 0.99


def test_a_row_is_quantized_and_scored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quantizer is a copy of the float model, so that it loses nothing; a second run finds it done."""
    calls = []

    def copy(method: str, model: Path, calibration: Path, out: Path, metric: str) -> run.Run:
        calls.append((method, calibration.name, metric))
        out.write_bytes(model.read_bytes())
        return run.Run(method, 1.0, 10, {"copy": "1"}, 3)

    monkeypatch.setattr(run.quantizers, "quantize", copy)
    words = ["--only", "encoder", "--methods", "nncf-fast", "--work", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(CaseWork, "evaluation", samples.draw_block("encoder", "evaluation", 0))
    for _ in range(2):
        run.run_network(CASES["encoder"], ["nncf-fast"], run.parsed(words))
    assert calls == [("nncf-fast", "encoder-calibration.npz", "top1")]
    found = Results(tmp_path / "out").read()["runs"]["encoder/nncf-fast"]
    assert (found["loss"], found["float_ops"]) == (0, 3)


def row_of(loss: float, float_ops: int = 0) -> dict[str, Any]:
    return {"loss": loss, "low": loss - 0.002, "high": loss + 0.002, "float_ops": float_ops}


def test_tables_compare_with_the_best_quantizer() -> None:
    steps = [{"name": "smooth", "kept": False, "seconds": 2.0}, {"name": "ranges", "kept": True, "seconds": 26.4}]
    runs = {
        "encoder/bitfront-auto": {**row_of(0.004), "steps": steps, "peak_bytes": 300 * 2**20},
        "encoder/nncf-fast": row_of(0.03, 6),
        "encoder/onnxruntime-minmax": row_of(0.02),
        "encoder/quark": {"failed": "it gave up"},
    }
    pairs = {"bitfront-auto": {other.partition("/")[2]: row_of(-0.016) for other in runs if "quark" not in other}}
    del pairs["bitfront-auto"]["bitfront-auto"]
    about = {"kind": "transformer", "metric": "top1", "value": 0.94, "samples": 10_000, "calibration": 500}
    text = tables.text({"networks": {"encoder": about}, "runs": runs, "pairs": {"encoder": pairs}})
    assert "| NNCF, fast bias correction | 3.00 ± 0.20 (6 in float) |" in text
    assert "| Quark | gave up |" in text
    assert "| bitfront, `--recover auto` | encoder | ONNX Runtime, minmax | -1.60 ± 0.20 | better |" in text
    assert "| encoder | ranges | smooth 2 s, ranges 26 s | 300 MiB |" in text
