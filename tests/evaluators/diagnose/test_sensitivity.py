"""Sensitivity: what one group alone does, on real networks, against runs that share nothing with the pass."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bitfront import verbs
from evaluators import data
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations as calibration
from evaluators.data.opening import open_data
from evaluators.diagnose.distributions import Levels, Narrow, OutputError, by_channel, distance, output_error
from evaluators.diagnose.group_error import GroupError
from evaluators.diagnose.local_noise import Local, Network
from evaluators.diagnose.probes import Measured, Probe, estimates, halves, singles, to_halve
from evaluators.diagnose.schedule import Schedule
from evaluators.diagnose.sensitivity import Prober, sensitivity
from evaluators.diagnose.subset import choose
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.measure.output_noise import OutputNoise, sample_noise
from evaluators.process.evaluator import Evaluator
from search.graph.model import Model, load
from search.space.choices import make_space
from search.values import Assignment, Precision
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.options.config import SearchConfig
from studies.options.diagnosis.thresholds import Thresholds
from studies.run.guidance import guidance, sensitivities
from studies.run.pace import Pace
from studies.show import sensitivity_plot
from studies.store.records import GroupRecord
from studies.store.store import Store
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, three_layers, write_inputs
from tests.support.evaluator_jobs import case
from tests.support.few_samples import Few
from tests.support.networks import NETWORKS, ODD, Net, images, loaded, observed, plain_session, save
from tests.support.networks import finish as finished_net
from tests.support.paths import DIGITS
from tests.support.records import group_record
from tests.support.study_rows import STUDY, TARGET, finish

FP16, INT8 = Precision.FP16, Precision.INT8
LONG_S = 600.0
# What examples/digits/README.md says was made hard to quantize.
DIGITS_SENSITIVE = {
    *("features.0/project", "features.1/expand", "features.9/project", "features.10/expand", "features.10/project"),
    *("features.11/expand", "features.11/project", "head"),
}


def passed(
    model: Model,
    placement: Placement,
    pairs: Sequence[tuple[str, Precision]] | None = None,
    *,
    seconds: float = LONG_S,
    ranges: Any = None,
) -> dict[tuple[str, Precision], dict[str, Any]]:
    """The rows of a pass over a model, by pair."""
    few, backend = Few(model), OnnxRuntimeBackend("cpu", threads=2)
    network = Network(model, ranges or observed(model), placement)
    found = sensitivity(
        Emulator(backend, placement),
        network,
        [(group.id, INT8) for group in free(model)] if pairs is None else pairs,
        few.pool,
        few,
        seconds=seconds,
        done=lambda done, total: None,
    )
    return {(row.group, row.precision): asdict(row) for row in found.rows}


def free(model: Model) -> list[Any]:
    return [g for g in model.groups if not g.pinned and g.op != "ConvTranspose"]


def outputs(model: Model, assignment: Assignment, placement: Placement) -> NDArray[np.float64]:
    """Float outputs on the samples of `Few`, run as they are written, what is not INT8 in FP32; several are flat."""
    lowered = lower(model, assignment, observed(model), replace(placement, float_side=Precision.FP32))
    session = plain_session(ir.to_proto(lowered))
    names = [output.name for output in model.outputs if output.dtype == "float32"]
    runs = [session.run(names, batch.inputs) for batch in Few(model)(Few(model).pool)]
    whole = len(names) == 1 and runs[0][0].ndim > 2
    flat = [run[0] if whole else np.concatenate([a.ravel() for a in run]) for run in runs]
    return np.concatenate(flat).astype(np.float64)


def floats(model: Model) -> Assignment:
    return Assignment({group.id: Precision.FP32 for group in model.groups})


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_a_narrow_channel_is_lost_that_shares_its_scale_with_a_wide_one() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = rng.uniform(0, 255, 4000), rng.uniform(0, 0.4, 4000)
    grid = Levels(scale=1.0, zero=0, low=0, high=255)
    alone = distance(wide[None], grid)
    assert alone.overlap > 0.95
    assert alone.kl < 0.01
    lost = distance(narrow[None], grid)  # every value becomes 0, in the first of 16 bins
    assert lost.overlap == pytest.approx(1 / 16, rel=0.3)
    both = distance(np.stack([wide, narrow]), grid)
    assert both.overlap == pytest.approx((alone.overlap + lost.overlap) / 2)
    assert both.kl > 0.3


def test_saturated_values_are_those_outside() -> None:
    values = np.array([[-3.0, -1.0, 0.0, 100.0, 126.9, 127.4, 127.6, 300.0]])
    assert distance(values, Levels(1.0, 0, -128, 127)).saturated == 2 / 8
    assert distance(values, Levels(1.0, 0, 0, 255)).saturated == 3 / 8
    assert distance(1000 * values, Narrow(Precision.FP16)).saturated == 5 / 8


def test_rows_of_a_tensor_are_its_channels() -> None:
    tensor = np.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    assert by_channel(tensor, 1).shape == (3, 32)
    assert set(by_channel(tensor, 1)[0]) == set(tensor[:, 0].ravel())
    assert by_channel(tensor[:, 0, 0], -1).shape == (4, 2)
    assert by_channel(np.zeros(5), 1).shape == (1, 5)
    assert by_channel(np.zeros((8, 4, 512, 512), np.float32), 1).size < 2**19


def test_noise_of_channels_counts_a_lost_narrow_one_in_full() -> None:
    rng = np.random.default_rng(1)
    reference = np.stack([100 * rng.standard_normal(1000), rng.standard_normal(1000)])
    lost = reference * np.array([[1.0], [0.0]])
    found = output_error(lost, reference)
    assert found.mse == pytest.approx(0.5, rel=0.2)
    assert found.relative == pytest.approx(1e-4, rel=0.2)
    assert found.by_channel == pytest.approx(0.5, rel=0.01)
    assert found.shift < 0.01
    assert output_error(reference, reference) == OutputError(0.0, 0.0, 0.0, 0.0)
    assert output_error(np.full_like(reference, np.nan), reference).relative == np.inf
    assert output_error(reference + np.array([[3.0], [-3.0]]), reference).shift == pytest.approx(1)


def test_output_noise_weighs_samples_and_leaves_padding_out() -> None:
    reference = {"y": np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float32), "n": np.array([1, 2, 3])}
    values = {"y": np.array([[1.0, 0.0], [1.0, 0.0], [9.0, 9.0]], np.float32), "n": np.array([7, 7, 7])}
    noise = OutputNoise()
    noise.add(values, reference, np.array([0.75, 0.25]))
    assert noise.error == pytest.approx(0.25 * 2 / 1.0)
    assert noise.flip_share == pytest.approx(0.25)
    only = OutputNoise()
    only.add({"n": values["n"]}, {"n": np.array([1, 7, 3])}, np.array([0.5, 0.5]))
    assert (only.error, only.flip_share) == (0.5, None)


def test_channels_of_several_units_count_alike() -> None:
    """Edges of boxes in pixels beside scores: an error of a tenth in either is as large."""
    random = np.random.default_rng(0)
    exact = random.uniform(0.5, 1.0, (6, 5, 40)) * np.array([100.0, 100, 0.01, 0.01, 0.01])[:, None]
    for channels in ([0, 1], [2, 3]):
        values = exact.copy()
        values[:, channels] *= 1.1
        noise = OutputNoise()
        noise.add({"y": values}, {"y": exact}, np.ones(6))
        assert noise.error == pytest.approx(0.4 * 0.01)
        assert sample_noise({"y": values}, {"y": exact}, 6) == pytest.approx(np.full(6, 0.004), rel=0.2)
        whole = OutputNoise(by_channel=False)
        whole.add({"y": values}, {"y": exact}, np.ones(6))
        assert whole.error == pytest.approx(0.01 if 0 in channels else 0.0, abs=1e-6)
    lost = exact.copy()
    lost[:, 4] = 5.0
    noise.add({"y": lost}, {"y": exact}, np.ones(6))
    assert noise.error < 0.21  # a channel that is lost is no more than that
    assert sample_noise({"y": exact * np.nan}, {"y": exact}, 6) == pytest.approx(np.full(6, np.inf))


def test_errors_of_samples_are_told_of_outputs_without_a_row_for_each() -> None:
    exact = np.random.default_rng(0).uniform(0.5, 1.0, (6, 20))
    values = exact * np.array([1.1, 1, 1, 1, 1, 1])[:, None]
    by_row = sample_noise({"y": values}, {"y": exact}, 6)
    assert (by_row > 0).tolist() == [True] + [False] * 5
    parts = [array.reshape(24, 5) for array in (values, exact)]  # four parts of each sample
    assert (sample_noise({"y": parts[0]}, {"y": parts[1]}, 6) > 0).tolist() == [True] + [False] * 5
    whole = sample_noise({"y": values[:, :7].T}, {"y": exact[:, :7].T}, 6)
    assert (whole > 0).all()
    assert len(set(whole.tolist())) == 1
    other = sample_noise({"y": values[:, :7]}, {"y": exact}, 6)
    assert (other == np.inf).all(), "a shape that depends on values"


def test_a_subset_is_half_hard_and_its_weights_give_the_mean_of_the_pool() -> None:
    hardness = np.random.default_rng(2).permutation(40).astype(np.float64)

    def batches(indices: NDArray[np.int64]) -> Any:
        for start in range(0, len(indices), 4):
            rows = indices[start : start + 4]
            yield data.Batch({"x": hardness[rows][:, None]}, None, len(rows))

    def rough(batch: data.Batch) -> dict[str, NDArray[Any]]:
        return {"y": np.ones((4, 1)) + batch.inputs["x"]}

    pool = np.arange(40)
    found = choose(pool, 16, batches, lambda batch: {"y": np.ones((4, 1))}, rough, lambda: False)
    assert len(found.indices) == len(set(found.indices)) == 16
    assert set(np.argsort(-hardness)[:8]) <= set(found.indices)
    assert found.weights.sum() == pytest.approx(1)
    assert found.weights[np.isin(found.indices, np.argsort(-hardness)[:8])] == pytest.approx(1 / 40)
    assert len(set(found.indices[:4]) & set(np.argsort(-hardness)[:8])) == 2
    cut = choose(pool, 4, batches, lambda batch: {"y": np.ones((4, 1))}, rough, lambda: True)
    assert list(cut.indices) == [0, 1, 2, 3]


def probe(error: float, *groups: str) -> Probe:
    return Probe(tuple((group, INT8) for group in groups), Measured(error, None, 8))


def locals_of(noises: dict[tuple[str, Precision], float]) -> dict[tuple[str, Precision], Local]:
    return {pair: Local(OutputError(noise, 1e-2, noise, 0.0), None, None) for pair, noise in noises.items()}


def test_estimates_of_a_stretch_sum_to_what_it_adds() -> None:
    """Gains rise towards the loud stretch behind it, and FP16 has the gain of the same place."""
    places = {name: place for place, name in enumerate("abcdef")}
    local = locals_of({**{(name, INT8): 1e-2 for name in "abcdef"}, ("b", FP16): 1e-6})
    local["d", INT8] = locals_of({("d", INT8): 4e-2})["d", INT8]
    found = estimates(places, local, [probe(4e-3, "a", "b", "c"), probe(6e-1, "d", "e"), probe(2e-1, "f")])
    assert sum(found[name, INT8] for name in "abc") == pytest.approx(4e-3)
    assert found["d", INT8] + found["e", INT8] == pytest.approx(6e-1)
    assert found["d", INT8] > found["e", INT8]  # louder by itself, but with less gain
    assert found["a", INT8] < found["b", INT8] * 1.01 < found["c", INT8]
    assert found["f", INT8] == 2e-1
    assert found["b", FP16] == pytest.approx(1e-6 * 4e-3 / 3e-2)  # the gain in the middle of the stretch


def test_a_stretch_whose_error_is_not_finite_is_halved_first_and_leaves_its_pairs_estimated() -> None:
    quiet, broken = probe(1e-3, "a", "b"), probe(np.inf, "c", "d")
    assert to_halve([quiet, broken]) is broken
    assert halves(broken) == ((("c", INT8),), (("d", INT8),))
    local = locals_of({(name, INT8): 1e-2 for name in "abcd"})
    found = estimates({name: place for place, name in enumerate("abcd")}, local, [quiet, broken])
    assert found["c", INT8] == pytest.approx(5e-4)
    assert to_halve([probe(1.0, "a")]) is None
    assert list(singles([quiet, probe(1.0, "c")])) == [("c", INT8)]


def test_little_time_goes_to_int8_though_one_product_may_be_w4() -> None:
    """The stretch that is run first is of all pairs of the precision that most groups have."""
    pairs = locals_of({**{(f"g{place}", INT8): 1e-6 for place in range(20)}, ("g19", Precision.W4): 1e-5})
    ran: list[tuple[tuple[str, Precision], ...]] = []

    def run(some: tuple[tuple[str, Precision], ...]) -> Probe:
        ran.append(some)
        time.sleep(0.02)
        return replace(probe(1e-3, "g0"), pairs=some)

    names = {f"g{place}": f"layer {place}" for place in range(20)}
    places = {group: place for place, group in enumerate(names)}
    Schedule(run, places, names, left=lambda: 0.03, tell=lambda text: None, done=lambda *counts: None).run(pairs)
    assert ran[0] == tuple((group, INT8) for group in names)


def test_estimates_take_the_gain_of_the_groups_around() -> None:
    places = {"a": 0, "b": 1, "c": 2}
    noises = {("a", INT8): 1e-2, ("a", FP16): 1e-6, ("b", INT8): 2e-2, ("c", INT8): 1e-2}
    local = locals_of(noises)
    known = [probe(1e-3, "a"), probe(1e-5, "c")]
    found = estimates(places, local, known)
    assert found["a", INT8] == 1e-3
    assert found["a", FP16] == pytest.approx(1e-7)
    assert found["b", INT8] == pytest.approx(2e-2 * 1e-2)  # between gains of 0.1 and 0.001
    assert estimates(places, local, [])["b", INT8] == 2e-2


def relative_by_channel(noise: NDArray[Any], exact: NDArray[Any]) -> float:
    """Of an output with two inner axes, every index of the shorter one counts alike."""
    if noise.ndim < 3:
        return float(np.square(noise).sum() / np.square(exact).sum())
    shorter = 1 + int(np.argmin(noise.shape[1:]))
    others = tuple(axis for axis in range(noise.ndim) if axis != shorter)
    return float((np.square(noise).sum(axis=others) / np.square(exact).sum(axis=others)).mean())


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "placement"),
    [*((name, TENSORRT) for name in (*NETWORKS, *ODD)), *((n, ONNXRUNTIME_CPU) for n in NETWORKS)],
)
def test_errors_are_those_of_single_groups_in_the_whole_network(name: str, placement: Placement) -> None:
    model = loaded(name)
    rows = passed(model, placement)
    assert set(rows) == {(group.id, INT8) for group in free(model)}
    exact = outputs(model, floats(model), placement)
    if len([output for output in model.outputs if output.dtype == "float32"]) > 1:
        return  # the error is a mean over outputs, this reference one over values
    for (group, precision), row in rows.items():
        noise = outputs(model, floats(model).replace({group: precision}), placement) - exact
        assert row["samples"] == 4 * model.batch
        assert row["error"] == pytest.approx(relative_by_channel(noise, exact), rel=0.25), group
        assert row["sqnr_db"] > 10
        assert 0 <= row["overlap"] <= 1
        assert row["saturated"] <= 0.01


def many_layers(loud: int, layers: int = 63) -> onnx.ModelProto:
    """A chain of residual layers, one of which reads a channel far larger than the others, with as small weights."""
    net = Net(5)
    x = net.conv("image", "stem", 3, 8)
    for number in range(layers - 2):
        y = net.op("Relu", [net.conv(x, f"layer{number}", 8, 8)], f"layer{number}/relu")
        if number == loud:
            gains = np.array([300, *[1] * 7], np.float32).reshape(1, 8, 1, 1)
            y = net.op("Relu", [net.op("Mul", [y, net.const("gains", gains)], "gained")], "loud")
            y = net.conv(y, "after", 8, 8)
            weight = next(weight for weight in net.weights if weight.name == "after.w")
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) / gains, "after.w"))
        else:
            y = net.op("Mul", [y, net.const(f"scale{number}", np.float32(0.1))], f"scaled{number}")
        x = net.op("Add", [x, y], f"add{number}")
    net.head(x, 8)
    return net.model([2, 3, 8, 8], "logits", [2, 10])


@pytest.mark.slow
@pytest.mark.parametrize("loud", [3, 20])
def test_with_time_for_few_runs_stretches_lead_to_the_loud_layer(
    loud: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only runs of probes move on: 13 runs for 64 groups."""
    runs: list[int] = []
    plain = Prober.probe

    def counted(self: Any, pairs: Any, parts: Any) -> Probe:
        runs.append(len(pairs))
        return plain(self, pairs, parts)

    monkeypatch.setattr(Prober, "probe", counted)
    clock = SimpleNamespace(monotonic=lambda: float(len(runs)))
    for module in ("schedule", "sensitivity"):
        monkeypatch.setattr(f"evaluators.diagnose.{module}.time", clock)
    model = load(save(many_layers(loud), tmp_path / "net.onnx"))
    rows = passed(model, TENSORRT, seconds=13.4)
    assert runs == [64, 32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1]
    name = next(group.id for group in model.groups if group.name.startswith("after"))
    worst = max(rows, key=lambda pair: rows[pair]["error"])
    assert worst == (name, INT8)
    assert [rows[pair]["samples"] > 0 for pair in rows].count(True) == 2
    monkeypatch.undo()
    exact = passed(model, TENSORRT, [worst])
    assert rows[worst]["error"] == pytest.approx(exact[worst]["error"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_half_precision_adds_far_less_than_int8(name: str) -> None:
    model = loaded(name)
    pairs = [(group.id, precision) for group in free(model) for precision in (FP16, INT8)]
    rows = passed(model, TENSORRT, pairs)
    assert list(rows) == sorted(rows)
    for group in free(model):
        assert 0 < rows[group.id, FP16]["error"] < 0.01 * rows[group.id, INT8]["error"]
        assert rows[group.id, FP16]["sqnr_db"] > 55


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "mobile", "transformer", "unet"])
def test_errors_of_groups_sum_to_those_of_mixes(name: str) -> None:
    model = loaded(name)
    rows = passed(model, TENSORRT)
    exact, rng = outputs(model, floats(model), TENSORRT), np.random.default_rng(3)
    sums, errors = [], []
    for share in np.linspace(0.1, 1.0, 12):
        chosen = {group.id: INT8 for group in free(model) if rng.random() < share}
        noise = outputs(model, floats(model).replace(chosen), TENSORRT) - exact
        sums.append(sum(rows[group, INT8]["error"] for group in chosen))
        errors.append(np.square(noise).sum() / np.square(exact).sum())
    assert np.corrcoef(sums, errors)[0, 1] > 0.9


