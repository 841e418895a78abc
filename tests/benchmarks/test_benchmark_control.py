"""The comparison with accuracy control: what it reads of a peer's file, what it allows a search, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers import cases, samples
from benchmarks.peers.cases import CASES, FINAL, SEARCH, Case, final_file, search_file
from benchmarks.peers.control import accuracy_control, run, tables, timing
from benchmarks.peers.control.accuracy_control import ControlRun, Judge, weighted_ops
from benchmarks.peers.control.engines import Study
from benchmarks.peers.control.tables import Ratio
from benchmarks.peers.work import Results
from tests.support.networks import images, residual_cnn, save


def quantized_pair(folder: Path) -> Path:
    """A file with a product whose weight is in INT8, one whose weight is rounded on the way, and one in float."""
    weight = np.eye(4, dtype=np.float32)
    made = [
        helper.make_node("DequantizeLinear", ["stored", "scale"], ["first"], "read first"),
        helper.make_node("MatMul", ["x", "first"], ["a"], "int8"),
        helper.make_node("QuantizeLinear", ["float", "scale"], ["q"], "round"),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["second"], "read second"),
        helper.make_node("MatMul", ["a", "second"], ["b"], "rounded"),
        helper.make_node("MatMul", ["b", "float"], ["c"], "float"),
        helper.make_node("MatMul", ["c", "b"], ["y"], "of activations"),
    ]
    constants = {"stored": weight.astype(np.int8), "scale": np.float32(1), "float": weight}
    graph = helper.make_graph(
        made,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph), folder / "pair.onnx")
    return folder / "pair.onnx"


def test_weighted_layers_in_float_are_told_from_those_in_int8(tmp_path: Path) -> None:
    assert weighted_ops(quantized_pair(tmp_path)) == {"int8": True, "rounded": True, "float": False}


@pytest.mark.parametrize(("metric", "each"), [("top1", 1.0), ("miou", 0.5)])
def test_only_models_that_all_samples_judge_are_counted(metric: str, each: float) -> None:
    model, told = residual_cnn(batch="n"), ControlRun()
    labels = np.zeros(6, np.int64)
    items = [({"image": image[None]}, labels[i : i + 1]) for i, image in enumerate(images(6))]
    judge = Judge(metric, items, told)
    judge._scores = FakeScores()
    for chosen in (items[:1], items, items[:3], items, items):
        value, of_samples = judge(model, chosen)
        assert (value, of_samples) == (len(chosen), [each] * len(chosen))
    assert (told.judged, told.float_value, told.int8_value, told.value) == (3, 6, 6, 6)


class FakeScores:
    """The metric of one sample is 1; of an image with two classes every pixel was wanted and found once each."""

    SCORES: Mapping[str, Any] = {
        "top1": lambda outputs, labels: np.ones(len(labels)),
        "miou": lambda outputs, labels: np.ones((len(labels), 4)),
    }

    @staticmethod
    def value_of(metric: str, rows: Any) -> float:
        return float(len(rows))


@pytest.mark.slow
def test_samples_that_judge_are_none_that_calibrate_or_confirm(tmp_path: Path) -> None:
    case = CASES["encoder"]
    seen = []
    for path in (
        case.calibration_file(tmp_path),
        search_file(case, tmp_path),
        final_file(case, tmp_path),
    ):
        with np.load(path) as file:
            seen.append({row.tobytes() for row in file["signal"]})
    assert [len(each) for each in seen] == [500, SEARCH, FINAL]
    scored = {row.tobytes() for row in samples.draw_block("encoder", "evaluation", 0)["signal"]}
    assert len(set().union(*seen, scored)) == 5000 + samples.BLOCK


@pytest.mark.slow
def test_a_study_gives_its_pick_and_the_mix_of_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole search of a small network; the mix keeps one layer in float."""
    monkeypatch.setattr(cases, "SEARCH", 60)
    monkeypatch.setattr(cases, "FINAL", 40)
    model = save(residual_cnn(batch="n"), tmp_path / "model.onnx")
    case = Case("toy", "residual CNN", "top1", file=model, draw=draw_toys)
    monkeypatch.setattr(samples, "draw", lambda name, purpose, count: draw_toys(purpose, count))
    study = Study(case, tmp_path / "study", 0.5)
    found = study.search(tmp_path, trials=2)
    assert (found["trials"], found["evaluations"], found["scored"]) == (2, 2, 120)
    assert set(found["uniform"]) == {"baseline:fp32", "baseline:int8"}
    assert study.pick.exists()
    (tmp_path / "mix.json").write_text('{"block.0/conv1": "int8", "block.0/conv2": "fp32"}')
    assert study.lower(str(tmp_path / "mix.json"), tmp_path / "mix.onnx") == ()
    ops = weighted_ops(tmp_path / "mix.onnx")
    assert [name for name, int8 in ops.items() if int8] == ["block.0/conv1"]
    assert len(found["float_nodes"]) in (0, len(ops))


def draw_toys(purpose: str, count: int) -> samples.Arrays:
    return {"image": images(count), "labels": np.arange(count) % 10}


