"""The ONNX Runtime backend on the CPU: what really runs, and that the audit tells it."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from evaluators.backends.kind import Recipe
from evaluators.backends.onnxruntime.audit import audit_rows
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.onnxruntime.kind import OnnxRuntimeKind
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession
from evaluators.calibration import cache as calibration_cache
from evaluators.engine import RefusedError
from search.errors import ModelError, TargetError
from search.graph import onnx_file
from search.graph.model import Model, ShapeRequest, load
from search.values import Answer, Assignment, Capability, Precision, Ranges, Target, TensorRange
from tests.support.networks import NETWORKS, ODD, Net, feeds, loaded, observed, plain_session, ranged, save, sqnr_db

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
ALL = [*NETWORKS, *ODD]


@pytest.fixture(scope="module")
def backend() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend()


def allowed(model: Model, capability: Capability, wanted: dict[str, Precision]) -> Assignment:
    """What is wanted, where the target has it."""
    fits = {g.id: not g.pinned and g.op in capability.ops[INT8] for g in model.groups}
    return Assignment({group: wanted[group] if fits[group] else FP32 for group in fits})


def uniform(model: Model, backend: OnnxRuntimeBackend, precision: Precision) -> Assignment:
    return allowed(model, backend.capability(), {group.id: precision for group in model.groups})


def optimized(backend: OnnxRuntimeBackend, data: bytes, folder: Path) -> onnx.GraphProto:
    """The graph that ONNX Runtime really runs."""
    options = backend.device.session_options()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    backend.device.ort.InferenceSession(data, options, providers=backend.device.providers())
    return onnx.load(str(folder / "optimized.onnx")).graph


def kinds(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)


def test_layers_of_a_large_engine_are_written_without_its_weights(
    backend: OnnxRuntimeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)  # bytes of constants in one file
    model = loaded("residual")
    builder = backend.builder(model, ranged("residual"))
    mix = uniform(model, backend, FP32)
    engine = builder.build(builder.lower(mix), tmp_path / "engine")
    assert builder.write_layers(engine.path, tmp_path / "layers")
    graph = onnx.load(str(tmp_path / "layers"), load_external_data=False).graph
    assert all(len(tensor.raw_data) < 1024 for tensor in graph.initializer)


# -- obedience ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_group_obeys_in_every_mix(name: str, backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model, rng = loaded(name), random.Random(1)
    builder = backend.builder(model, ranged(name))
    wanted = [dict.fromkeys([g.id for g in model.groups], precision) for precision in (FP32, INT8)]
    wanted += [{group.id: rng.choice([FP32, INT8]) for group in model.groups} for _ in range(8)]
    for mix in wanted:
        assignment = allowed(model, backend.capability(), mix)
        engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
        rows = builder.audit(engine, assignment).rows
        assert [row.group for row in rows] == [group.id for group in model.groups]
        assert {row.group: row.asked for row in rows} == dict(assignment)
        assert not [row for row in rows if row.answer is not Answer.OBEYED]


def from_cache(ranges: Ranges) -> Ranges:
    """The ranges after a calibration cache was written and read: magnitudes are left of them."""
    return calibration_cache.take(calibration_cache.read(calibration_cache.write(ranges)), ranges.tensors, None).ranges


def too_wide(ranges: Ranges) -> Ranges:
    doubled = {name: TensorRange(2 * one.low - 0.1, 2 * one.high + 0.1) for name, one in ranges.tensors.items()}
    return replace(ranges, tensors=doubled)


@pytest.mark.parametrize("change", [from_cache, too_wide])
@pytest.mark.parametrize("name", ALL)
def test_symmetric_and_too_wide_ranges_give_the_same_kernels(
    name: str, change: Callable[[Ranges], Ranges], backend: OnnxRuntimeBackend, tmp_path: Path
) -> None:
    model, made = loaded(name), []
    assignment = uniform(model, backend, INT8)
    for ranges in (ranged(name), change(ranged(name))):
        builder = backend.builder(model, ranges)
        lowered = builder.lower(assignment)
        rows = builder.audit(builder.build(lowered, tmp_path / "engine.onnx"), assignment).rows
        assert not [row for row in rows if row.answer is not Answer.OBEYED]
        made.append(kinds(optimized(backend, ir.to_proto(lowered).SerializeToString(), tmp_path)))
    assert made[1] == made[0]


def test_an_int8_network_of_convolutions_has_no_float_detours(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    for name, convolutions, adds in (("residual", 6, 2), ("mobile", 7, 2)):
        model = loaded(name)
        lowered = backend.builder(model, ranged(name)).lower(uniform(model, backend, INT8))
        found = kinds(optimized(backend, ir.to_proto(lowered).SerializeToString(), tmp_path))
        assert found["QLinearConv"] == convolutions
        assert found["QLinearAdd"] == adds
        assert found["QGemm"] == 1
        assert found["QuantizeLinear"] == 1  # the network's input
        assert not {"Conv", "FusedConv", "Gemm", "Clip", "Relu", "DequantizeLinear"} & found.keys()


def test_a_float_convolution_between_int8_ones_stays_float(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("mobile")
    mix = {group.id: FP32 if group.name == "mb.0/depthwise" else INT8 for group in model.groups}
    builder = backend.builder(model, ranged("mobile"))
    engine = builder.build(builder.lower(Assignment(mix)), tmp_path / "engine.onnx")
    row = next(row for row in builder.audit(engine, Assignment(mix)).rows if row.asked is FP32)
    assert (row.got, row.kernel) == (FP32, "Conv")


@pytest.mark.parametrize("name", ALL)
def test_the_optimized_int8_model_computes_what_the_file_says(name: str, backend: OnnxRuntimeBackend) -> None:
    model, batch = loaded(name), feeds(loaded(name), seed=5)
    lowered = ir.to_proto(backend.builder(model, ranged(name)).lower(uniform(model, backend, INT8)))
    options = backend.device.session_options()
    session = backend.device.ort.InferenceSession(
        lowered.SerializeToString(), options, providers=backend.device.providers()
    )
    pairs = zip(model.outputs, plain_session(lowered).run(None, batch), session.run(None, batch), strict=True)
    for spec, plain, fast in pairs:
        if spec.dtype == "float32":
            assert sqnr_db(plain, fast) > 20


def test_an_average_over_windows_that_are_cut_is_not_of_codes(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    """ONNX Runtime 1.32's INT8 kernel divides by another count there than its float one: 16 dB."""
    n = Net()
    x = n.conv("image", "one", 3, 16)
    x = n.op("AveragePool", [x], "average", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1)
    n.head(n.conv(x, "two", 16, 16), 16)
    model = load(save(n.model([2, 3, 16, 16], "logits", [2, 10]), tmp_path / "m.onnx"))
    builder, batch = backend.builder(model, observed(model)), feeds(model)
    lowered = builder.lower(uniform(model, backend, INT8))
    (expected,) = plain_session(ir.to_proto(lowered)).run(None, batch)
    outputs = builder.load(builder.build(lowered, tmp_path / "engine.onnx").path).run(batch)
    assert sqnr_db(expected, outputs["logits"]) > 30