def test_half_precision_rounds_activations_and_not_weights_alone(tmp_path: Path) -> None:
    n = Net(21)
    n.conv("image", "only", 3, 8)
    for index in (-1, -2):  # exact in half precision
        n.weights[index].CopyFrom(_as(n.weights[index], np.round))
    model = load(save(n.model([4, 3, 8, 8], "mask", [4, 8, 8, 8]), tmp_path / "m.onnx"))
    (row,) = passed(model, TENSORRT, [("g000", FP16)]).values()
    # Rounding to 11 bits is uniform within 2^-11 of a binade: 2^-22 / 3 at its lower end, a quarter of it at its upper.
    assert 2**-24 / 3 < row["error"] < 3 * 2**-22 / 3
    assert 60 < row["sqnr_db"] < 80


def overflowing() -> Any:
    """The second convolution's output is beyond float16, the third's is not."""
    n = Net(20)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    x = n.op("Relu", [n.conv(x, "second", 8, 8)], "second/relu")
    n.weights[-2].CopyFrom(_scaled(n.weights[-2], 3e5))
    n.conv(x, "third", 8, 4, 1)
    n.weights[-2].CopyFrom(_scaled(n.weights[-2], 1e-5))
    return n.model([2, 3, 8, 8], "mask", [2, 4, 8, 8])


