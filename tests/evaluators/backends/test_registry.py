"""Backends by name: which one `auto` stands for, and what is said where it stands for none."""

from __future__ import annotations

import re

import pytest

from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.registry import choice_text, choose_backend, kind_named, open_backend, shipped_kinds
from evaluators.cores import usable_processors
from search.errors import TargetError
from search.installation import install_command
from search.values import Capability, Precision
from tests.support.paths import ROOT


def machine(monkeypatch: pytest.MonkeyPatch, *installed: str, gpu: bool) -> None:
    """A machine with these packages; a GPU is what TensorRT needs and ONNX Runtime does without."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(discovery.shutil, "which", lambda name: f"/usr/bin/{name}" if gpu else None)
    monkeypatch.setattr(discovery, "Path", lambda name: ROOT / "none" / name.lstrip("/"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("installed", "gpu", "chosen"),
    [
        (("onnxruntime",), False, "onnxruntime"),
        (("onnxruntime", "tensorrt"), False, "onnxruntime"),
        (("onnxruntime", "tensorrt"), True, "tensorrt"),
        (("tensorrt",), True, "tensorrt"),
        (("onnxruntime", "openvino"), False, "onnxruntime"),
        (("openvino",), False, "openvino"),
    ],
)
def test_the_first_with_a_device(
    installed: tuple[str, ...], gpu: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, *installed, gpu=gpu)
    assert choose_backend("auto") == chosen
    both = {"onnxruntime", "openvino"} <= {*installed}
    why = (
        "by a fixed order; openvino took 0.33" if both else "the first of tensorrt, onnxruntime, openvino that can run"
    )
    assert choice_text("auto").startswith(f"{chosen}, {why}")
    assert choice_text("auto").endswith("(take it by --backend openvino)") is both
    assert choice_text("fake") == "fake"


@pytest.mark.parametrize("hidden", ["", "-1", " ,0"])
def test_a_gpu_that_is_hidden_is_none(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "onnxruntime", "tensorrt", gpu=True)
    assert choose_backend("auto") == "tensorrt"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_backend("auto") == "onnxruntime"
    said = f"installed, but CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU"
    assert kind_named("tensorrt").explain_missing() == said


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_for_a_processor_none_is_chosen_that_needs_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "onnxruntime", "tensorrt", gpu=True)
    chosen, order = {
        "cpu": ("onnxruntime", "onnxruntime, openvino"),
        "cuda:1": ("tensorrt", "tensorrt, onnxruntime, openvino"),
    }[device]
    assert choose_backend("auto", device) == chosen
    assert choice_text("auto", device) == f"{chosen}, the first of {order} that can run here"


def test_on_a_gpu_the_other_engine_of_the_processor_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "onnxruntime", "openvino", gpu=True)
    assert choice_text("auto", "cuda") == "onnxruntime, the first of tensorrt, onnxruntime, openvino that can run here"


def test_threads_that_would_wait_for_each_other_are_refused() -> None:
    most = usable_processors()
    assert open_backend("onnxruntime", "cpu", {"threads": most}).target().options["threads"] == str(most)
    words = f"--threads {most + 1}: expected at most {most}, .* Give --threads {most}"
    with pytest.raises(TargetError, match=words):
        open_backend("onnxruntime", "cpu", {"threads": most + 1})


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (
            (),
            rf"none can run here \(tensorrt: not installed, {re.escape(install_command('tensorrt'))}; onnxruntime: not",
        ),
        (("tensorrt",), r"tensorrt: installed, but there is no NVIDIA GPU here .*; onnxruntime: not installed, pip"),
    ],
)
def test_what_is_missing_is_named(installed: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *installed, gpu=False)
    with pytest.raises(TargetError, match=says):
        choose_backend("auto")


def test_what_is_declared_is_there() -> None:
    """The extra of a backend in pyproject, and the folder that documents its files."""
    project = (ROOT / "pyproject.toml").read_text()
    for kind in shipped_kinds():
        assert f"\n{kind.extra} = [" in project
        assert kind_named(kind.name) is kind
        assert len({row.option for row in kind.options}) == len(kind.options)
        assert (ROOT / "evaluators" / "backends" / kind.name.replace("-", "_") / "backend.py").is_file()


def test_what_lowering_cannot_write_is_refused_as_a_backend_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written as FP32 without a word."""
    fp4 = object.__new__(Precision)
    vars(fp4).update(_name_="FP4", quantized=True, dtype="float4_e2m1fn")
    for precision, op, says in (
        (Precision.INT8, "Softmax", "INT8 to Softmax, but lowering cannot write codes for the operator Softmax"),
        (fp4, "Conv", "FP4 to Conv, but lowering cannot write codes of the type float4_e2m1fn"),
    ):
        offers = Capability({Precision.FP16: frozenset({"Softmax"}), precision: frozenset({op})})
        monkeypatch.setattr(OnnxRuntimeBackend, "capability", lambda self, offers=offers: offers)
        with pytest.raises(TargetError, match=f"backend onnxruntime: it offers {says}"):
            open_backend("onnxruntime", "cpu", {})


def test_auto_takes_none_whose_numbers_are_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "onnxruntime", gpu=False)
    monkeypatch.setattr("evaluators.backends.registry.shipped_kinds", lambda: [kind_named("fake")])
    with pytest.raises(TargetError, match="none can run here"):
        choose_backend("auto")


def test_a_backend_that_nobody_registered_is_refused_with_those_there_are() -> None:
    with pytest.raises(TargetError, match=r"known are auto, tensorrt, onnxruntime, openvino, .*package\.module:Class"):
        kind_named("coreml")
