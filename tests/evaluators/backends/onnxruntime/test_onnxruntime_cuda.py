"""A CUDA provider that is named and does not load: ONNX Runtime takes the processor without a word, bitfront refuses.

The installed onnxruntime knows the processor alone. That it names CUDA is all that is pretended: what its sessions do
when they are asked for CUDA, and with what words, is its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime import cuda as onnxruntime_cuda
from evaluators.backends.onnxruntime.audit import FLOAT8_KERNEL as KERNEL
from evaluators.backends.onnxruntime.audit import audit_rows
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.backends.onnxruntime.session import open_session
from evaluators.engine import RefusedError
from evaluators.engine_files.onnx_layers import read_layers
from evaluators.lowering.constants import array_of
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from search.errors import ModelError, TargetError
from search.graph import packed_file
from search.graph.model import Model, load
from search.space.choices import make_space
from search.values import Assignment, Capability, Precision
from tests.support.command_line import invoke, tree, write_inputs
from tests.support.networks import Net, feeds, finish, loaded, observed, ranged, save, sqnr_db
from tests.support.shared_libraries import compiled, needs_gcc

pytestmark = [
    pytest.mark.skipif(
        "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime may load CUDA"
    ),
    pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'"),
]
SAYS = (
    r"--device cuda: ONNX Runtime's CUDA provider cannot be loaded, so the model would run on the CPU: .*\.so: cannot"
)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> OnnxRuntimeBackend:
    named = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: named)
    monkeypatch.setattr(discovery, "driver_version", lambda: "13.0")
    return OnnxRuntimeBackend("cuda")


def test_the_check_finds_it(cuda: OnnxRuntimeBackend) -> None:
    with pytest.raises(TargetError, match=SAYS) as caught:
        cuda.check()
    assert f"pip install 'onnxruntime-gpu[cuda,cudnn]=={onnxruntime.__version__}'" in str(caught.value)
    assert str(caught.value).endswith("Or use --device cpu.")


def test_no_session_of_it_runs_on_the_processor(cuda: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = loaded("residual")
    all_float = Assignment({group.id: Precision.FP32 for group in model.groups})
    builder = cuda.builder(model, ranged("residual"))
    for use in (
        lambda: cuda.float_session(model),
        lambda: cuda.plain_session(model.graph),
        lambda: builder.build(builder.lower(all_float), tmp_path / "engine.onnx"),
        lambda: builder.load(tmp_path / "engine.onnx"),
        lambda: builder.probe(all_float),
    ):
        with pytest.raises(TargetError, match=SAYS):
            use()


@pytest.mark.parametrize("precision", [Precision.W8, Precision.W4], ids=lambda p: p.label)
def test_weights_alone_are_products_of_halves(
    cuda: OnnxRuntimeBackend, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written; it was not run with CUDA here. The processor's kernel of the same op takes it."""
    model, path = loaded("row_products"), tmp_path / "cuda.onnx"
    mix = Assignment({group.id: precision for group in model.groups})
    lowered = cuda.builder(model, observed(model)).lower(mix)
    products = [node for node in lowered.graph if node.op_type == "MatMulNBits"]
    assert len(products) == len(model.groups)
    for node in products:
        kinds = [value.dtype for value in node.inputs if value is not None]
        assert [kind.name for kind in kinds[:3]] == ["FLOAT16", "UINT8", "FLOAT16"]
        assert all(kind.name == "FLOAT16" for kind in kinds[3:])
        facts = {name: node.attributes.get_int(name) for name in ("bits", "block_size", "K", "N")}
        assert facts["bits"] == (8 if precision is Precision.W8 else 4)
        assert facts["K"] % facts["block_size"] == 0
        assert facts["block_size"] in (16, 32, 64, 128), "what the kernels of 1.31 take"
    packed_file.write(lowered, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    exact = OnnxRuntimeBackend().plain_session(model.graph)
    wanted = exact.run(feeds(model))["y"]
    found = session.run(["y"], feeds(model))[0]
    assert sqnr_db(wanted, found) > (30 if precision is Precision.W8 else 8)


def product_of_a_vector(path: Path) -> Model:
    """A Gemm with a bias, and a MatMul with an Add behind it, whose output is the graph's."""
    n = Net(4)
    x = n.op("Relu", [n.gemm("x", "up", 64, 256)], "relu")
    n.linear(x, "down", 256, 96)
    n.nodes[-1].output[0] = "y"
    return load(save(finish(n, {"x": [3, 64]}, {"y": [3, 96]}), path))


def test_floats_of_eight_bits_are_one_op_with_the_bias(cuda: OnnxRuntimeBackend, tmp_path: Path) -> None:
    """ONNX Runtime's own schema takes the graph; that no processor has a kernel for it is told with what has one."""
    model, path = product_of_a_vector(tmp_path / "model.onnx"), tmp_path / "cuda.onnx"
    mix = Assignment({group.id: Precision.WF8 for group in model.groups})
    lowered = cuda.builder(model, observed(model)).lower(mix)
    assert [node.op_type for node in lowered.graph] == ["Cast", KERNEL, "Relu", KERNEL, "Cast"]
    products = [node for node in lowered.graph if node.op_type == KERNEL]
    for node, (depth, width, block) in zip(products, ((64, 256, 32), (256, 96, 128)), strict=True):
        activations, codes, scales, activation_scale, bias = node.inputs
        assert (node.domain, node.attributes.get_int("block_size")) == ("com.microsoft", block)
        assert activations is not None
        assert activations.dtype is ir.DataType.FLOAT16
        assert codes is not None
        assert (codes.dtype, codes.shape) == (ir.DataType.FLOAT8E4M3FN, (width, depth))
        assert scales is not None
        assert (scales.dtype, scales.shape) == (ir.DataType.FLOAT, (width, depth // block))
        assert activation_scale is None
        assert bias is not None
        assert (bias.dtype, bias.shape) == (ir.DataType.FLOAT16, (width,))
    proto = ir.to_proto(lowered)
    assert {(row.got, row.kernel) for row in audit_rows(proto.graph, model, mix)} == {(Precision.WF8, KERNEL)}
    assert [layer.precision for layer in read_layers(proto)[1] if layer.weighted] == [Precision.WF8] * 2
    packed_file.write(lowered, path)
    device = OnnxRuntimeBackend().device
    with pytest.raises(RefusedError, match=f"{KERNEL}.*WF8 run with onnxruntime-gpu 1.31 or later"):
        open_session(device, path, device.session_options())


def test_the_op_computes_what_is_emulated(cuda: OnnxRuntimeBackend, tmp_path: Path) -> None:
    """By the op's definition, in numpy: `A · (fp8(B) · b_scale)ᵀ + bias`."""
    model = product_of_a_vector(tmp_path / "model.onnx")
    mix = Assignment({group.id: Precision.WF8 for group in model.groups})
    at = feeds(model, 1)["x"].astype(np.float64)
    for node in cuda.builder(model, observed(model)).lower(mix).graph:
        if node.op_type == KERNEL:
            codes, scales, bias = (array_of(node.inputs[i]).astype(np.float64) for i in (1, 2, 4))
            at = at @ (codes * np.repeat(scales, node.attributes.get_int("block_size"), axis=1)).T + bias
        if node.op_type == "Relu":
            at = np.maximum(at, 0)
    lowered = lower(model, mix, observed(model), cuda.placement)
    emulated = Emulator(OnnxRuntimeBackend(), cuda.placement).open(spelled_out(lowered)).run(feeds(model, 1))["y"]
    assert sqnr_db(at, emulated) > 50


def test_casts_stand_where_neighbours_are_of_another_type(cuda: OnnxRuntimeBackend, tmp_path: Path) -> None:
    model = product_of_a_vector(tmp_path / "model.onnx")
    kinds = {Precision.FP32: 2, Precision.BF16: 3, Precision.FP16: 2, Precision.W8: 2}
    for beside, casts in kinds.items():
        mix = Assignment({"g000": Precision.WF8, "g001": beside})
        lowered = cuda.builder(model, observed(model)).lower(mix)
        ops = [node.op_type for node in lowered.graph]
        assert (ops.count("Cast"), ops.count(KERNEL)) == (casts, 1), (beside, ops)


@pytest.mark.parametrize(
    ("runtime", "version", "says"),
    [
        ("1.30.0", (9, 0), "the target has no WF8 kernel for Gemm"),
        ("1.31.0", (9, 0), ""),
        ("1.32.1", (8, 0), ""),
        ("1.32.1", (7, 5), None),
    ],
)
def test_floats_of_eight_bits_need_a_new_runtime_and_gpu(
    cuda: OnnxRuntimeBackend,
    runtime: str,
    version: tuple[int, int],
    says: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "compute_capability", lambda index: version)
    monkeypatch.setattr(onnxruntime, "__version__", runtime)
    model = product_of_a_vector(tmp_path / "model.onnx")
    space = make_space(model, cuda.capability(), observed(model))
    reasons = {choice.precision: choice.reason for choice in space.choices["g000"]}
    assert reasons.get(Precision.WF8) == says
    assert (Precision.WF8 in space.precisions) is (says == "")


@pytest.mark.parametrize(("version", "halves"), [((7, 5), False), ((8, 0), True), (None, False)])
def test_what_it_offers_to_one_row_and_to_more(
    cuda: OnnxRuntimeBackend, version: tuple[int, int] | None, halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "compute_capability", lambda index: version)
    capability = cuda.capability()
    assert capability == Capability.from_json(capability.to_json())
    assert (Precision.BF16 in capability.precisions) is halves
    for name, offered in (("row_products", True), ("products", False)):
        space = make_space(loaded(name), capability, ranged(name))
        assert (Precision.W4 in space.precisions) is offered


def test_the_processor_is_checked_by_running_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = OnnxRuntimeBackend()
    cpu.check()
    monkeypatch.setattr(cpu.device, "providers", lambda: ["NoSuchProvider"])
    with pytest.raises(TargetError, match=r"cannot run a model of one node there: .*NoSuchProvider"):
        cpu.check()
    with pytest.raises(TargetError, match="one node"):  # and the model is not blamed for it
        cpu.float_session(loaded("residual"))


def test_a_model_that_does_not_run_is_still_the_models_fault() -> None:
    model = loaded("residual")
    node = model.graph.graph[0]
    before, node.op_type = node.op_type, "NoSuchOp"
    try:
        with pytest.raises(ModelError, match="cannot run the float model"):
            OnnxRuntimeBackend().float_session(model)
    finally:
        node.op_type = before


@pytest.mark.slow
def test_search_refuses_it_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITFRONT_TEST_CUDA", "1")
    work = tmp_path / "work"
    write_inputs(work)
    monkeypatch.chdir(work)
    before = tree(work)
    result = invoke("search", "model.onnx", "--data", "data.npz", "--backend", "onnxruntime", "--device", "cuda")
    assert result.exit_code == 2, result.output
    assert "ONNX Runtime's CUDA provider cannot be loaded, so the model would run on the CPU" in result.stderr
    assert tree(work) == before


@needs_gcc
def test_the_reason_is_the_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path / "libonnxruntime_providers_shared.so", "int shared(void) { return 1; }")
    cublas = compiled(tmp_path / "libcublasLt-test.so.13", "int cublas(void) { return 1; }")
    uses = "int cublas(void); int provider(void) { return cublas(); }"
    compiled(tmp_path / "libonnxruntime_providers_cuda.so", uses, cublas)
    cublas.rename(tmp_path / "away")
    found = onnxruntime_cuda.reason(tmp_path, 0)
    assert found.endswith("libcublasLt-test.so.13: cannot open shared object file: No such file or directory")
    (tmp_path / "away").rename(cublas)  # it loads now, and no GPU is here
    monkeypatch.setattr(discovery, "driver_version", lambda: None)
    assert onnxruntime_cuda.reason(tmp_path, 0) == "there is no NVIDIA driver, libcuda.so.1 does not load"
    monkeypatch.setattr(discovery, "driver_version", lambda: "13.0")
    monkeypatch.setattr(discovery, "gpu_uuid", lambda index: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert onnxruntime_cuda.reason(tmp_path, 2) == "CUDA finds no GPU 2 (CUDA_VISIBLE_DEVICES='-1')"


@pytest.mark.parametrize(
    ("driver", "built_for", "says", "says_not"),
    [
        ("13.0", "13.0", ["pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"], ["<1.27", "update the driver"]),
        ("13.1", "12.8", ["pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"], ["<1.27", "update the driver"]),
        ("12.8", "13.0", ["update the driver, or", "CUDA 12.8", "'onnxruntime-gpu[cuda,cudnn]<1.27'"], ["==1.31.1"]),
        ("11.8", "12.8", ["update the driver."], ["pip install"]),
        ("12.8", None, ["pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"], ["built for"]),
        (None, "13.0", ["Install NVIDIA's driver", "--gpus all"], ["pip install"]),
    ],
)
def test_the_advice_fits_the_driver(
    driver: str | None, built_for: str | None, says: list[str], says_not: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "driver_version", lambda: driver)
    advice = onnxruntime_cuda.advice("1.31.1", built_for)
    assert all(part in advice for part in says), advice
    assert not any(part in advice for part in says_not), advice
