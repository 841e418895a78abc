"""TensorRT on a GPU: `pytest -m gpu`. Small networks; every builder, kernel and number is real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorrt")  # collected everywhere, run where TensorRT is

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.backends.tensorrt import api
from evaluators.backends.tensorrt.builder import TensorRTBuilder, model_bytes
from evaluators.backends.tensorrt.device import check_cuda, cudart
from evaluators.backends.tensorrt.session import inspect_plan, open_plan
from evaluators.calibration import cache as calibration_cache
from evaluators.engine import OutOfMemoryError, RefusedError
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK
from search.errors import ConfigError
from search.values import Answer, Assignment, Precision, TensorRange
from tests.support.assignments import THREE
from tests.support.tensorrt.gpu_benches import QUICK, Bench, backend, bench, sqnr

pytestmark = pytest.mark.gpu
FP32, FP16, INT8 = THREE


def built(bed: Bench, assignment: Assignment, out: Path):
    """Engine, audit and a session with its inputs bound."""
    engine = bed.builder.build(bed.builder.lower(assignment), out)
    audit = bed.builder.audit(engine, assignment)
    session = bed.builder.load(engine.path)
    session.bind(bed.inputs)
    return engine, audit, session


def worst_sqnr(bed: Bench, outputs) -> float:
    return min(sqnr(wanted, outputs[name]) for name, wanted in bed.reference.items())


@pytest.mark.parametrize("name", ["residual", "mobile", "unet"])
def test_mixes_build_obey_and_agree(name, tmp_path):
    bed = bench(name) if name == "residual" else bench(name, **QUICK)
    uniforms = bed.space.baselines.values() if name == "residual" else [bed.space.uniform(INT8)]
    for assignment in (*uniforms, bed.mix(0), *([bed.mix(1)] if name != "unet" else [])):  # the unet's build longest
        _, audit, session = built(bed, assignment, tmp_path / "out.plan")
        assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
        assert worst_sqnr(bed, session.run(bed.inputs)) > (20 if INT8 in assignment.values() else 45)
        session.close()


@pytest.mark.parametrize("name", ["silu", "silu_residual"])
def test_the_emulation_rounds_where_the_engine_does(name, tmp_path):
    """A SiLU is computed in the kernel before it. With a residual Add it is a kernel of its own, which reads INT8 on a
    large detector and FP16 on this small network; the audit says which."""
    bed = bench(name, **QUICK)
    int8 = bed.space.uniform(INT8)
    _, audit, session = built(bed, int8, tmp_path / "out.plan")
    outputs = session.run(bed.inputs)["logits"]
    session.close()
    beside = {row.details.get("beside", "") for row in audit.rows}
    assert any(text.endswith("in the kernel") for text in beside)
    own_kernel = {text for text in beside if "add: PointWiseV2" in text}
    assert bool(own_kernel) == (name == "silu_residual"), beside
    placement = TENSORRT_WEAK if any("int8" in text for text in own_kernel) else TENSORRT
    emulator = Emulator(OnnxRuntimeBackend("cpu"), placement)
    emulated = emulator.open(spelled_out(lower(bed.model, int8, bed.ranges, placement)))
    assert sqnr(outputs, emulated.run(bed.inputs)["logits"]) > 40


def test_the_emulation_rounds_between_groups_where_the_engine_does(tmp_path):
    """Pools and gates read INT8, and so do activations of depthwise convolutions. Without that an emulation agrees to
    22 dB on this network."""
    bed = bench("gated", **QUICK)
    int8 = bed.space.uniform(INT8)
    _, audit, session = built(bed, int8, tmp_path / "out.plan")
    outputs = session.run(bed.inputs)["logits"]
    session.close()
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    emulator = Emulator(OnnxRuntimeBackend("cpu"), TENSORRT_WEAK)
    emulated = emulator.open(spelled_out(lower(bed.model, int8, bed.ranges, TENSORRT_WEAK)))
    assert sqnr(outputs, emulated.run(bed.inputs)["logits"]) > 30


@pytest.mark.parametrize("int8_group", ["first", "box"])
def test_what_no_int8_layer_reads_stays_in_float(int8_group, tmp_path):
    bed = bench("boxes", **QUICK)
    mix = Assignment({g.id: INT8 if g.name == int8_group else FP16 for g in bed.model.groups})
    engine, audit, session = built(bed, mix, tmp_path / "out.plan")
    outputs = session.run(bed.inputs)["boxes"]
    session.close()
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    layers = json.loads(bed.builder.inspect(engine.path), strict=False)["Layers"]
    decoding = [
        layer for layer in layers if any(name in layer["Name"] for name in ("scale", "shift", "share", "boxes"))
    ]
    assert decoding
    assert not [layer["Name"] for layer in decoding if "Int8" in json.dumps(layer["Outputs"])]
    assert not [note for note in engine.notes if "range" in note], engine.notes
    assert sqnr(bed.reference["boxes"], outputs) > 30


@pytest.mark.parametrize("int8_groups", [{"stem"}, {"b1.project"}, {"stem", "b1.project"}])
def test_depthwise_convolutions_with_silu_are_built_in_every_mix(int8_groups, tmp_path):
    """Of 15 mixes like these 13 were refused where tensors that only float groups read and compute had no ranges."""
    bed = bench("squeeze", **QUICK)
    mix = Assignment({g.id: INT8 if g.name in int8_groups else FP16 for g in bed.model.groups})
    _, audit, session = built(bed, mix, tmp_path / "out.plan")
    outputs = session.run(bed.inputs)
    session.close()
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    assert worst_sqnr(bed, outputs) > 30


@pytest.mark.parametrize("others", [FP16, FP32])
def test_one_head_in_int8_leaves_the_other_as_exact_as_it_was(others, tmp_path):
    """They share a tensor, which a Resize enlarges for the one in float, and the builder takes that float precision.

    On a trained detector the Resize ran in INT8 where it had none; on this network it does not, whatever it is told.
    """
    bed = bench("neck", **QUICK)
    mix = Assignment({g.id: INT8 if g.name == "head.coarse" else others for g in bed.model.groups})
    engine, audit, session = built(bed, mix, tmp_path / "out.plan")
    maps, exact = session.run(bed.inputs)["maps"], bed.reference["maps"]
    session.close()
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    assert not [note for note in engine.notes if "range" in note], engine.notes
    assert sqnr(exact[:, :8], maps[:, :8]) > 45  # the head in float
    assert sqnr(exact[:, 8:], maps[:, 8:]) > 25


def test_a_resize_in_int8_keeps_its_values_whatever_range_it_has(tmp_path):
    """It hands on its codes: with twice the range behind it, its values were twice as large."""
    bed = bench("unet", **QUICK)
    resized = {node.outputs[0].name for node in bed.model.graph.graph if node.op_type == "Resize"}
    assert resized
    wider = {n: TensorRange(2 * r.low, 2 * r.high) if n in resized else r for n, r in bed.ranges.tensors.items()}
    knobs, timing = bed.builder.knobs, bed.builder.timing
    builder = TensorRTBuilder(backend().trt, bed.model, replace(bed.ranges, tensors=wider), knobs, timing=timing)
    engine = builder.build(builder.lower(bed.space.uniform(INT8)), tmp_path / "out.plan")
    session = builder.load(engine.path)
    assert worst_sqnr(bed, session.run(bed.inputs)) > 20
    session.close()


def test_constants_keep_their_values_where_layers_may_run_in_int8(tmp_path):
    """As Q/DQ, which leaves the arithmetic between the convolutions in float, ONNX Runtime has 38 dB."""
    bed = bench("arithmetic", **QUICK)
    _, audit, session = built(bed, bed.space.uniform(INT8), tmp_path / "out.plan")
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    assert worst_sqnr(bed, session.run(bed.inputs)) > 20
    session.close()


def test_a_dynamic_batch_is_built_audited_and_run_at_the_measured_one(tmp_path):
    bed = bench("dynamic", optimization_level=0)
    assert bed.model.profiles
    _, audit, session = built(bed, bed.mix(0), tmp_path / "out.plan")
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}, [vars(row) for row in audit.rows]
    outputs = session.run(bed.inputs)
    assert outputs["logits"].shape == (4, 10)
    assert worst_sqnr(bed, outputs) > 20
    profiled = session.profile(bed.inputs, 5)
    assert profiled
    assert sum(profiled.values()) > 0
    assert np.array_equal(session.run(bed.inputs)["logits"], outputs["logits"])  # the session goes on after it
    session.close()
    if api.version(backend().trt) >= (10, 0):  # 8.6.0 does not tell formats, though it is given shapes
        assert "N/A due to dynamic shapes" not in inspect_plan(tmp_path / "out.plan")
    opened = open_plan(tmp_path / "out.plan", "cuda")  # without its model, as a guard and a gate do
    assert [spec.shape for spec in opened.inputs] == [(4, 3, 16, 16)]
    for count in (4, 1, 8):
        samples = np.resize(bed.inputs["image"], (count, 3, 16, 16))
        found = opened.run({"image": samples})["logits"]
        rows = min(count, 4)
        assert sqnr(outputs["logits"][:rows], found[:rows]) > 20
    opened.close()


def test_wide_integers_go_in_and_come_out(tmp_path):
    """Of INT64 inputs and outputs 8.6 makes INT32."""
    bed = bench("text_encoder", optimization_level=0)
    assert {spec.dtype for spec in bed.model.inputs} == {"int64"}
    _, audit, session = built(bed, bed.space.uniform(FP32), tmp_path / "out.plan")
    outputs = session.run(bed.inputs)
    assert Answer.NOT_OBEYED not in {row.answer for row in audit.rows}
    assert sqnr(bed.reference["scores"], outputs["scores"]) > 40
    assert outputs["token"].dtype.kind == "i"
    assert outputs["token"].tolist() == outputs["scores"].argmax(axis=1).tolist()
    session.close()


def test_a_layer_that_is_a_plugin_in_some_versions_runs(tmp_path):
    bed = bench("normalized", optimization_level=0)
    _, audit, session = built(bed, bed.space.uniform(FP16), tmp_path / "out.plan")
    assert Answer.NOT_OBEYED not in {row.answer for row in audit.rows}
    assert worst_sqnr(bed, session.run(bed.inputs)) > 30
    session.close()


def test_a_plugin_library_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"--plugin /nowhere/plugin\.so: TensorRT cannot load it"):
        bench("residual", plugins=("/nowhere/plugin.so",))


class Refusing:
    """The CUDA runtime, but that it makes no graph that can be launched."""

    def __init__(self, cuda):
        self._cuda = cuda

    def __getattr__(self, name):
        return getattr(self._cuda, name)

    def cudaGraphInstantiate(self, graph, flags):  # noqa: N802
        return 801, None  # cudaErrorNotSupported


def test_where_no_graph_can_be_made_kernels_are_enqueued(tmp_path):
    bed = bench("residual")
    engine = bed.builder.build(bed.builder.lower(bed.space.uniform(FP16)), tmp_path / "out.plan")
    found = []
    for cuda in (cudart(), Refusing(cudart())):
        session = bed.builder.load(engine.path)
        session._cuda = cuda
        session.bind(bed.inputs)
        assert (session.time(5) > 0).all()
        found.append((session.run(bed.inputs)["logits"], session.notes))
        session.close()
    (captured, quiet), (enqueued, notes) = found
    np.testing.assert_array_equal(captured, enqueued)
    assert (quiet, len(notes)) == ((), 1)
    assert "could not be captured" in notes[0]


def test_tensorrt_takes_our_calibration_cache(tmp_path):
    """A calibrator that has no data but the cache, as trtexec's: without one that it takes nothing can be built."""
    trt = backend().trt
    if api.version(trt) >= (11, 0):
        pytest.skip("there are no calibrators any more")
    bed = bench("residual", optimization_level=0)
    cache = calibration_cache.write(bed.ranges, trt.__version__).encode()

    class Reader(trt.IInt8EntropyCalibrator2):
        def __init__(self):
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self):
            return bed.model.batch

        def get_batch(self, names):
            return None

        def read_calibration_cache(self):
            return cache

        def write_calibration_cache(self, cache):
            pass

    network, parser = bed.builder._parse(bed.builder._clean)
    config, reader = bed.builder._config(), Reader()
    config.set_flag(trt.BuilderFlag.INT8)
    config.int8_calibrator = reader
    (tmp_path / "out.plan").write_bytes(bed.builder._serialize(network, config, parser, None))
    session = bed.builder.load(tmp_path / "out.plan")
    assert worst_sqnr(bed, session.run(bed.inputs)) > 20
    session.close()


