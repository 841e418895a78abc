"""Detecting the kind of an engine file, and reading it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

from evaluators.backends.kind import BackendKind
from evaluators.backends.layers import EngineFile
from evaluators.backends.registry import BACKENDS, kind_named, kind_of_file
from evaluators.engine_files import onnx_layers, tensorrt_layers
from evaluators.engine_files.exported import LAYERS
from search.errors import InputError
from search.graph.sizes import check_growth

_PLAN = b"ftrt"
_KINDS = "a TensorRT plan, a layer listing of trtexec (--exportLayerInfo), an ONNX file, or an exported folder"

InspectPlan = Callable[[Path], str]


def read_engine_file(path: Path, *, profile: Path | None = None, inspect_plan: InspectPlan) -> EngineFile:
    """Read an engine file of any kind.

    Args:
        path: of the file, or of a folder that `bitfront export` wrote.
        profile: times by layer, as `trtexec --exportProfile` writes them; None for none.
        inspect_plan: gives the inspector's JSON of a plan, for which TensorRT and its GPU are needed.

    Raises:
        InputError: the file is missing, none of the kinds that can be read, or holds names only.
        BitfrontError: as `inspect_plan` raises.
    """
    if path.is_dir():
        path = _layers_of_export(path)
    engine = _read(path, _head(path), inspect_plan)
    return engine if profile is None else _with_times(engine, profile)


def onnx_kind(path: Path) -> str:
    """What kind of ONNX file it is, as its ops alone tell; empty for another file, or one that cannot be read."""
    owner = kind_of_file(path)
    try:
        nodes = onnx.load(str(path), load_external_data=False).graph.node
    except Exception:  # whoever reads it says what is wrong
        return ""
    shipped = owner is None or owner.name in BACKENDS.shipped
    return onnx_layers.kind_of({node.op_type for node in nodes}) if shipped and nodes else ""


def read_engine_built_here(path: Path, kind: str) -> EngineFile:
    """Read what a builder wrote of an engine's layers, see `Builder.write_layers`.

    Args:
        kind: what the engine is to be called.
    """
    if _head(path).lstrip()[:1] == b"{":
        return replace(_read_json(path, _text(path)), kind=kind)
    proto = onnx.load(str(path), load_external_data=False)
    return EngineFile(str(path), kind, onnx_layers.read_running_layers(proto))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise InputError(f"inspecting {path}: {error.strerror or error}. Expected {_KINDS}.") from error


def _layers_of_export(folder: Path) -> Path:
    layers = folder / LAYERS
    if not layers.is_file():
        raise InputError(
            f"inspecting {folder}: expected a folder that `bitfront export` wrote, with {LAYERS} in it. Name the "
            "engine's file itself."
        )
    return layers


def _read(path: Path, head: bytes, inspect_plan: InspectPlan) -> EngineFile:
    if not head:
        raise InputError(f"inspecting {path}: expected {_KINDS}; the file is empty. Write it again.")
    if head.startswith(_PLAN) or path.suffix in kind_named("tensorrt").engine_suffixes:
        return _read_listing(path, inspect_plan(path), "TensorRT plan")
    owner = kind_of_file(path)
    if owner is not None and type(owner).read_engine is not BackendKind.read_engine:
        return owner.read_engine(path)
    if head.lstrip()[:1] in (b"{", b"["):
        return _read_json(path, _text(path))
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise InputError(f"inspecting {path}: expected {_KINDS}; it is none of them ({error}).") from error
    if not proto.graph.node:
        raise InputError(f"inspecting {path}: expected {_KINDS}; it is an ONNX file without nodes, or damaged.")
    check_growth(proto, path)
    try:
        kind, layers = onnx_layers.read_layers(proto)
    except Exception as error:  # of a file that is damaged, ONNX's own tools raise anything
        raise InputError(
            f"inspecting {path}: it is an ONNX file, but its contents are inconsistent: {type(error).__name__}: "
            f"{error}. Export it again."
        ) from error
    note = "precisions are what the file asks for: an engine built from it may run layers in another one"
    return EngineFile(str(path), kind, layers, () if kind == "ONNX with INT8 kernels" else (note,))


def _read_json(path: Path, text: str) -> EngineFile:
    """The layers of an export, or those that TensorRT tells."""
    data = json.loads(text, strict=False)
    if not isinstance(data, dict) or "layers" not in data:
        return _read_listing(path, text, "layers of a TensorRT engine")
    try:
        return EngineFile.from_json(str(path), data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"inspecting {path}: expected the layers that `bitfront export` writes, but they cannot be read: "
            f"{type(error).__name__}: {error}. Export again."
        ) from error


def _read_listing(path: Path, text: str, kind: str) -> EngineFile:
    try:
        layers = tensorrt_layers.read_layers(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"inspecting {path}: as detailed layer information of a TensorRT engine it cannot be read: {error}. Build "
            "the engine with --profilingVerbosity=detailed, and export with --exportLayerInfo."
        ) from error
    hidden = sum(layer.precision is None and not layer.moves for layer in layers)
    note = f"of {hidden} layers the precision is not told: they are fused regions, or compute no floats"
    return EngineFile(str(path), kind, layers, (note,) if hidden else ())


def _with_times(engine: EngineFile, profile: Path) -> EngineFile:
    try:
        times = tensorrt_layers.read_times(_text(profile))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"reading the profile {profile}: {error}.") from error
    layers = tuple(replace(layer, ms=times.get(layer.name)) for layer in engine.layers)
    unknown = times.keys() - {layer.name for layer in layers}
    if len(unknown) == len(times):
        raise InputError(
            f"reading the profile {profile}: none of its layers is in {engine.path}. Is it of that engine?"
        )
    note = f"{len(unknown)} layers of the profile are not in the engine, {min(unknown)!r} first" if unknown else ""
    return replace(engine, layers=layers, notes=(*engine.notes, *([note] if note else [])))


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text, strict=False)
    except OSError as error:
        raise InputError(f"reading {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"reading {path}: expected JSON, as trtexec writes it, got {error}.") from error
    return text
