"""The float model and the mix of an exported folder with the outputs of their groups, in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulated, Emulator
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import TENSORRT_BY_TYPING, Placement
from search.graph.model import Model, ShapeRequest, load
from search.values import Assignment, Precision, Ranges, TensorRange
from studies.guard.agreement import Arrays
from studies.guard.options import GuardError

Run = Callable[[Arrays], Arrays]


def open_emulation(folder: Path, threads: int) -> tuple[Run, Run, dict[str, TensorRange]]:
    """Two runs, from inputs to the outputs of the groups by name, and the ranges of these outputs and of the inputs.

    A group is called by its first node, and so is its output.

    Args:
        folder: that `bitfront export` wrote.

    Raises:
        GuardError: it is no such folder, or its files do not belong together.
        BitfrontError: ONNX Runtime is not installed, or refuses the model.
    """
    manifest, ranges = _read(folder)
    model = load(folder / "model.float.onnx", shapes=_shapes(manifest))
    assignment = _assignment(folder, manifest, model)
    backend = OnnxRuntimeBackend("cpu", threads=threads)
    placement = _placement(manifest, backend)
    emulator = Emulator(backend, placement)
    lowered = spelled_out(expose_groups(lower(model, assignment, ranges, placement), model))
    exact = emulator.open(expose_groups(model.graph, model))
    names = {group.id: group.name for group in model.groups}
    return _run(exact, names, model), _run(emulator.open(lowered), names, model), _known_ranges(model, ranges)


def _placement(manifest: Mapping[str, Any], backend: OnnxRuntimeBackend) -> Placement:
    """How the engine's INT8 is written for ONNX Runtime."""
    target = manifest["target"]
    if target["backend"] != "tensorrt":
        return backend.placement
    return TENSORRT_BY_TYPING[target.get("options", {}).get("typing", "weak")]


def _read(folder: Path) -> tuple[dict[str, Any], Ranges]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        for key in ("precision", "target", "model"):
            manifest[key]
        return dict(manifest), Ranges.from_json(json.loads((folder / "ranges.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GuardError(
            f"emulating the engine in {folder}: expected a folder that `bitfront export` wrote, but it cannot be used: "
            f"{type(error).__name__}: {error}."
        ) from error


def _shapes(manifest: Mapping[str, Any]) -> dict[str, ShapeRequest]:
    """The shapes that the study measured at, for inputs that are dynamic in the file."""
    shapes = ((name, tuple(shape)) for name, _, shape in manifest["model"].get("inputs", ()))
    return {name: ShapeRequest(shape, shape, shape) for name, shape in shapes}


def _assignment(folder: Path, manifest: Mapping[str, Any], model: Model) -> Assignment:
    try:
        labels = {group.id: manifest["precision"][group.anchors[0]] for group in model.groups}
        return Assignment({group: Precision.parse(label) for group, label in labels.items()})
    except (KeyError, ValueError) as error:
        raise GuardError(
            f"emulating the engine in {folder}: expected its manifest to tell the precision of every group of "
            f"model.float.onnx, got {type(error).__name__}: {error}. Export again."
        ) from error


def _run(session: Emulated, names: Mapping[str, str], model: Model) -> Run:
    inputs = tuple(spec.name for spec in model.inputs)

    def run(arrays: Arrays) -> Arrays:
        missing = [name for name in inputs if name not in arrays]
        if missing:
            raise GuardError(f"emulating a request: expected the inputs {', '.join(inputs)}; {missing[0]} is missing.")
        return {names[group]: array for group, array in session.run({name: arrays[name] for name in inputs}).items()}

    return run


def _known_ranges(model: Model, ranges: Ranges) -> dict[str, TensorRange]:
    tensors = {spec.name: spec.name for spec in model.inputs} | {group.name: group.output for group in model.groups}
    return {name: ranges.tensors[tensor] for name, tensor in tensors.items() if tensor in ranges.tensors}