def test_what_a_region_hides_is_opaque(tmp_path):
    bed = bench("transformer", **QUICK)
    half = bed.space.uniform(FP16)
    _, audit, session = built(bed, half, tmp_path / "out.plan")
    answers = [row.answer for row in audit.rows]
    assert Answer.NOT_OBEYED not in answers
    assert (Answer.OPAQUE in answers) == (audit.summary.opaque > 0)
    assert worst_sqnr(bed, session.run(bed.inputs)) > 45
    session.close()


def test_a_session_tells_what_surrounds_an_inference(tmp_path):
    bed = bench("residual")
    _, _, session = built(bed, bed.space.uniform(FP16), tmp_path / "out.plan")
    assert session.notes == ()  # captured in a graph
    assert session.time(20).shape == (20,)
    assert (session.time(20) > 0).all()
    around = session.around()
    assert set(around) == {"host_to_device", "device_to_host", "enqueue", "launch"}
    assert all(ms > 0 for ms in around.values())
    inputs = sum(array.nbytes for array in bed.inputs.values())
    assert session.memory_bytes > (tmp_path / "out.plan").stat().st_size + inputs
    session.close()


def test_the_device_says_what_state_it_is_in():
    state = backend().device_state()
    assert state["sm_clock_mhz"] > 100
    assert 0 < state["temperature_c"] < 120
    assert state["power_w"] > 0
    assert isinstance(state["throttled"], list)
    assert backend().lock_name.startswith("GPU-")


