"""Precisions: facts of each, order by rank and not by stored id, and one that no shipped backend offers in a search."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.placement import TENSORRT
from evaluators.measure.output_noise import sample_noise
from search.forecast.priors import noise_prior
from search.space.choices import Choice, Space, Variable
from search.space.layout import make_layout
from search.values import Assignment, Precision, Recovery
from tests.support.command_line import DATABASE, ok, write_inputs
from tests.support.networks import Net, feeds, loaded
from tests.support.recovery_contexts import context_for

FP32, FP16, BF16, DYNAMIC, INT8 = (Precision.parse(label) for label in ("fp32", "fp16", "bf16", "int8-dynamic", "int8"))
KEPT_IDS = {"fp32": 0, "fp16": 1, "bf16": 3, "w8": 5, "int8-dynamic": 4, "int8": 2, "wf8": 8, "fp8": 7, "w4": 6}


def test_ids_are_as_they_were_stored() -> None:
    assert {precision.label: precision.id for precision in Precision} == KEPT_IDS
    assert [Precision.of_id(precision.id) for precision in Precision] == list(Precision)
    with pytest.raises(ValueError, match="no precision has the id 99"):
        Precision.of_id(99)


def test_every_precision_has_every_fact() -> None:
    for precision in Precision:
        assert {name for name in Precision.__annotations__ if not name.startswith("_")} <= vars(precision).keys()
    for fact in ("id", "rank", "colour", "words"):
        assert len({getattr(precision, fact) for precision in Precision}) == len(Precision)
    assert [precision.largest for precision in Precision if not precision.quantized] == [
        float(ml_dtypes.finfo(precision.dtype).max) for precision in Precision if not precision.quantized
    ]


def test_precisions_compare_by_rank() -> None:
    assert BF16.id > INT8.id
    assert sorted([INT8, BF16, FP32, FP16]) == [FP32, FP16, BF16, INT8]
    assert max(BF16, INT8) is INT8
    assert FP16 < BF16 <= BF16 < DYNAMIC < INT8


def test_labels_are_read_back() -> None:
    assert [Precision.parse(precision.label) for precision in Precision] == list(Precision)
    assert Precision.parse(" INT8-Dynamic ") is DYNAMIC
    mix = Assignment({"g000": DYNAMIC, "g001": INT8})
    assert mix.to_json() == {"g000": "int8-dynamic", "g001": "int8"}
    assert Assignment.from_json(mix.to_json()) == mix


def test_digests_of_assignments_hold_ids() -> None:
    """A stored digest must never change: this one was made when ids were the order."""
    known = "385423f5"
    assert Assignment({"g000": FP32, "g001": FP16, "g002": INT8}).digest.startswith(known)


def a_space() -> Space:
    offered = {"a": (FP32, BF16, INT8), "b": (FP32, BF16), "c": (FP32, INT8)}
    choices = {group: tuple(Choice(p, p in may) for p in (FP32, BF16, INT8)) for group, may in offered.items()}
    return Space(choices, tuple(Variable(group, (group,), may) for group, may in offered.items()))


def test_where_a_precision_is_not_offered_the_next_finer_one_is_taken() -> None:
    space = a_space()
    assert space.precisions == (FP32, BF16, INT8)
    assert dict(space.uniform(INT8)) == dict(space.coarsest) == {"a": INT8, "b": BF16, "c": INT8}
    assert dict(space.uniform(BF16)) == {"a": BF16, "b": BF16, "c": FP32}
    assert list(space.baselines) == ["fp32", "bf16", "int8"]


def test_int8_stands_for_a_network_in_which_products_may_be_coarser() -> None:
    """It is the last baseline, after which FP32 the search begins with it, and what is recovered."""
    w4 = Precision.W4
    may = {"a": (FP32, INT8), "b": (FP32, INT8, w4), "c": (FP32, INT8, w4)}
    choices = {group: tuple(Choice(p, p in some) for p in (FP32, INT8, w4)) for group, some in may.items()}
    space = Space(choices, tuple(Variable(group, (group,), some) for group, some in may.items()))
    assert list(space.baselines) == ["fp32", "w4", "int8"]
    assert dict(space.coarsest) == dict.fromkeys("abc", INT8)


def test_arrays_have_the_size_of_the_precisions_in_play() -> None:
    layout = make_layout(["a", "b", "c"], [], a_space())
    assert layout.palette == (FP32, BF16, INT8)
    assert noise_prior(layout).nodes.shape == (3, 3)
    assert layout.precisions_of([{"a": BF16, "b": BF16, "c": INT8}]).tolist() == [[1, 1, 2]]
    assert make_layout(["a", "b", "c"], [], a_space(), also=[FP16]).palette == (FP32, FP16, BF16, INT8)


@pytest.mark.slow
def test_a_precision_that_no_shipped_backend_offers_goes_through_a_whole_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sensitivities are those of the network itself, lowered and emulated."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    offered = [word for p in (BF16, INT8) for word in ("--backend-option", f"fake-precision={p.label}")]
    given = ("--study", "s", "--trials", 12, "--backend", "fake", *offered)
    said = ok("search", "in/model.onnx", "--data", "in/data.npz", "--verbose", *given)
    assert "bf16: " in said  # the audit of all engines
    assert "Audit" not in ok("resume", "s")  # where all obeyed it is a detail

    baselines = {}
    for trial in range(3):
        shown = json.loads(ok("show", "s", trial, "--json"))
        assert {group["answer"] for group in shown["groups"]} == {"obeyed"}
        baselines[shown["role"]] = shown["latency"]["value_ms"]
    assert sorted(baselines, key=lambda role: -baselines[role]) == [FP32.role, BF16.role, INT8.role]
    connection = sqlite3.connect(DATABASE)
    stored = {row[0] for row in connection.execute("select distinct asked from bf_audit")}
    mixes = [json.loads(row[0]) for row in connection.execute("select assignment from bf_evaluation where role = ''")]
    connection.close()
    assert stored == {FP32.id, BF16.id, INT8.id}
    assert len({tuple(mix.values()) for mix in mixes}) == len(mixes) == 9
    assert any("bf16" in mix.values() and len(set(mix.values())) > 1 for mix in mixes)
    noise: dict[str, list[float]] = {}
    for group in json.loads(ok("sensitivity", "s", "--json"))["groups"]:
        noise.setdefault(group["precision"], []).append(group["error"])
    assert 0 < sum(noise["bf16"]) < sum(noise["int8"])
    ok("report", "s", "--out", "report.html")
    assert BF16.colour in Path("report.html").read_text(encoding="utf-8")


def every_kind() -> onnx.ModelProto:
    """Convolutions, and products of one row, so that every format is offered somewhere."""
    n = Net(9)
    x = n.op("Relu", [n.conv("image", "stem", 3, 32)], "stem/relu")
    x = n.op("GlobalAveragePool", [n.op("Relu", [n.conv(x, "body", 32, 64)], "body/relu")], "pool")
    x = n.op("Relu", [n.gemm(n.op("Flatten", [x], "flatten"), "up", 64, 512)], "up/relu")
    n.gemm(n.op("Relu", [n.gemm(x, "middle", 512, 512)], "middle/relu"), "fc", 512, 10)
    return n.model([1, 3, 8, 8], "logits", [1, 10])


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", [BF16, Precision.W8, Precision.WF8, Precision.FP8, Precision.W4], ids=lambda p: p.label
)
def test_formats_that_nothing_here_runs_go_through_a_whole_search(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies are those of the fake backend; losses those of what is written for TensorRT, emulated."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", every_kind())
    offered = ["--backend-option", f"fake-precision={precision.label}", "--backend-option", "fake-emulated=on"]
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 8, "--backend", "fake",
       "--metric", "sqnr", *offered)  # fmt: skip
    shown = [json.loads(ok("show", "s", trial, "--json")) for trial in range(8)]
    values = {each["role"]: each["accuracy"]["value"] for each in shown if each["role"]}
    assert {FP32.role, precision.role} == values.keys()
    assert {group["answer"] for each in shown for group in each["groups"]} == {"obeyed"}
    mixed = [each for each in shown if precision.label in {g["got"] for g in each["groups"]} and not each["role"]]
    assert mixed
    assert values[FP32.role] > values[precision.role] > 5
    assert f'"{precision.label}"' in ok("sensitivity", "s", "--json")
    ok("report", "s", "--out", "report.html")
    assert precision.colour in Path("report.html").read_text(encoding="utf-8")


def test_the_usual_noise_of_a_format_is_what_emulation_finds() -> None:
    """Within a factor of three, of the layers of one network one at a time; results/formats.md has more networks."""
    model = loaded("row_products")
    data = {name: np.concatenate([feeds(model, seed)[name] for seed in range(16)]) for name in feeds(model)}
    found: dict[Precision, list[float]] = {}
    for placement in (TENSORRT, OnnxRuntimeBackend("cpu").placement):
        context = context_for(model, data, placement=placement)
        ranges, exact = context.calibrate(Recovery()), context.open_float(Recovery())
        formats = {p for p in Precision if p is not FP32 and (p is DYNAMIC) <= (placement is not TENSORRT)}
        for group in model.groups[:2]:  # the last has too few outputs for a mean
            noise = {}
            for precision in formats:
                mix = Assignment({each.id: precision if each is group else FP32 for each in model.groups})
                rough = replace(context, assignment=mix, precision=precision).open_quantized(ranges)
                batches = [batch.inputs for batch in context.fitting()]
                noise[precision] = np.mean([sample_noise(rough.run(b), exact.run(b), 1) for b in batches])
            for precision, error in noise.items():
                found.setdefault(precision, []).append(float(error / noise[INT8]))
    for precision, ratios in found.items():
        assert np.median(ratios) / 3 < precision.usual_noise < 3 * np.median(ratios), (precision, ratios)
