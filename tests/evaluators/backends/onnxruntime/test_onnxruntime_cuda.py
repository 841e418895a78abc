"""A CUDA provider that is named and does not load: ONNX Runtime takes the processor without a word, bitfront refuses.

The installed onnxruntime knows the processor alone. That it names CUDA is all that is pretended: what its sessions do
when they are asked for CUDA, and with what words, is its own.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime import cuda as onnxruntime_cuda
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from search.errors import ModelError, TargetError
from search.values import Assignment, Precision
from tests.support.command_line import invoke, tree, write_inputs
from tests.support.networks import loaded, ranged
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