def _scaled(tensor: Any, factor: float) -> Any:
    return _as(tensor, lambda array: factor * array)


def _as(tensor: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    return numpy_helper.from_array(change(numpy_helper.to_array(tensor)).astype(np.float32), tensor.name)


@pytest.mark.slow
def test_what_does_not_fit_float16_is_said_and_no_number(tmp_path: Path) -> None:
    model = load(save(overflowing(), tmp_path / "m.onnx"))
    rows = passed(model, TENSORRT, [(group.id, FP16) for group in model.groups])
    first, second, third = model.groups
    assert rows[first.id, FP16]["error"] < 1e-4
    assert (rows[second.id, FP16]["error"], rows[second.id, FP16]["sqnr_db"]) == (None, None)
    assert rows[second.id, FP16]["saturated"] > 0
    assert rows[third.id, FP16]["saturated"] > 0  # what it reads


@pytest.fixture(scope="module")
def digits() -> tuple[Model, Any, Any]:
    model = load(DIGITS / "digits.onnx", batch=16)
    dataset = open_data(str(DIGITS / "digits.npz"), model.inputs)
    return model, dataset, calibration.collect(model, dataset, np.arange(256), "minmax", threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, LONG_S])
def test_the_layers_of_digits_that_were_made_hard_are_the_sensitive_ones(
    digits: tuple[Model, Any, Any], seconds: float
) -> None:
    model, dataset, ranges = digits
    backend = OnnxRuntimeBackend("cpu", threads=2)
    told: list[tuple[int, int]] = []
    found = sensitivity(
        Emulator(backend, backend.placement),
        Network(model, ranges, backend.placement),
        [(group.id, INT8) for group in model.groups],
        np.random.default_rng(0).permutation(np.arange(256, 4000)),
        lambda indices: data.batches(dataset, indices, model.batch),
        seconds=seconds,
        done=lambda done, total: told.append((done, total)),
    )
    records = tuple(GroupError(**asdict(row)) for row in found.rows)
    table = Sensitivities("digits", records, groups_of(model), Thresholds()).table()
    names = [row["node"].removesuffix("/conv/Conv").lstrip("/") for row in table]
    assert set(names[:8]) == DIGITS_SENSITIVE
    assert {name for name, row in zip(names, table, strict=True) if row["sensitive"]} == DIGITS_SENSITIVE
    assert {row["samples"] for row in table} == ({64} if seconds else {0})
    assert told == ([(n, 38) for n in range(1, 39)] if seconds else [])
    assert any("estimated" in note for note in found.notes) == (not seconds)