@pytest.mark.parametrize(("judged", "ranked", "trials"), [(6, 44, 25), (2, 0, 2), (30, 300, 40)])
def test_a_search_gets_half_of_the_models(judged: int, ranked: int, trials: int) -> None:
    assert run.trials_for({"judged": judged, "ranked": ranked}) == trials


def test_files_are_timed_with_the_batch_fixed(tmp_path: Path) -> None:
    model = save(residual_cnn(batch="n"), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", image=images(20), labels=np.zeros(20, np.int64))
    found = timing.time_files({"fp32": model, "same": model}, tmp_path / "samples.npz", rounds=1)
    assert list(found) == ["fp32", "same"]
    assert min(found.values()) > 0


def test_a_piece_that_is_done_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool that gave up said is told too, and no search is made beside it."""
    calls: list[float] = []

    def give_up(model: Path, calibration: Path, judge: Path, out: Path, metric: str, drop: float) -> ControlRun:
        calls.append(drop)
        raise RuntimeError("it gave up")

    monkeypatch.setattr(accuracy_control, "quantize", give_up)
    words = ["--only", "encoder", "--drops", "0.003", "--work", str(tmp_path), "--out", str(tmp_path / "out.json")]
    for step in ("control", "control", "search"):
        run.run_pieces(step, run.parsed(words))
    assert calls == [0.003]
    found = Results(tmp_path / "out.json").read()
    assert found["control"]["encoder/0.003"]["failed"] == "it gave up"
    assert "failed" in found["search"]["encoder/0.003"]
    assert "| encoder | 0.3 points | gave up |" in tables.text(found)


def about_loss(low: float, high: float) -> dict[str, float]:
    return {"loss": (low + high) / 2, "low": low, "high": high}


def results_with(reverted: list[str], best_ms: float) -> dict[str, Any]:
    """One network and drop, finished: NNCF takes 2 ms, its mix by bitfront 1.5 ms."""
    ms = {"fp32": 4.0, "int8": 1.0, "control-0.003": 2.0, "mix-0.003": 1.5, "best-0.003": best_ms}
    engines = ("control-0.003", "mix-0.003", "best-0.003", "int8")
    control = {"judged": 6, "ranked": 44, "reverted": reverted, "float_nodes": ["a"], "weighted": 25, "seconds": 65.6}
    losses = {
        "of_float": dict.fromkeys(engines, about_loss(0.001, 0.003)),
        "best_against": {"control-0.003": about_loss(-0.002, 0.001), "mix-0.003": about_loss(-0.001, 0.001)},
    }
    return {
        "control": {"mobile/0.003": control},
        "search": {"mobile/0.003": {"evaluations": 25, "float_nodes": ["a", "b"], "seconds": 80.0}},
        "losses": {"mobile/0.003": losses},
        "times": {"mobile": {"ms": {name: [value] * 10 for name, value in ms.items()}, "load": [0.5, 2.0]}},
    }


def test_tables_tell_effort_loss_latency_and_the_target() -> None:
    text = tables.text(results_with(["/conv"], 1.2))
    assert "| mobile | 0.3 points | 1 of 25, after 1 step | 6 + 44 | 66 s | 2 | 25 | 80 s |" in text
    assert "| 0.20 ± 0.10 | 0.500 | 0.375 | 0.300 |" in text
    assert "| 0.600 (0.600 to 0.600) | 0.800 (0.800 to 0.800) | -0.05 ± 0.15 | 0.50 | met |" in text
    assert "| mobile | 0.20 ± 0.10 | 0.250 (0.250 to 0.250) | 4.00 ms | 0.5 to 2.0 |" in text


def test_nothing_is_judged_where_nothing_was_put_back() -> None:
    assert "| INT8 holds, nothing was put back |" in tables.text(results_with([], 1.2))


@pytest.mark.parametrize(
    ("high", "more", "share", "verdict"),
    [
        (0.94, (-0.01, 0.01), 0.5, "met"),
        (0.96, (-0.01, 0.01), 0.5, "missed: latency against its mix in doubt"),
        (0.94, (0.001, 0.003), 0.6, "missed: loss, evaluations"),
    ],
)
def test_a_target_is_met_only_by_all_of_it(high: float, more: tuple[float, float], share: float, verdict: str) -> None:
    ratios = [Ratio(0.8, 0.79, 0.81), Ratio(0.93, 0.92, high)]
    assert tables.judge(ratios, about_loss(*more), share) == verdict


def test_a_ratio_of_ten_processes_leaves_out_the_two_that_differ_most() -> None:
    times = {"ms": {"best": [1.0, 9.0, *[2.0] * 8], "fp32": [2.0] * 10}}
    assert tables.ratio_of(times, "best", "fp32") == Ratio(1.0, 1.0, 1.0)
    few = {"ms": {name: values[:6] for name, values in times["ms"].items()}}
    assert tables.ratio_of(few, "best", "fp32") == Ratio(1.0, 0.5, 4.5)
