"""The layers of any engine file: TensorRT plans, layer listings of trtexec, and quantized ONNX files.

Needs the file alone: no study, no data, and no model unless precisions shall be explained by it.
"""

from __future__ import annotations

from evaluators.backends.layers import EngineFile, Layer, Tensor
from evaluators.engine_files.exported import KnownGroup, with_profile, write_layers
from evaluators.engine_files.onnx_layers import FLOAT_ONNX
from evaluators.engine_files.reading import onnx_kind, read_engine_built_here, read_engine_file

__all__ = [
    "FLOAT_ONNX",
    "EngineFile",
    "KnownGroup",
    "Layer",
    "Tensor",
    "onnx_kind",
    "read_engine_built_here",
    "read_engine_file",
    "with_profile",
    "write_layers",
]