def test_layers_are_timed_and_attributed(tmp_path):
    bed = bench("residual")
    mixed = bed.space.uniform(FP32).replace({"g001": INT8, "g002": INT8})
    engine, audit, session = built(bed, mixed, tmp_path / "out.plan")
    session.close()
    layers = bed.builder.profile(engine.path, bed.inputs, 5)
    assert {layer.group for layer in layers if layer.group} == {group.id for group in bed.model.groups}
    assert sum(layer.ms for layer in layers if layer.moves) > 0
    assert audit.summary.moves == sum(layer.moves for layer in layers) > 0
    row = next(row for row in audit.rows if row.group == "g002")
    assert row.details["weights"] == "int8"
    assert "Int8" in row.details["inputs"]
    assert row.details["sparse"] == "no"


def test_tf32_shows_in_the_audit_and_without_it_outputs_are_nearer_to_float(tmp_path):
    """Whether a kernel with TF32 is the quickest hangs on the card and on chance; the audit tells."""
    found, kernels = {}, {}
    for tf32 in (True, False):
        bed = bench("residual", tf32=tf32)  # at level 1 TensorRT 8.6 takes no TF32 kernel, allowed or not
        _, audit, session = built(bed, bed.space.uniform(FP32), tmp_path / "out.plan")
        found[tf32] = worst_sqnr(bed, session.run(bed.inputs))
        kernels[tf32] = " ".join(row.details.get("tactic", "") for row in audit.rows)
        session.close()
    assert "tf32" not in kernels[False]
    assert (found[False] > found[True] + 10) == ("tf32" in kernels[True])


