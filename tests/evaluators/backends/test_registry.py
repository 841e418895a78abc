"""Which backend `auto` stands for, and what is said where it stands for none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evaluators.backends import registry
from evaluators.cores import usable_processors
from search.errors import TargetError


def machine(monkeypatch: pytest.MonkeyPatch, *installed: str, gpu: bool) -> None:
    """A machine with these packages; a GPU is what TensorRT needs and ONNX Runtime does without."""
    found = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name if name in installed else None))
    monkeypatch.setattr(registry, "importlib", found)
    monkeypatch.setattr(registry, "_has_device", lambda name: gpu or name != "tensorrt")


@pytest.mark.parametrize(
    ("installed", "gpu", "chosen"),
    [
        (("onnxruntime",), False, "onnxruntime"),
        (("onnxruntime", "tensorrt"), False, "onnxruntime"),
        (("onnxruntime", "tensorrt"), True, "tensorrt"),
        (("tensorrt",), True, "tensorrt"),
    ],
)
def test_the_first_with_a_device(
    installed: tuple[str, ...], gpu: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, *installed, gpu=gpu)
    assert registry.resolve("auto") == chosen


def test_threads_that_would_wait_for_each_other_are_refused() -> None:
    most = usable_processors()
    assert registry.open_backend("onnxruntime", "cpu", {"threads": most}).target().options["threads"] == str(most)
    words = f"--threads {most + 1}: expected at most {most}, .* Give --threads {most}"
    with pytest.raises(TargetError, match=words):
        registry.open_backend("onnxruntime", "cpu", {"threads": most + 1})


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ((), "none is installed. Install ONNX Runtime with pip install 'bitfront"),
        (("tensorrt",), "TensorRT is installed, but there is no NVIDIA GPU here .*, and ONNX Runtime is not installed"),
    ],
)
def test_what_is_missing_is_named(installed: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *installed, gpu=False)
    with pytest.raises(TargetError, match=says):
        registry.resolve("auto")
