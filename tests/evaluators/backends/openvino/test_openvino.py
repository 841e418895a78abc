"""The OpenVINO backend: what really runs, that the audit tells it, by which clock it is timed, and its errors."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from evaluators.backends.kind import Recipe
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.backends.openvino import device as openvino_device
from evaluators.backends.openvino.audit import audit_rows
from evaluators.backends.openvino.backend import OpenVinoBackend, open_engine_file
from evaluators.backends.openvino.device import OpenVinoDevice, engine_settings, first_lines
from evaluators.backends.openvino.session import OpenVinoSession, open_graph
from evaluators.backends.registry import kind_named, open_backend
from evaluators.backends.run_script.openvino_engine import safe_properties
from evaluators.engine import OutOfMemoryError, RefusedError
from evaluators.engine_files import read_engine_built_here
from evaluators.lowering.lower import lower
from search.errors import ModelError, TargetError
from search.graph import onnx_file, packed_file
from search.graph.model import Model, load
from search.installation import install_command
from search.space.choices import make_space
from search.values import Answer, Assignment, Precision, Ranges, TensorRange
from tests.support.networks import (
    NETWORKS,
    ODD,
    Net,
    feeds,
    loaded,
    observed,
    plain_session,
    ranged,
    residual_cnn,
    save,
    sqnr_db,
)
from tests.support.paths import ROOT

pytest.importorskip("openvino")

INT8, BF16, FP32 = Precision.INT8, Precision.BF16, Precision.FP32
LEAST_DB = 30.0  # between an engine and its emulation


@pytest.fixture(scope="module")
def backend() -> OpenVinoBackend:
    return OpenVinoBackend()


def uniform(model: Model, precision: Precision) -> Assignment:
    capability = OpenVinoBackend().capability()
    fits = {g.id: not g.pinned and g.op in capability.ops[INT8] for g in model.groups}
    return Assignment({group: precision if fits[group] else FP32 for group in fits})


def mixed(model: Model, seed: int) -> Assignment:
    rng = random.Random(seed)
    return Assignment({group: rng.choice([FP32, coarse]) for group, coarse in uniform(model, INT8).items()})


# -- obedience ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_groups_run_as_asked_and_the_emulation_agrees(name: str, backend: OpenVinoBackend, tmp_path: Path) -> None:
    model = loaded(name)
    builder, batch = backend.builder(model, ranged(name)), feeds(model)
    emulator = Emulator(OnnxRuntimeBackend("cpu", threads=1), backend.placement)
    for assignment in (uniform(model, FP32), uniform(model, INT8), mixed(model, 3)):
        lowered = builder.lower(assignment)
        emulated = emulator.open(lowered.clone()).run(batch)
        engine = builder.build(lowered, tmp_path / "engine")
        audit = builder.audit(engine, assignment)
        assert [row.group for row in audit.rows] == [group.id for group in model.groups]
        assert [row for row in audit.rows if row.answer is not Answer.OBEYED] == []
        assert all(row.kernel for row in audit.rows)
        assert audit.summary.layers > len(model.groups) / 2
        outputs = builder.load(engine.path).run(batch)
        assert min(sqnr_db(emulated[name], outputs[name]) for name in emulated) > LEAST_DB


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NETWORKS, *ODD])
def test_every_network_runs_and_only_what_openvino_moves_is_not_as_asked(
    name: str, backend: OpenVinoBackend, tmp_path: Path
) -> None:
    model = loaded(name)
    builder, batch = backend.builder(model, ranged(name)), feeds(model)
    for assignment in (uniform(model, FP32), uniform(model, INT8), *(mixed(model, seed) for seed in (1, 2))):
        lowered = builder.lower(assignment)
        plain = plain_session(ir.to_proto(lowered)).run(None, batch)
        engine = builder.build(lowered, tmp_path / "engine")
        rows = builder.audit(engine, assignment).rows
        outputs = list(builder.load(engine.path).run(batch).values())
        assert {row.got for row in rows} <= {FP32, INT8}, rows
        wrong = {group.name for group, row in zip(model.groups, rows, strict=True) if row.answer is not Answer.OBEYED}
        assert wrong <= {"block.1/down"}
        floats = [(a, b) for a, b in zip(plain, outputs, strict=True) if a.dtype.kind == "f"]
        assert all(sqnr_db(*pair) > LEAST_DB for pair in floats)


def test_softmax_between_layers_in_bf16_is_in_bf16(backend: OpenVinoBackend) -> None:
    model = loaded("transformer")
    mix = Assignment({group.id: BF16 for group in model.groups})
    lowered = backend.builder(model, ranged("transformer")).lower(mix)
    types = {node.op_type: node.outputs[0].dtype for node in lowered.graph}
    assert types["Softmax"] is ir.DataType.BFLOAT16
    assert types["LayerNormalization"] is ir.DataType.FLOAT


@pytest.mark.parametrize("padded_by", ["pool", "pad", "auto_pad"])
def test_averages_that_count_their_padding_are_not_of_codes(
    padded_by: str, backend: OpenVinoBackend, tmp_path: Path
) -> None:
    """OpenVINO 2026.4.1 pads codes with 0, whatever their zero point: 12 dB on this network."""
    n = Net()
    x = n.conv("image", "one", 3, 16)
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "count_include_pad": 1}
    if padded_by == "pad":
        x = n.op("Pad", [x, n.const("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad")
        attributes |= {"count_include_pad": 0}
    else:
        attributes |= {"pads": [1] * 4} if padded_by == "pool" else {"auto_pad": "SAME_UPPER"}
    x = n.op("AveragePool", [x], "average", **attributes)
    n.head(n.conv(x, "two", 16, 16), 16)
    model = load(save(n.model([2, 3, 16, 16], "logits", [2, 10]), tmp_path / "m.onnx"))
    batch = feeds(model)
    assignment = uniform(model, INT8)
    builder = backend.builder(model, observed(model))
    lowered = builder.lower(assignment)
    (expected,) = plain_session(ir.to_proto(lowered)).run(None, batch)
    engine = builder.build(lowered, tmp_path / "engine")
    assert {row.answer for row in builder.audit(engine, assignment).rows} == {Answer.OBEYED}
    assert sqnr_db(expected, builder.load(engine.path).run(batch)["logits"]) > LEAST_DB


def fills(n: Net) -> str:
    x = n.conv("image", "one", 3, 16)
    x = n.op("Pad", [x, n.const("pads", np.array([0, 0, 0, 0, 0, 0, 0, 1])), n.const("fill", np.float32(0.7))], "pad")
    return n.conv(x, "two", 16, 16)


def joins_rows(n: Net) -> str:
    x = n.op("Reshape", [n.conv("image", "one", 3, 16), n.const("rows", np.array([2, 256, 16]))], "rows")
    parts = [n.op("MatMul", [x, n.random(f"{name}.w", 16, 16, fan_in=16)], name) for name in ("a", "b")]
    x = n.op("MatMul", [n.op("Concat", parts, "both", axis=1), n.random("c.w", 16, 16, fan_in=16)], "c")
    return n.op("Reshape", [x, n.const("square", np.array([2, 16, 16, 32]))], "squared")


def turns_a_weight(n: Net) -> str:
    x = n.op("Flatten", [n.op("GlobalAveragePool", [n.conv("image", "one", 3, 16)], "mean")], "flat")
    weight = n.random("both", 16, 16, fan_in=16)
    x = n.op("Relu", [n.op("MatMul", [x, weight], "as_it_is")], "relu")
    x = n.op("Gemm", [x, weight], "turned", transB=1)
    return n.op("Reshape", [x, n.const("images", np.array([2, 16, 1, 1]))], "images_again")


@pytest.mark.parametrize("precision", [FP32, INT8])
@pytest.mark.parametrize("network", [fills, joins_rows, turns_a_weight], ids=lambda network: network.__name__)
def test_what_openvino_computes_wrongly_as_it_stands(
    network: Any, precision: Precision, backend: OpenVinoBackend, tmp_path: Path
) -> None:
    """Pads with another number than 0, rows that are joined before a product, a square weight read in two ways."""
    n = Net()
    n.head(network(n), 16)
    model = load(save(n.model([2, 3, 16, 16], "logits", [2, 10]), tmp_path / "m.onnx"))
    batch = feeds(model)
    builder = backend.builder(model, observed(model))
    lowered = builder.lower(uniform(model, precision))
    (expected,) = plain_session(ir.to_proto(lowered)).run(None, batch)
    outputs = builder.load(builder.build(lowered, tmp_path / "engine").path).run(batch)
    assert sqnr_db(expected, outputs["logits"]) > LEAST_DB


@pytest.mark.parametrize(("precision", "joined"), [(FP32, True), (INT8, False)])
def test_small_int8_products_in_a_row_are_not_left_to_generated_code(
    precision: Precision, joined: bool, backend: OpenVinoBackend
) -> None:
    """OpenVINO 2026.4.1 computes them wrongly on AVX-512 with VNNI: -5 dB on this network."""
    model = loaded("products")
    lowered = backend.builder(model, ranged("products")).lower(uniform(model, precision))
    read = backend.device.ov.Core().read_model(ir.to_proto(lowered).SerializeToString())
    settings = engine_settings(1)
    assert (safe_properties(read, settings) == settings) is joined
    assert settings == engine_settings(1)


def test_a_convolution_whose_input_openvino_dequantizes_is_told(backend: OpenVinoBackend, tmp_path: Path) -> None:
    """OpenVINO moves the strides of a convolution of 1×1 before its Q and DQ, if nothing else reads them."""
    model = loaded("residual")
    assignment = Assignment({group.id: INT8 if group.name == "block.1/down" else FP32 for group in model.groups})
    builder = backend.builder(model, ranged("residual"))
    rows = builder.audit(builder.build(builder.lower(assignment), tmp_path / "engine"), assignment).rows
    told = {row.asked: (row.got, row.answer) for row in rows if row.answer is not Answer.OBEYED}
    assert told == {INT8: (FP32, Answer.NOT_OBEYED)}


def test_the_audit_catches_another_assignments_engine(backend: OpenVinoBackend, tmp_path: Path) -> None:
    model = loaded("mobile")
    builder = backend.builder(model, ranged("mobile"))
    built = Assignment({group.id: INT8 if i % 2 else FP32 for i, group in enumerate(model.groups)})
    asked = Assignment({group: FP32 if precision is INT8 else INT8 for group, precision in built.items()})
    rows = builder.audit(builder.build(builder.lower(built), tmp_path / "engine"), asked).rows
    assert {row.answer for row in rows} == {Answer.NOT_OBEYED}
    assert {row.group: row.got for row in rows} == dict(built)


def test_names_that_are_swapped_do_not_mislead_the_audit(backend: OpenVinoBackend) -> None:
    model = loaded("mobile")
    mix = Assignment({g.id: INT8 if g.name in ("stem", "mb.0/expand") else FP32 for g in model.groups})
    lowered = backend.builder(model, ranged("mobile")).lower(mix)
    nodes = {node.name: node for node in lowered.graph}
    nodes["mb.0/expand"].name, nodes["mb.1/project"].name = "mb.1/project", "mb.0/expand"
    rows = audit_rows(open_graph(backend.device, lowered).nodes(), model, mix)
    assert [row for row in rows if row.answer is not Answer.OBEYED] == []


def test_fp32_is_fp32_whatever_the_processor_has(backend: OpenVinoBackend) -> None:
    model = loaded("residual")
    lowered = backend.builder(model, ranged("residual")).lower(uniform(model, FP32))
    session, batch = open_graph(backend.device, lowered), feeds(model)
    told = {name: str(session.compiled.get_property(name)) for name in ("INFERENCE_PRECISION_HINT", "NUM_STREAMS")}
    assert told == {"INFERENCE_PRECISION_HINT": "<Type: 'float32'>", "NUM_STREAMS": "1"}
    exact = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    assert sqnr_db(exact, session.run(batch)["logits"]) > 100  # BF16 would be at 50


def test_bf16_is_offered_where_the_processor_has_it_and_told_where_it_is_not_run(
    backend: OpenVinoBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real = loaded("residual"), backend.device.native_types()
    for types in (("FP32", "INT8"), ("FP32", "INT8", "BF16", "FP16")):
        monkeypatch.setattr(OpenVinoDevice, "native_types", lambda self, types=types: types)
        assert {p.name for p in backend.capability().precisions} == {*types, "W8", "W4"} - {"FP16"}
        space = make_space(model, backend.capability(), ranged("residual"))
        offered = {choice.precision for group in model.groups for choice in space.choices[group.id] if choice.offered}
        assert (BF16 in offered) is ("BF16" in types)
    builder, assignment = backend.builder(model, ranged("residual")), space.uniform(BF16)
    lowered = builder.lower(assignment)
    casts = [n.attributes["to"].as_int() for n in lowered.graph if n.op_type == "Cast"]
    assert set(casts) == {TensorProto.BFLOAT16, TensorProto.FLOAT}
    rows = builder.audit(builder.build(lowered, tmp_path / "engine"), assignment).rows
    assert {row.asked for row in rows} == {BF16}
    assert {row.got for row in rows} == {BF16 if "BF16" in real else FP32}


@pytest.mark.parametrize("limited", [True, False])
def test_kernels_compute_what_the_codes_say(limited: bool, backend: OpenVinoBackend, tmp_path: Path) -> None:
    """Without VNNI OpenVINO's kernels too add two products in 16 bits, so that weights are written for that."""
    weight = np.random.default_rng(0).choice(np.array([1, 1, 1, 0.9, 0.5, -1], np.float32), (8, 16, 3, 3))
    inputs = np.random.default_rng(1).choice(np.array([1, 1, 0.98, 0], np.float32), (2, 16, 9, 9))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="op")],
        "pairs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 8, 7, 7))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = load(
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    )
    exact = plain_session(ir.to_proto(model.graph)).run(None, {"x": inputs})[0]
    bounds = {"x": TensorRange(0.0, 1.0), "y": TensorRange(float(exact.min()), float(exact.max()))}
    placement = backend.placement if limited else OnnxRuntimeBackend("cpu").placement
    lowered = lower(model, uniform(model, INT8), Ranges("minmax", bounds, bounds, 4), placement)
    engine = open_graph(backend.device, lowered).run({"x": inputs})["y"]
    written = plain_session(ir.to_proto(lowered)).run(None, {"x": inputs})[0]
    assert np.abs(engine - written).max() <= 1.01 * (exact.max() - exact.min()) / 255


