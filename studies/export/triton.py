"""The entry of an exported engine in a model repository of the Triton Inference Server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluators.backends.registry import kind_named
from search.errors import ConfigError
from search.graph.model import Model
from search.graph.shapes import TensorSpec

_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def check_triton_name(name: str) -> None:
    """Refuse what is no name of a folder and of a model.

    Raises:
        ConfigError: saying which characters it may have.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", name):
        raise ConfigError(
            f"--triton: expected a model name of letters, digits, _, . and -, got {name!r}; write it like resnet18"
        )


def check_triton_platform(backend: str) -> None:
    """Refuse a backend whose engines Triton cannot run.

    Raises:
        ConfigError: naming it.
    """
    if not kind_named(backend).triton_platform:
        raise ConfigError(f"--triton: Triton does not run engines of backend {backend}; export without --triton.")


def triton_config(name: str, platform: str, model: Model, types: Mapping[str, str], *, gpu: bool) -> str:
    """`config.pbtxt` of an engine. Its batch is one of its dimensions, so Triton itself batches nothing.

    Args:
        name: of the model in Triton.
        platform: what Triton calls such engines.
        types: tensor → numpy's name of its type in the engine; the model's where it is not named.
        gpu: where it runs.

    Raises:
        ConfigError: an input or output has a type that Triton does not know.
    """
    lines = [
        f"name: {json.dumps(name)}",
        f"platform: {json.dumps(platform)}",
        "max_batch_size: 0",
        *_tensors(
            "input", _set_types(model.inputs, types), {name: _input_dims(model, name) for name in model.profiles}
        ),
        *_tensors("output", _set_types(model.outputs, types), _output_dims(model)),
        f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if gpu else 'KIND_CPU'} }} ]",
    ]
    return "\n".join(lines) + "\n"


def _set_types(specs: Sequence[TensorSpec], types: Mapping[str, str]) -> list[TensorSpec]:
    return [replace(spec, dtype=types.get(spec.name, spec.dtype)) for spec in specs]


def _tensors(kind: str, specs: Sequence[TensorSpec], dynamic: Mapping[str, Sequence[int]]) -> list[str]:
    lines = [f"{kind} ["]
    for number, spec in enumerate(specs):
        dims = list(dynamic.get(spec.name, spec.shape))
        # Triton knows no tensor without dimensions: it is one of one element to clients.
        shape = f"dims: [ {', '.join(map(str, dims))} ]" if dims else "dims: [ 1 ] reshape: { shape: [ ] }"
        comma = "," if number + 1 < len(specs) else ""
        lines.append(f"  {{ name: {_quote(spec.name)} data_type: {_triton_type(spec)} {shape} }}{comma}")
    return [*lines, "]"]


def _triton_type(spec: TensorSpec) -> str:
    try:
        return _TYPES[spec.dtype]
    except KeyError:
        raise ConfigError(
            f"--triton: {spec.name} is of type {spec.dtype}, which Triton does not know; export without --triton."
        ) from None


def _quote(text: str) -> str:
    """A string of protobuf's text format, whose escapes are C's: those that JSON writes without \\u are the same."""
    return json.dumps(text, ensure_ascii=False)


def _input_dims(model: Model, name: str) -> list[int]:
    low, _, high = model.profiles[name]
    return [-1 if least != most else most for least, most in zip(low, high, strict=True)]


def _output_dims(model: Model) -> dict[str, list[int]]:
    """Dimensions of outputs, -1 for those that depend on a dynamic input."""
    if not model.profiles:
        return {}
    shapes = {value.name: value.shape for value in model.graph.graph.outputs}
    return {
        spec.name: [size if isinstance(size, int) else -1 for size in shapes[spec.name] or [None] * len(spec.shape)]
        for spec in model.outputs
    }
