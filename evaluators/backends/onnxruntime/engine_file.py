"""Opening any ONNX file as an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.onnxruntime.session import open_session
from evaluators.engine import OpenEngine
from search.errors import ModelError
from search.graph.model import TensorSpec

# numpy's names of the types that ONNX Runtime calls otherwise; `tensor(int64)` and the like are called alike.
_NUMPY: Mapping[str, str] = {"float": "float32", "double": "float64"}


def open_engine_file(device: OnnxRuntimeDevice, path: Path, batch: int | None) -> OpenEngine:
    """Open an ONNX file with all optimizations, as engines are measured.

    Args:
        batch: leading dimension of inputs that leave it open.

    Raises:
        ModelError: an input is no tensor, or leaves a dimension open.
        RefusedError: ONNX Runtime cannot load the file.
    """
    session = open_session(device, path, device.session_options())
    return OpenEngine(session, tuple(_read_input(each, path, batch) for each in session.session.get_inputs()))


def _read_input(found: Any, path: Path, batch: int | None) -> TensorSpec:
    kind = found.type.removeprefix("tensor(").removesuffix(")")
    if not found.shape or kind == found.type:
        raise ModelError(
            f"opening {path}: expected tensors with a batch axis, but input {found.name!r} is a {found.type} of shape "
            f"{found.shape}. Export the model with the samples along the first axis."
        )
    shape = [batch if place == 0 and not isinstance(dim, int) else dim for place, dim in enumerate(found.shape)]
    known = tuple(dim for dim in shape if isinstance(dim, int) and dim > 0)
    if len(known) < len(shape):
        shown = "x".join(str(dim) for dim in found.shape)
        fix = "Give --batch." if all(isinstance(dim, int) for dim in shape[1:]) else "Export it with fixed sizes."
        raise ModelError(f"opening {path}: input {found.name!r} has the dynamic shape {shown}. {fix}")
    return TensorSpec(found.name, _NUMPY.get(kind, kind), known)