# -- the clock, memory and layers --------------------------------------------------------------------------------------


def opened(backend: OpenVinoBackend, folder: Path) -> OpenVinoSession:
    save(residual_cnn(batch=4), folder / "engine.onnx")
    session = OpenVinoSession(backend.device, folder / "engine.onnx")
    batch = feeds(loaded("residual"))
    session.run(batch)
    session.bind(batch)
    return session


def test_one_thread_runs_an_inference_and_it_is_the_one_that_asks(backend: OpenVinoBackend, tmp_path: Path) -> None:
    """Its processor time is all that the process takes meanwhile."""
    target = backend.target()
    assert (target.clock, target.statistic, target.options["threads"]) == ("thread", "mean", "1")
    session, mine = opened(backend, tmp_path), str(threading.get_native_id())
    others = [path / "schedstat" for path in Path("/proc/self/task").iterdir() if path.name != mine]
    before = [int(path.read_text().split()[0]) for path in others]
    own = time.thread_time_ns()
    taken = session.time(50).sum()
    own_ms = (time.thread_time_ns() - own) / 1e6
    after = [int(path.read_text().split()[0]) for path in others]
    assert taken <= own_ms
    assert (sum(after) - sum(before)) / 1e6 < 0.05 * own_ms  # none of them took part


def test_latency_is_by_the_clock_of_the_target(
    backend: OpenVinoBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(backend, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(time, "thread_time_ns", count(step=7_000_000).__next__)
        assert session.time(3).tolist() == [7.0] * 3
    two = OpenVinoBackend(threads=2)
    assert (two.target().clock, two.target().statistic) == ("wall", "p20")
    assert isinstance(opened(two, tmp_path).time(3), np.ma.MaskedArray)


@pytest.mark.slow
def test_an_engine_takes_as_much_memory_first_as_later(backend: OpenVinoBackend, tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from evaluators.backends.openvino.backend import OpenVinoBackend\n"
        "from evaluators.backends.openvino.session import OpenVinoSession\n"
        "from tests.support.networks import feeds, loaded\n"
        "device, found = OpenVinoBackend().device, []\n"
        "for _ in range(3):\n"
        "    found.append(OpenVinoSession(device, Path(sys.argv[1]), counts_memory=True))\n"
        "    found[-1].run(feeds(loaded('residual')))\n"
        "served = OpenVinoSession(device, Path(sys.argv[1]))\n"
        "served.run(feeds(loaded('residual')))\n"
        "print([each.memory_bytes for each in (served, *found)])\n"
    )
    path = save(residual_cnn(batch=4), tmp_path / "engine.onnx")
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    served, first, *later = json.loads(done.stdout.replace("None", "null"))
    assert served is None, "nobody asked"
    assert first > path.stat().st_size
    assert later == [pytest.approx(first, rel=0.1)] * 2  # without: half as much again


def test_layers_and_their_times_are_those_that_run(backend: OpenVinoBackend, tmp_path: Path) -> None:
    model = loaded("transformer")
    builder, assignment = backend.builder(model, ranged("transformer")), uniform(model, INT8)
    engine = builder.build(builder.lower(assignment), tmp_path / "engine")
    assert builder.write_layers(engine.path, tmp_path / "layers")
    found = read_engine_built_here(tmp_path / "layers", "engine of openvino")
    assert found.kind == "engine of openvino"
    int8 = [layer for layer in found.layers if layer.weighted and layer.precision is INT8]
    assert len(int8) == sum(precision is INT8 for precision in assignment.values())
    anchors = {anchor for g in model.groups if assignment[g.id] is INT8 for anchor in g.anchors}
    assert anchors <= {name for layer in int8 for name in layer.nodes}
    assert "patch_out/dq" in {layer.name for layer in found.layers if layer.moves}
    rows = builder.profile(engine.path, feeds(model), 6)
    assert [row.kind for row in rows] == [layer.kind for layer in found.layers]
    assert all(row.ms >= 0 for row in rows)
    assert {row.group for row in rows if row.kind in ("FullyConnected", "Convolution")} == {
        group for group, precision in assignment.items() if precision is INT8
    }


@pytest.mark.parametrize("precision", [FP32, INT8])
def test_a_probe_gives_every_groups_output(precision: Precision, backend: OpenVinoBackend) -> None:
    model = loaded("transformer")
    outputs = backend.builder(model, ranged("transformer")).probe(uniform(model, precision)).run(feeds(model))
    assert list(outputs) == [group.id for group in model.groups]
    assert all(outputs[group.id].shape == group.shape for group in model.groups)


def test_an_engine_that_one_onnx_file_cannot_hold(
    backend: OpenVinoBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)  # bytes of constants in one file
    model = loaded("residual")
    builder, batch = backend.builder(model, ranged("residual")), feeds(model)
    engine = builder.build(builder.lower(uniform(model, FP32)), tmp_path / "engine")
    assert packed_file.read_message(engine.path) is not None
    exact = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    assert sqnr_db(exact, builder.load(engine.path).run(batch)["logits"]) > 100


# -- what cannot be done -----------------------------------------------------------------------------------------------


def test_files_that_are_no_engines_are_refused_in_a_line(backend: OpenVinoBackend, tmp_path: Path) -> None:
    builder, whole = backend.builder(loaded("residual"), ranged("residual")), tmp_path / "whole.onnx"
    save(residual_cnn(), whole)
    for name, content in (("cut", whole.read_bytes()[:1000]), ("text", b"no engine"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RefusedError) as caught:
            builder.load(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert str(caught.value)
    with pytest.raises(RefusedError, match="Could not open the file"):
        builder.load(tmp_path / "missing")
    with pytest.raises(RefusedError, match=r"got \[2,3,16,16\] expecting \[4,3,16,16\]"):
        OpenVinoSession(backend.device, whole).run({"image": np.zeros((2, 3, 16, 16), np.float32)})


def test_an_operator_that_openvino_does_not_know_is_named(backend: OpenVinoBackend) -> None:
    model = loaded("foreign") if "foreign" in ODD else None
    graph = helper.make_graph(
        [helper.make_node("NoSuchOp", ["x"], ["y"], name="odd", domain="nowhere")],
        "odd",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)])
    with pytest.raises(RefusedError, match=r"wasn't fully converted.*NoSuchOp"):
        open_graph(backend.device, ir.from_proto(proto))
    assert model is None or backend.float_session(model)


def test_errors_say_what_is_wrong_and_not_where_in_openvinos_code() -> None:
    raised = "Exception from src/a.cpp:84:\nCheck 'x' failed at src/b.cpp:1:\nFailed to allocate 4 bytes of memory\n\n"
    assert first_lines(RuntimeError(raised)) == "Failed to allocate 4 bytes of memory"
    assert first_lines(RuntimeError("Exception from src/a.cpp:84:\n")) == "Exception from src/a.cpp:84:"
    for error, kind in ((RuntimeError(raised), OutOfMemoryError), (MemoryError(), OutOfMemoryError)):
        with pytest.raises(kind), openvino_device.refusals():
            raise error
    with pytest.raises(KeyError), openvino_device.refusals():  # a fault of ours
        raise KeyError("x")


def test_a_device_or_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"--device cuda: backend openvino runs on the processor alone: expected cpu"):
        open_backend("openvino", "cuda", {})
    with pytest.raises(TargetError, match=r"--threads 10000: expected at most"):
        open_backend("openvino", "cpu", {"threads": 10000})
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(TargetError) as caught:
        open_backend("openvino", "cpu", {})
    assert install_command("openvino") in str(caught.value)


def test_an_installation_that_runs_nothing_is_told_apart_from_a_model(
    backend: OpenVinoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.check()
    monkeypatch.setattr(openvino_device, "engine_settings", lambda threads: {"NO_SUCH_PROPERTY": threads})
    with pytest.raises(TargetError, match=r"cannot run a model of one node there: .*NO_SUCH_PROPERTY"):
        backend.float_session(loaded("residual"))


def test_inputs_of_a_file_are_read_and_open_sizes_are_named(backend: OpenVinoBackend, tmp_path: Path) -> None:
    path = save(residual_cnn(batch="n"), tmp_path / "open.onnx")
    with pytest.raises(ModelError, match=r"input 'image' has the dynamic shape .*x3x16x16. Give --batch."):
        open_engine_file(backend.device, path, None)
    (spec,) = open_engine_file(backend.device, path, 8).inputs
    assert (spec.name, spec.dtype, spec.shape) == ("image", "float32", (8, 3, 16, 16))


# -- exports -----------------------------------------------------------------------------------------------------------

GUARDED = """
import json, os, sys
from pathlib import Path
import numpy as np
from evaluators.backends.registry import kind_named
from search.errors import TargetError
folder = Path(sys.argv[1])
run = kind_named("openvino").open_export(folder, json.loads((folder / "manifest.json").read_text()), None, None)
inputs = {"image": np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)}
expected = run(inputs)
if not os.fork():
    try:
        run(inputs)
    except TargetError as error:
        sys.exit(0 if "Open the guard in each worker" in str(error) else 3)
print(os.waitstatus_to_exitcode(os.wait()[1]), np.array_equal(run(inputs)["logits"], expected["logits"]))
"""


@pytest.mark.slow
def test_an_export_runs_in_a_guards_process_and_not_in_its_children(tmp_path: Path) -> None:
    """Compiling waits for threads that a forked process does not have, and so does letting go of an engine."""
    save(residual_cnn(batch=4), tmp_path / "model.onnx")
    (tmp_path / "manifest.json").write_text(json.dumps({"target": {"options": {"threads": "2"}}}))
    words = [sys.executable, "-W", "ignore", "-c", GUARDED, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_an_exports_script_has_the_settings_that_were_measured() -> None:
    recipe = Recipe({}, {}, {"threads": 2}, {}, {}, loaded("residual").inputs)
    script: dict[str, Any] = {"__name__": "script"}
    exec(kind_named("openvino").recipe_files(recipe)["run.py"], script)
    assert script["PROPERTIES"] == engine_settings(2)
    assert (script["ENGINE"], script["CLOCK"]) == ("model.onnx", "wall")


@pytest.mark.slow
def test_it_sends_nothing_and_leaves_nothing_at_home(tmp_path: Path) -> None:
    """The package openvino-telemetry comes with it, and tells Google Analytics that openvino is imported."""
    code = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.gethostbyname'): raise SystemExit(event)\n"
        "sys.addaudithook(refuse)\n"
        "from evaluators.backends.openvino.backend import OpenVinoBackend\n"
        "OpenVinoBackend().check()\n"
        "assert 'openvino_telemetry' not in sys.modules\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.rglob("*")) == []
