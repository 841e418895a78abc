"""Ops that ONNX Runtime's optimizer writes where ONNX's own tools do not expect them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from search.errors import ModelError
from search.graph.fused.node_parts import MICROSOFT
from search.graph.opset_upgrade import nodes

NORM_OPSET = 17  # the first that has LayerNormalization
# ONNX Runtime has these in the domain of ONNX, in every opset.
OWN_IN_ONNX = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
_FOR_ONE_PROCESSOR = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


@contextmanager
def set_own_ops_apart(proto: onnx.ModelProto) -> Iterator[None]:
    """Meanwhile, what ONNX Runtime alone has in the domain of ONNX is in its own one, where ONNX's tools let it be.

    Its optimizer writes LayerNormalization into files of opset 13, and SimplifiedLayerNormalization into all.
    """
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    own_nodes = [
        node for node in nodes(proto.graph) if node.domain in ("", "ai.onnx") and is_own(node.op_type, version)
    ]
    if own_nodes and all(each.domain != MICROSOFT for each in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    for node in own_nodes:
        node.domain = MICROSOFT
    try:
        yield
    finally:
        put_own_ops_back(proto)


def put_own_ops_back(proto: onnx.ModelProto) -> None:
    """Undo what `set_own_ops_apart` did, in a model that was made of one meanwhile."""
    for node in nodes(proto.graph):
        if node.domain == MICROSOFT and node.op_type in OWN_IN_ONNX:
            node.domain = ""


def is_own(op: str, opset: int) -> bool:
    """Whether an op of ONNX's domain is one of ONNX Runtime alone in an opset."""
    return op in OWN_IN_ONNX and not (op == "LayerNormalization" and opset >= NORM_OPSET)


def refuse_layouts(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse a file in the layout of one kind of processor, which no other tool reads.

    Raises:
        ModelError: naming a node and which file to give.
    """
    layout_node = next((node for node in nodes(proto.graph) if node.domain in _FOR_ONE_PROCESSOR), None)
    if layout_node is not None:
        raise ModelError(
            f"loading {path}: ONNX Runtime's optimizer has rewritten this file for one kind of processor: node "
            f"{layout_node.name or layout_node.output[0]!r} is a {layout_node.op_type} of the domain "
            f"{layout_node.domain}. Give the file that it was made of, or save it again at the level "
            "ORT_ENABLE_EXTENDED."
        )