def groups_of(model: Model) -> dict[str, GroupRecord]:
    return {g.id: GroupRecord.of_group(g) for g in model.groups}


def test_the_time_that_was_asked_for_is_given_however_little_an_evaluation_may_take() -> None:
    config = SearchConfig(model="m", data="d", study="s", evaluation_timeout_s=20.0, sensitivity_time_s=3600.0)
    assert sensitivities.seconds_for(config, 1.0) == 3600.0
    assert sensitivities.seconds_for(replace(config, sensitivity_time_s=None), None) == sensitivities.MOST_S


@pytest.mark.parametrize(
    ("limits", "expected_s"),
    [
        ({"trials": 4}, 5.0),
        ({"trials": 200, "patience": 3}, 20.0),
        ({"trials": 4000, "patience": 3}, 60.0),
        ({"trials": 40000, "patience": 3, "time_limit_s": 600.0}, 30.0),
    ],
)
def test_the_pass_gets_its_share_of_the_time_that_a_study_is_expected_to_take(
    limits: dict[str, Any], expected_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def run(keeper: Any, space: Any, seconds: float, progress: Any) -> Any:
        given.append(seconds)
        return (), ()

    monkeypatch.setattr(sensitivities, "run", run)
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo")
        finish(store, target, 0, 0, total_s=1.5)
        finish(store, target, 1, 2, total_s=2.5)
        config = SearchConfig(model="m", data="d", study="demo", **limits)
        ledger = SimpleNamespace(store=store, target=SimpleNamespace(id=target))
        problem, bench = SimpleNamespace(config=config, space=None), SimpleNamespace(keeper=None)
        work: Any = SimpleNamespace(ledger=ledger, problem=problem, bench=bench, pace=Pace(), events=None)
        sensitivities.measure(work)
    assert given == [pytest.approx(expected_s)]


@pytest.mark.slow
def test_a_search_makes_the_pass_once_when_it_knows_what_the_uniform_assignments_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, and from the first run on."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    given, real = [], sensitivities.run

    def run(keeper: Any, space: Any, seconds: float, progress: Any) -> Any:
        given.append((seconds, took_s()))
        return real(keeper, space, seconds, progress)

    monkeypatch.setattr(sensitivities, "run", run)
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 400, "--patience", 3)
    [(seconds, took)] = given
    assert len(took) == 2, "both uniform assignments are finished, and nothing else"
    assert seconds == pytest.approx(min(60.0, max(5.0, 0.05 * 400 * float(np.mean(took)))))
    ok("resume", "s", "--trials", 5)
    assert len(given) == 1, "once measured, it is known"