def test_sparse_weights_show_in_the_audit(tmp_path):
    for sparsity in (False, True):
        bed = bench("wide", sparsity=sparsity)
        assignment = bed.space.uniform(FP16)
        engine = bed.builder.build(bed.builder.lower(assignment), tmp_path / "out.plan")
        audit = bed.builder.audit(engine, assignment)
        assert (audit.summary.sparse > 0) == sparsity
        assert ("yes" in {row.details["sparse"] for row in audit.rows}) == sparsity


def test_knobs_are_part_of_what_is_built(tmp_path):
    quick = bench("residual", optimization_level=0, workspace_bytes=1 << 26, native_instancenorm=False)
    _, audit, session = built(quick, quick.space.uniform(INT8), tmp_path / "out.plan")
    assert Answer.NOT_OBEYED not in {row.answer for row in audit.rows}
    assert worst_sqnr(quick, session.run(quick.inputs)) > 20
    session.close()
    assert quick.builder.knobs.to_json()["optimization_level"] == "0"


def test_the_free_choice_and_q_dq_build_and_agree(tmp_path):
    """On 8.6 a Q/DQ network is built with INT8 allowed and nothing constrained; its float parts stay FP32 there."""
    bed = bench("residual")
    bed.builder.build_free(tmp_path / "free.plan")
    for name, asked in (("uniform", bed.space.uniform(INT8)), ("mix", bed.mix(2))):
        explicit = Assignment({group: INT8 if p is INT8 else FP32 for group, p in asked.items()})
        assert 1 < list(explicit.values()).count(FP32) < len(explicit) - 1 or name == "uniform"
        lowered = lower(bed.model, explicit, bed.ranges, replace(TENSORRT, float_side=Precision.FP32))
        bed.builder.build_free(tmp_path / f"{name}.plan", model_bytes(lowered))
    for name in ("free", "uniform", "mix"):
        session = bed.builder.load(tmp_path / f"{name}.plan")
        assert worst_sqnr(bed, session.run(bed.inputs)) > 20
        session.close()


