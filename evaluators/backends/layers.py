"""One layer of an engine, in one form for all kinds of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from search.values import Precision


@dataclass(frozen=True)
class Tensor:
    """What a layer reads or writes.

    Attributes:
        type: of its elements, as the file words it: `Int8`, `float32`.
        format: of its memory, as TensorRT words it; empty if the file does not say.
        shape: None if the file does not say.
    """

    name: str
    type: str
    format: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        kind: its type, for example `CaskConvolution` or `QLinearConv`.
        precision: what it computes in; None if it computes nothing, or the file does not tell.
        nodes: names of the ONNX nodes that it came from.
        moves: whether it only moves data or changes their type.
        weighted: whether it multiplies by weights, which is what INT8 is for.
        attributes: kernel, stride, padding, activation, weight type, bias type, sparsity, tactic: what the file tells.
        macs: multiplications and additions of one inference; None if unknown.
        ms: time of one inference; None if no profile was given.
        why_not_int8: why it is not in INT8, in a sentence; empty if it is, or where it computes nothing.
    """

    name: str
    kind: str
    precision: Precision | None
    nodes: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    moves: bool = False
    weighted: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    macs: int | None = None
    ms: float | None = None
    why_not_int8: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "precision": None if self.precision is None else self.precision.label}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layer:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not give."""
        label = data["precision"]
        tensors = {side: tuple(_tensor(tensor) for tensor in data[side]) for side in ("inputs", "outputs")}
        precision = None if label is None else Precision.parse(label)
        return cls(**{**data, **tensors, "nodes": tuple(data["nodes"]), "precision": precision})


def _tensor(data: Mapping[str, Any]) -> Tensor:
    shape = data["shape"]
    return Tensor(**{**data, "shape": None if shape is None else tuple(shape)})


@dataclass(frozen=True)
class EngineFile:
    """A whole file.

    Attributes:
        kind: what was read, for example `TensorRT plan` or `ONNX with Q/DQ`.
        layers: in the order in which they run, as far as the file tells.
        notes: what the file does not tell, one sentence each.
    """

    path: str
    kind: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What an export keeps of it in `layers.json`."""
        layers = [layer.to_json() for layer in self.layers]
        return {"kind": self.kind, "notes": list(self.notes), "layers": layers}

    @classmethod
    def from_json(cls, path: str, data: Mapping[str, Any]) -> EngineFile:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not give."""
        layers = tuple(Layer.from_json(layer) for layer in data["layers"])
        return cls(path, str(data["kind"]), layers, tuple(map(str, data["notes"])))
