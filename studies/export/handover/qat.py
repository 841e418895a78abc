"""For quantization-aware training: the numbers of each layer's quantization, for a training program to simulate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from search.graph.user_nodes import UserNode
from studies.export.handover.mix import Handover, Mix, MixGroup, json_text

_RAW = "/raw"  # behind the name of a graph's output, of the tensor that it is read back from


class QatHandover(Handover):
    """`layers` has every weighted layer in topological order, `tensors` every activation that is rounded."""

    name = "qat"

    def files(self, mix: Mix) -> Mapping[str, str]:
        graph = mix.lower()
        nodes = {node.name: node for node in graph}
        tensors = dict(_activation(node) for node in graph if node.op_type == "QuantizeLinear")
        layers = [
            _layer(layer, name, user, nodes[name], mix) for layer in mix.layers for name, user in layer.weighted.items()
        ]
        values = {
            "source": mix.source.to_json(),
            "layers": layers,
            "tensors": tensors,
            "without_counterpart": mix.lost,
        }
        return {"qat.json": json_text(values)}


def _layer(layer: MixGroup, name: str, user: UserNode, node: ir.Node, mix: Mix) -> dict[str, Any]:
    weight, axes = next(((c, axes) for c, axes in zip(user.constants[:2], user.axes, strict=False) if c), (None, None))
    entry: dict[str, Any] = {
        "node": user.name,
        "op": user.op,
        "module": module_name(user.name, weight),
        "weight_name": weight if axes is not None else None,
        "precision": layer.precision.label,
    }
    if not layer.precision.quantized:
        return entry
    sources = [_behind(value) for value in node.inputs[:2]]
    folded = [other.name for other in layer.folded[name] if other.op == "BatchNormalization"]
    return entry | {
        "weight": next((_weight(one, mix.weight_bits, axes) for one in sources if _reads_codes(one)), None),
        "inputs": [_tensor_name(_quantizer(one)) for one in sources if one is not None and not _reads_codes(one)],
        "output": _stored_output(node),
        "folded": folded,
    }


def _weight(node: ir.Node | None, bits: int, axes: tuple[int, ...] | None) -> dict[str, Any]:
    """How a weight is rounded, from the node that reads its codes back.

    Args:
        axes: of the constant in the user's file, in the order in which the op reads them; None if it is not known.
    """
    assert node is not None
    scale = np.atleast_1d(_array(node.inputs[1]))
    along = node.attributes.get("axis")
    axis = None if along is None else along.as_int()
    limit = 2 ** (bits - 1) - 1
    return {
        "bits": bits,
        "granularity": "per_tensor" if axis is None else "per_channel",
        "axis": axis if axis is None or axes is None else axes[axis],
        "symmetric": True,
        "quant_min": -limit,
        "quant_max": limit,
        "scale": scale.tolist(),
        "low": (-limit * scale).tolist(),
        "high": (limit * scale).tolist(),
    }


def _activation(node: ir.Node) -> tuple[str, dict[str, Any]]:
    """Name of the tensor that a node quantizes, and how."""
    scale, zero = float(_array(node.inputs[1])), _array(node.inputs[2])
    limits = np.iinfo(zero.dtype)
    return _tensor_name(node), {
        "bits": 8,
        "granularity": "per_tensor",
        "symmetric": zero.dtype == np.int8,
        "quant_min": int(limits.min),
        "quant_max": int(limits.max),
        "scale": scale,
        "zero_point": int(zero),
        "low": (int(limits.min) - int(zero)) * scale,
        "high": (int(limits.max) - int(zero)) * scale,
    }


def _behind(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that makes a value; None where another op makes it."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _reads_codes(node: ir.Node | None) -> bool:
    """Whether a DequantizeLinear reads constant codes, so those of a weight."""
    return node is not None and node.inputs[0] is not None and node.inputs[0].producer() is None


def _quantizer(node: ir.Node) -> ir.Node:
    """The QuantizeLinear before a DequantizeLinear."""
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert source is not None
    return source


def _stored_output(node: ir.Node) -> str | None:
    """The name of a node's output where it is rounded right behind the node."""
    quantizers = [user for user in node.outputs[0].consumers() if user.op_type == "QuantizeLinear"]
    return _tensor_name(quantizers[0]) if quantizers else None


def _tensor_name(node: ir.Node) -> str:
    """What the user's file calls the tensor that a node quantizes."""
    value = node.inputs[0]
    name = (value.name or "") if value is not None else ""
    return name.removesuffix(_RAW)


def _array(value: ir.Value | None) -> np.ndarray[Any, Any]:
    assert value is not None
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def module_name(node: str, weight: str | None) -> str | None:
    """The PyTorch module that a layer comes from, as far as names tell; None if they do not.

    A weight that the exporter left as it is bears the module's name, `features.0.conv.weight`. Where BatchNorm was
    folded into it, the node's scopes do: `/features/features.0/conv/Conv` is `features.0.conv`.
    """
    if weight is not None and weight.endswith(".weight"):
        return weight.removesuffix(".weight")
    scopes = node.strip("/").split("/")[:-1]
    if not node.startswith("/") or not scopes:
        return None
    parts: list[str] = []
    for scope, before in zip(scopes, ["", *scopes], strict=False):
        parts.append(scope.removeprefix(f"{before}.") if before and scope.startswith(f"{before}.") else scope)
    return ".".join(parts)