# -- mismatches are caught ---------------------------------------------------------------------------------------------


def strip_quantize(lowered: ir.Model, tensor: str) -> None:
    """Let readers of a tensor read it as it is, past its Q and DQ."""
    value = next(v for node in lowered.graph for v in node.outputs if v.name == tensor)
    (quantize,) = value.consumers()
    (dequantize,) = quantize.outputs[0].consumers()
    dequantize.outputs[0].replace_all_uses_with(value)


def test_the_audit_catches_a_convolution_left_in_float(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("residual")
    builder, assignment = backend.builder(model, ranged("residual")), uniform(model, backend, INT8)
    lowered = builder.lower(assignment)
    strip_quantize(lowered, "block.0/relu1_out")
    rows = builder.audit(builder.build(lowered, tmp_path / "engine.onnx"), assignment).rows
    name = {group.id: group.name for group in model.groups}
    wrong = {name[row.group]: row.got for row in rows if row.answer is Answer.NOT_OBEYED}
    assert "block.0/conv1" in wrong
    assert set(wrong.values()) == {FP32}


def test_the_audit_catches_another_assignments_engine(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("mobile")
    builder = backend.builder(model, ranged("mobile"))
    built = Assignment({group.id: INT8 if i % 2 else FP32 for i, group in enumerate(model.groups)})
    asked = Assignment({group: FP32 if precision is INT8 else INT8 for group, precision in built.items()})
    rows = builder.audit(builder.build(builder.lower(built), tmp_path / "engine.onnx"), asked).rows
    assert {row.answer for row in rows} == {Answer.NOT_OBEYED}
    assert {row.group: row.got for row in rows} == dict(built)


def test_names_that_are_swapped_do_not_mislead_the_audit(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("mobile")
    mix = {group.id: INT8 if group.name in ("stem", "mb.0/expand") else FP32 for group in model.groups}
    lowered = backend.builder(model, ranged("mobile")).lower(Assignment(mix))
    nodes = {node.name: node for node in lowered.graph}
    nodes["mb.0/expand"].name, nodes["mb.1/project"].name = "mb.1/project", "mb.0/expand"
    rows = audit_rows(optimized(backend, ir.to_proto(lowered).SerializeToString(), tmp_path), model, Assignment(mix))
    name = {group.id: group.name for group in model.groups}
    assert {name[row.group] for row in rows if row.got is INT8} == {"stem", "mb.0/expand"}


def test_a_group_without_a_kernel_is_opaque(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("residual")
    assignment = uniform(model, backend, FP32)
    graph = optimized(backend, ir.to_proto(model.graph).SerializeToString(), tmp_path)
    kept = [node for node in graph.node if node.op_type not in ("Gemm", "FusedGemm")]
    del graph.node[:]
    graph.node.extend(kept)
    rows = {row.group: row for row in audit_rows(graph, model, assignment)}
    assert rows["g006"].answer is Answer.OPAQUE
    assert rows["g000"].answer is Answer.OBEYED


@pytest.mark.parametrize(("precision", "got"), [(INT8, FP32), (FP32, INT8)])
def test_of_several_kernels_one_that_disobeys_is_the_answer(precision: Precision, got: Precision) -> None:
    model = loaded("branches")
    shared = next(group for group in model.groups if len(group.anchors) == 2)
    nodes = [
        helper.make_node("QLinearConv", ["x", "s", "z", "d.w/int8"], ["one"], name="d"),
        helper.make_node("Conv", ["y", "d.w"], ["two"], name="d_again"),
    ]
    graph = helper.make_graph(nodes, "optimized", [], [])
    asked = Assignment({group.id: precision for group in model.groups})
    row = next(row for row in audit_rows(graph, model, asked) if row.group == shared.id)
    assert (row.got, row.answer) == (got, Answer.NOT_OBEYED)


def test_a_tensor_named_like_another_groups_node_misleads_nobody(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    n = Net()
    x = n.op("Relu", [n.conv("image", "a", 3, 16)], "a/relu")
    x = n.op("Relu", [n.conv(x, "b", 16, 16)], "b/relu")
    n.head(n.conv(x, "c", 16, 16), 16)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    tensors = {"a/relu_out": "b", "b/relu_out": "c", "c_out": "a"}  # a makes "b", b makes "c", c makes "a"
    for node in proto.graph.node:
        node.input[:] = [tensors.get(name, name) for name in node.input]
        node.output[:] = [tensors.get(name, name) for name in node.output]
    model = load(save(proto, tmp_path / "net.onnx"))
    builder = backend.builder(model, observed(model))
    for group in model.groups:
        mix = Assignment({other.id: INT8 if other is group else FP32 for other in model.groups})
        rows = builder.audit(builder.build(builder.lower(mix), tmp_path / "engine.onnx"), mix).rows
        assert {row.answer for row in rows} == {Answer.OBEYED}


# -- builder and sessions ----------------------------------------------------------------------------------------------


def test_an_engine_is_the_lowered_file_and_can_be_loaded_again(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model, batch = loaded("residual"), feeds(loaded("residual"))
    builder = backend.builder(model, ranged("residual"))
    lowered = builder.lower(uniform(model, backend, INT8))
    out = tmp_path / "engine.onnx"
    engine = builder.build(lowered, out)
    builder.audit(engine, uniform(model, backend, INT8))
    assert engine.size_bytes == out.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["engine.onnx"]
    first, second = builder.load(out), builder.load(out)
    assert first is not second
    np.testing.assert_array_equal(first.run(batch)["logits"], second.run(batch)["logits"])
    assert first.memory_bytes is not None
    for session in (first, second):
        session.close()


def test_a_session_times_what_was_bound(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("mobile")
    builder = backend.builder(model, ranged("mobile"))
    out = tmp_path / "engine.onnx"
    builder.build(builder.lower(uniform(model, backend, FP32)), out)
    session = builder.load(out)
    session.bind(feeds(model))
    samples = session.time(5)
    assert samples.shape == (5,)
    assert (samples > 0).all()
    session.close()


def opened_engine(backend: OnnxRuntimeBackend, out: Path) -> OnnxRuntimeSession:
    model = loaded("mobile")
    builder = backend.builder(model, ranged("mobile"))
    builder.build(builder.lower(uniform(model, backend, FP32)), out)
    session = builder.load(out)
    session.bind(feeds(model))
    return session


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads")
def test_one_thread_is_the_callers_and_its_processor_time_counts(
    backend: OnnxRuntimeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(os.listdir("/proc/self/task"))
    session = opened_engine(backend, tmp_path / "engine.onnx")
    monkeypatch.setattr(time, "thread_time_ns", count(step=7_000_000).__next__)
    assert session.time(3).tolist() == [7.0] * 3
    assert set(os.listdir("/proc/self/task")) <= before
    session.close()


def test_with_several_threads_interrupted_inferences_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OnnxRuntimeBackend(threads=2)
    assert (backend.target().clock, backend.target().statistic) == ("wall", "p20")
    session = opened_engine(backend, tmp_path / "engine.onnx")
    monkeypatch.setattr(time, "perf_counter_ns", count(step=7_000_000).__next__)
    own = iter([0, 7_000_000, 0, 7_000_000, 0, 3_000_000])  # in the third it waited
    switches = iter([0, 0, 0, 1, 1, 1])  # in the second some thread lost its processor
    monkeypatch.setattr(time, "thread_time_ns", own.__next__)
    monkeypatch.setattr("evaluators.backends.processor._forced_switches", switches.__next__)
    samples = session.time(3)
    assert np.ma.getmaskarray(samples).tolist() == [False, True, True]
    assert np.ma.getdata(samples).tolist() == [7.0] * 3
    session.device = OnnxRuntimeDevice("cpu", 2, SleepingKind.session_entries)
    assert not np.ma.isMaskedArray(session.time(3))  # a caller that slept meanwhile was not interrupted
    session.close()


class SleepingKind(OnnxRuntimeKind):
    """Another backend on ONNX Runtime: its threads do not wait busily."""

    name = "sleeping"
    session_entries = MappingProxyType({"session.intra_op.allow_spinning": "0"})


def test_another_backend_hands_over_its_name_and_the_entries_of_its_sessions() -> None:
    kind, entry = SleepingKind(), "session.intra_op.allow_spinning"
    opened = kind.open("cpu", {"threads": 1})
    assert isinstance(opened, OnnxRuntimeBackend)
    assert opened.target().backend == "sleeping"
    assert opened.device.session_options().get_session_config_entry(entry) == "0"
    assert f'"{entry}": "0"' in kind.recipe_files(Recipe({}, {}, {}, {}, {}))["run.py"]
    assert f'options.add_session_config_entry("{entry}", "0")' in kind.deployment_code(opened.target(), (), "engine")
    assert entry not in OnnxRuntimeKind().deployment_code(opened.target(), (), "engine")


@pytest.mark.parametrize("precision", [FP32, INT8])
def test_a_probe_gives_every_groups_output(precision: Precision, backend: OnnxRuntimeBackend) -> None:
    model = loaded("transformer")
    builder = backend.builder(model, ranged("transformer"))
    outputs = builder.probe(uniform(model, backend, precision)).run(feeds(model))
    assert list(outputs) == [group.id for group in model.groups]
    for group in model.groups:
        assert outputs[group.id].shape == group.shape
        assert outputs[group.id].dtype == np.float32


def test_a_file_that_onnx_runtime_refuses_is_refused(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    n = Net()
    n.op("NoSuchOp", ["image"], "odd", domain="nowhere")
    n.nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        n.nodes, "net", [helper.make_tensor_value_info("image", 1, [1])], [helper.make_tensor_value_info("y", 1, [1])]
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)], ir_version=8
    )
    builder = backend.builder(loaded("residual"), ranged("residual"))
    with pytest.raises(RefusedError, match="NoSuchOp"):
        builder.build(ir.from_proto(proto), tmp_path / "engine.onnx")


def test_an_op_that_onnx_runtime_does_not_know_is_named(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    n = Net()
    n.op("NoSuchOp", [n.conv("image", "stem", 3, 16)], "odd", domain="nowhere")
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(name, 1, [1, c, 8, 8]) for name, c in (("image", 3), ("y", 16))]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    model = load(save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx"))
    with pytest.raises(ModelError, match="NoSuchOp"):
        backend.float_session(model)


@pytest.mark.parametrize("name", ALL)
def test_the_float_session_runs_the_clean_model_as_it_is(name: str, backend: OnnxRuntimeBackend) -> None:
    model, batch = loaded(name), feeds(loaded(name))
    session = backend.float_session(model)
    expected = plain_session(ir.to_proto(model.graph)).run(None, batch)
    for got, wanted in zip(session.run(batch).values(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    session.close()


def test_dynamic_inputs_stay_dynamic_in_the_engine(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    low, best, high = ((batch, 3, 16, 16) for batch in (1, 4, 8))
    path = save(NETWORKS["residual"](batch="N"), tmp_path / "net.onnx")
    model = load(path, shapes={"image": ShapeRequest(low, best, high)})
    builder = backend.builder(model, observed(model))
    for precision in (FP32, INT8):
        out = tmp_path / f"{precision.label}.onnx"
        onnx_file.write(builder.lower(uniform(model, backend, precision)), out)
        session = builder.load(out)
        assert session.run({"image": np.zeros((2, 3, 16, 16), np.float32)})["logits"].shape == (2, 10)


# -- target ------------------------------------------------------------------------------------------------------------


def test_the_target_names_what_changes_speed(backend: OnnxRuntimeBackend) -> None:
    target = backend.target()
    assert target.backend == "onnxruntime"
    assert target.options["threads"] == "1"
    assert target.versions["onnxruntime"] == backend.device.ort.__version__
    assert (target.statistic, target.relative, target.clock) == ("mean", True, "thread")
    assert Target.from_json(target.to_json()).fingerprint == target.fingerprint
    assert OnnxRuntimeBackend(threads=2).target().fingerprint != target.fingerprint


def test_the_cpu_offers_fp32_and_integers_only(backend: OnnxRuntimeBackend) -> None:
    alone = Precision.W8, Precision.W4
    assert backend.capability().precisions == (FP32, alone[0], Precision.INT8_DYNAMIC, INT8, alone[1])
    assert backend.capability().ops[Precision.INT8_DYNAMIC] == {"Gemm", "MatMul"}


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "cuda:x", ""])
def test_devices_that_there_are_not_are_refused(device: str) -> None:
    with pytest.raises(TargetError, match="--device"):
        OnnxRuntimeBackend(device)