def test_a_probe_gives_every_group_its_output():
    bed = bench("residual")
    for assignment in (bed.space.uniform(INT8), bed.mix(1)):
        session = bed.builder.probe(assignment)
        outputs = session.run(bed.inputs)
        assert set(outputs) == {group.id for group in bed.model.groups}
        last = bed.model.groups[-1]
        assert sqnr(next(iter(bed.reference.values())), outputs[last.id].reshape(4, 10)) > 15
        session.close()


def test_a_refusal_is_told_with_tensorrt_s_own_words(tmp_path):
    """No INT8 deconvolution builds with 8.6, which is why its capability does not offer one."""
    if api.version(backend().trt) >= (10, 0):
        pytest.skip("newer versions build it")
    bed = bench("unet", **QUICK)
    assignment = bed.space.uniform(FP16).replace({"g003": INT8})
    with pytest.raises(RefusedError, match="Assertion"):
        bed.builder.build(bed.builder.lower(assignment), tmp_path / "out.plan")
    assert INT8 not in {choice.precision for choice in bed.space.choices["g003"] if choice.offered}
    _, audit, session = built(bed, bed.space.uniform(FP16), tmp_path / "out.plan")  # the builder goes on
    session.close()
    assert Answer.NOT_OBEYED not in {row.answer for row in audit.rows}


def test_another_builder_learns_from_the_timing_cache_of_one(tmp_path):
    """Also with TensorRT 8.6, which refuses a cache only where Myelin compiled a region."""
    bed = bench("residual")
    file = tmp_path / "cache" / "device.timing"
    knobs = replace(backend().builder_knobs, timing_cache=str(file), **QUICK)
    one, other = (TensorRTBuilder(backend().trt, bed.model, bed.ranges, knobs) for _ in range(2))
    one.build(one.lower(bed.space.uniform(FP32)), tmp_path / "out.plan")
    known = file.read_bytes()
    assert one.timing_cache() == known
    other.build(other.lower(bed.space.uniform(FP32)), tmp_path / "out.plan")
    assert len(file.read_bytes()) == len(known), "it had nothing to time"


@pytest.mark.parametrize("damage", ["cut short", "empty", "no plan at all", "another version"])
def test_a_damaged_plan_is_refused(damage, tmp_path):
    bed = bench("residual")
    engine = bed.builder.build(bed.builder.lower(bed.space.uniform(FP16)), tmp_path / "out.plan")
    plan = engine.path.read_bytes()
    bad = {
        "cut short": plan[: len(plan) // 2],
        "empty": b"",
        "no plan at all": b"x" * 1000,
        "another version": other_version(plan),
    }[damage]
    engine.path.write_bytes(bad)
    with pytest.raises(RefusedError, match="cannot be loaded"):
        bed.builder.audit(engine, bed.space.uniform(FP16))
    engine.path.write_bytes(plan)
    assert bed.builder.audit(engine, bed.space.uniform(FP16)).rows


def other_version(plan: bytes) -> bytes:
    """The plan with other versions in its header: of serialization at byte 8, of the library at byte 24."""
    header = bytearray(plan[:32])
    header[8] ^= 1
    header[24] ^= 1
    return bytes(header) + plan[32:]


def test_too_little_device_memory_is_told_apart(tmp_path):
    bed = bench("residual")
    engine = bed.builder.build(bed.builder.lower(bed.space.uniform(FP16)), tmp_path / "out.plan")
    cuda = cudart()
    hogs, size = [], check_cuda(cuda.cudaMemGetInfo())[0]
    while size > 1 << 12:
        error, pointer = cuda.cudaMalloc(size)
        if int(error) == 0:
            hogs.append(pointer)
        else:
            size //= 2
    try:
        with pytest.raises(OutOfMemoryError):
            bed.builder.load(engine.path).bind(bed.inputs)
    finally:
        for pointer in hogs:
            check_cuda(cuda.cudaFree(pointer))
    session = bed.builder.load(engine.path)
    assert np.isfinite(session.run(bed.inputs)["logits"]).all()
    session.close()