@pytest.mark.slow
def test_the_sampler_is_told_what_the_pass_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made before the pass, and priors from the uniform assignments may be there by then."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    told: list[tuple[Any, Any]] = []

    def measured(work: Any, plain: Any) -> Any:
        before = (plain.noise, plain.priors().noise)
        informed = real(work, plain)
        told.extend([before, (informed.noise, informed.priors().noise)])
        return informed

    real = guidance.measure_noise
    monkeypatch.setattr(guidance, "measure_noise", measured)
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 3)
    (nothing, usual), (noise, prior) = told
    assert nothing is None
    assert len(set(usual.nodes[:, -1])) == 1, "the same of every group"
    assert np.array_equal(noise.nodes, prior.nodes)
    assert len(set(noise.nodes[:, -1])) == 3, "of each what was measured"


def took_s() -> list[float]:
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        return [
            float(s) for s in store.evaluations.table(store.targets.of_study(store.studies.load("s").id)[0].id).total_s
        ]


# -- the evaluator -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_evaluator_measures_every_offered_pair_and_goes_back_to_its_cores(tmp_path: Path) -> None:
    events: list[tuple[str, Any]] = []
    evaluator = Evaluator(case(tmp_path).job, lambda event, value: events.append((event, value)))
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one)
    try:
        found = evaluator.diagnoses.measure_sensitivity(LONG_S)
        assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, before)
    space = make_space(evaluator.opened.model, evaluator.opened.backend.capability(), ranged_by(evaluator))
    offered = {
        (g, c.precision) for g, some in space.choices.items() for c in some if c.offered and c.precision in (FP16, INT8)
    }
    assert {(row.group, row.precision) for row in found.rows} == offered
    assert found.device == "cpu"
    assert events[-1] == ("progress", [len(offered), len(offered)])
    (group, precision), *_ = offered
    assert [row.group for row in evaluator.diagnoses.measure_sensitivity(0.0, [(group, precision)]).rows] == [group]


def ranged_by(evaluator: Evaluator) -> Any:
    from search.values import Ranges

    assert evaluator.opened.job.ranges is not None
    return Ranges.from_json(json.loads(Path(evaluator.opened.job.ranges).read_text(encoding="utf-8")))


# -- storing and judging -----------------------------------------------------------------------------------------------

ROWS = (
    GroupError("g000", INT8, 0.25, 0.125, 12.5, 0.5, 0.75, 0.0, 64),
    GroupError("g001", FP16, None, None, None, None, None, None, 0),
    GroupError("g001", INT8, 0.002, 0.0, 30.0, 0.25, 0.625, 0.5, 64),
    GroupError("g002", INT8, 1e-5, 0.0, 30.0, 0.25, 0.75, 0.5, 64),
)


def test_rows_are_stored_replaced_and_deleted_with_their_study(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo")
        assert store.spaces.sensitivities(target) == {}
        store.spaces.set_sensitivities(target, ROWS[:1])
        store.spaces.set_sensitivities(target, ROWS)
        assert store.spaces.sensitivity_rows(target) == ROWS
        assert store.spaces.sensitivities(target) == {
            ("g000", INT8): 0.25,
            ("g001", FP16): np.inf,
            ("g001", INT8): 0.002,
            ("g002", INT8): 1e-5,
        }
        store.studies.delete(STUDY.name)
        assert store.spaces.sensitivity_rows(target) == ()


def judged(**changes: float) -> Sensitivities:
    groups = {g: group_record(g, f"<b>{g}</b>", block="b") for g in ("g000", "g001", "g002")}
    return Sensitivities("demo", ROWS, groups, replace(Thresholds(), **changes), ())


def test_verdicts_name_their_reasons_and_follow_the_thresholds() -> None:
    found = [judged().reasons(row) for row in ROWS]
    assert found == [("KL > 0.3", "error > 2 × mean"), ("not finite",), ("overlap < 0.7",), ()]
    harmless = judged(min_error=0.003)
    assert harmless.reasons(ROWS[2]) == (), "its error is below what counts"
    flips = replace(ROWS[2], flipped=2 / 64)
    assert harmless.reasons(flips) == ("overlap < 0.7",), "but it changes the class of two samples"
    strict = judged(min_overlap=0.8, min_error=0.0)
    assert (judged(min_overlap=0.8).reasons(ROWS[3]), strict.reasons(ROWS[3])) == ((), ("overlap < 0.8",))
    loose = judged(max_kl=0.6, max_error_ratio=4.0, min_overlap=0.5)
    assert [loose.reasons(row) for row in ROWS] == [(), ("not finite",), (), ()]
    assert [row["group"] for row in judged().table()] == ["g001", "g000", "g001", "g002"]
    pairs = "3 groups, 4 pairs of group and precision: 3 sensitive"
    assert judged().headline().startswith(f"{pairs}; 1 errors (≈)"), "what is truncated does no harm"
    assert judged(min_error=0.0).headline().startswith(f"{pairs}, 1 truncated; 1 errors (≈)")


def test_the_picture_is_one_file_and_names_are_no_markup(tmp_path: Path) -> None:
    sensitivity_plot.write_plot(judged(), tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<b>g000</b>" not in text
    assert "&lt;b&gt;g000" in text or "\\u0026lt;b\\u0026gt;g000" in text
    assert "<script src" not in text


# -- the verb ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_is_measured_once_and_read_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    with Store.open(f"sqlite:///{DATABASE}") as store:
        target = store.targets.of_study(store.studies.load("small").id)[0].id
        store.spaces.set_sensitivities(target, [])
    first = json.loads(ok("sensitivity", "small", "--json", "--sensitivity-time", "10m"))
    assert {(row["node"], row["precision"], row["samples"] > 0) for row in first["groups"]} == {
        ("first", "int8", True),
        ("second", "int8", True),
        ("fc", "int8", True),
    }
    shutil.move(tmp_path / f"{DATABASE}.artifacts", tmp_path / "elsewhere")  # what is stored needs nothing else
    again = json.loads(ok("sensitivity", "small", "--json", "--max-error-ratio", 0, "--min-error", 0))
    assert [(row["group"], row["error"]) for row in again["groups"]] == [
        (row["group"], row["error"]) for row in first["groups"]
    ]
    assert all(row["sensitive"] for row in again["groups"])
    result = invoke("sensitivity", "small", "--again", "--model", tmp_path / "gone.onnx")
    assert result.exit_code == 2
    assert "gone.onnx" in result.output


@pytest.mark.slow
def test_a_model_is_measured_without_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    before = sorted(tmp_path.iterdir())
    given = ("sensitivity", tmp_path / "in/model.onnx", "--data", tmp_path / "in/data.npz")
    rows = list(csv.DictReader(io.StringIO(ok(*given, "--csv", "--keep", "second=fp32"))))
    assert {row["node"] for row in rows} == {"first", "fc"}
    assert sorted(tmp_path.iterdir()) == before
    printed = ok(*given, "--plot", tmp_path / "p.html", "--sensitivity-time", "1ms")
    assert "≈" in printed
    assert "3 errors (≈) are estimates" in printed
    assert (tmp_path / "p.html").stat().st_size > 10**6


def ending(make: Callable[[Net, str], str], shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Two convolutions and what turns their (4, 3, 8, 8) into the only output."""
    n = Net(30)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    y = make(n, n.conv(x, "second", 8, 3))
    return finished_net(n, {"image": [4, 3, 8, 8]}, {y: shape}, **{y: kind})


def image() -> onnx.ModelProto:
    return ending(lambda n, x: n.op("Sigmoid", [x], "picture"), [4, 3, 8, 8])


def class_map() -> onnx.ModelProto:
    return ending(lambda n, x: n.op("ArgMax", [x], "best", axis=1, keepdims=0), [4, 8, 8], TensorProto.INT64)


def mask() -> onnx.ModelProto:
    return ending(
        lambda n, x: n.op("Greater", [x, n.const("0", np.float32(0))], "mask"), [4, 3, 8, 8], TensorProto.BOOL
    )


def one_number_each() -> onnx.ModelProto:
    return ending(lambda n, x: n.op("ReduceMean", [x], "mean", axes=[1, 2, 3], keepdims=0), [4])


def one_number() -> onnx.ModelProto:
    return ending(lambda n, x: n.op("ReduceMean", [x], "mean", keepdims=0), [])


def one_row() -> onnx.ModelProto:
    """As classes look, but of the batch."""
    kept = {"axes": [0], "keepdims": 1}
    return ending(
        lambda n, x: n.op("Flatten", [n.op("ReduceMean", [n.op("Abs", [x], "abs")], "mean", **kept)], "row"), [1, 192]
    )


def a_row_per_pixel() -> onnx.ModelProto:
    return ending(lambda n, x: n.op("Reshape", [x, n.const("rows", np.array([-1, 3]))], "rows"), [256, 3])


def places() -> onnx.ModelProto:
    """How many there are depends on the values."""
    return ending(lambda n, x: n.op("NonZero", [n.op("Relu", [x], "relu")], "places"), [4, "found"], TensorProto.INT64)


def write_raw(folder: Path, network: onnx.ModelProto, samples: int, **labels: NDArray[Any]) -> None:
    """`model.onnx` and `data.npz`, without labels but those given."""
    save(network, folder / "model.onnx")
    np.savez(folder / "data.npz", allow_pickle=False, image=images(samples, shape=(3, 8, 8)), **labels)


FORMS = (image, class_map, mask, one_number_each, one_number, one_row, a_row_per_pixel)


@pytest.mark.parametrize("make", [one_number, one_row, a_row_per_pixel])
def test_all_values_of_an_output_without_a_row_per_sample_count(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    model = load(save(make(), tmp_path / "m.onnx"))
    exact = outputs(model, floats(model), TENSORRT)
    for (group, precision), row in passed(model, TENSORRT).items():
        noise = outputs(model, floats(model).replace({group: precision}), TENSORRT) - exact
        assert row["error"] == pytest.approx(np.square(noise).sum() / np.square(exact).sum(), rel=0.01)
        assert row["flipped"] is None, "no output is classes of samples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "labels"),
    list(zip(FORMS, itertools.cycle([None, (5,), (8, 8)]), strict=False)),
    ids=[make.__name__ for make in FORMS],
)
def test_outputs_and_labels_of_a_model_may_have_any_form(
    make: Callable[[], onnx.ModelProto], labels: tuple[int, ...] | None, tmp_path: Path
) -> None:
    given = {} if labels is None else {"labels": np.full((62, *labels), 1000)}
    write_raw(tmp_path, make(), 62, **given)  # the last batch is not full
    found = json.loads(ok("sensitivity", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--json"))
    assert {row["node"] for row in found["groups"]} == {"first", "second"}
    for row in found["groups"]:
        assert row["samples"] == 32  # of the search split, all
        assert 0 < row["error"] < 0.1
        assert row["flipped"] is None


@pytest.mark.slow
def test_layers_with_data_score_nothing_either(tmp_path: Path) -> None:
    write_raw(tmp_path, mask(), 12)
    found = json.loads(ok("inspect", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--json"))
    assert [group["node"] for group in found["groups"]] == ["first", "second"]


@pytest.mark.slow
def test_labels_that_are_no_classes_of_the_model_and_data_of_two_samples_do(tmp_path: Path) -> None:
    write_raw(tmp_path, three_layers(), 2, labels=np.full(2, 1000))
    found = json.loads(ok("sensitivity", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--json"))
    assert [row["samples"] for row in found["groups"]] == [1, 1, 1]
    assert {row["flipped"] for row in found["groups"]} == {0.0}


@pytest.mark.slow
def test_errors_of_outputs_whose_shape_depends_on_values_are_estimated(tmp_path: Path) -> None:
    write_raw(tmp_path, places(), 60)
    printed = ok("sensitivity", tmp_path / "model.onnx", "--data", tmp_path / "data.npz")
    assert printed.count("≈ 0.0") == 2


@pytest.mark.slow
def test_samples_on_which_the_float_model_is_not_finite_are_named(tmp_path: Path) -> None:
    """They are none of those that calibrate, which would refuse them first."""
    network = ending(
        lambda n, x: n.op("Log", [n.op("Add", [x, n.const("c", np.float32(100))], "up")], "log"), [4, 3, 8, 8]
    )
    write_raw(tmp_path, network, 60)
    bad = next(sample for sample in range(60) if sample in searched_after_spoiling(tmp_path, sample))
    result = invoke("sensitivity", tmp_path / "model.onnx", "--data", tmp_path / "spoiled.npz")
    assert result.exit_code == 2, result.output
    assert f"NaN or infinite values on 1 of the samples looked at ({bad})" in result.output


def searched_after_spoiling(folder: Path, sample: int) -> NDArray[np.int64]:
    """The search split of the data with one sample that is far too large."""
    with np.load(folder / "data.npz") as stored:
        spoiled = stored["image"].copy()
    spoiled[sample] *= 1000
    np.savez(folder / "spoiled.npz", image=spoiled)
    dataset = open_data(str(folder / "spoiled.npz"), load(folder / "model.onnx").inputs)
    return data.split(dataset.digest, len(dataset)).search


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("small", "--min-overlap", "70"), "--min-overlap: expected a number from 0 to 1, got '70'"),
        (("small", "--max-kl", "nan"), "--max-kl: expected a number of at least 0, got 'nan'"),
        (("small", "--max-kl", "1", "--max-kl", "2"), "--max-kl: expected one value, got '1', '2'"),
        (("small", "--batch", "8"), "--batch: study 'small' has its own"),
        (("smal",), "Did you mean 'small'"),
        (("model.onnx",), "expected --data"),
        (("model.onnx", "--data", "d.npz", "--storage", "sqlite:///a.db"), "--storage: this option is for a study"),
        (("small", "--json", "--csv"), "were both given"),
        (("small", "--plot", "no/p.html"), "--plot no/p.html: expected a path in an existing folder"),
        (("small", "--sensitivity-time", "5"), "write 5s or 5m"),
    ],
)
def test_what_cannot_be_used_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    result = invoke("sensitivity", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output


@pytest.mark.slow
def test_as_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    config = SearchConfig(str(tmp_path / "in/model.onnx"), str(tmp_path / "in/data.npz"), sensitivity_time_s=0.001)
    found = verbs.sensitivity(config)
    assert [group.name for group in found.groups.values()] == ["first", "second", "fc"]
