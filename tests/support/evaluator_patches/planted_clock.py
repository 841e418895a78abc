"""Inferences on ONNX Runtime take as long as their file says, not as long as a busy machine needs.

What a search stores, its front and its picks are the same each time then, on every machine. `BITFRONT_TEST_REAL_CLOCK`
leaves times as they are, for tests of measuring itself. On the wall they take as long, `BITFRONT_TEST_BUSY` as a
factor as long; nothing waits for that. `BITFRONT_TEST_EVER_SLOWER`: every engine takes a tenth longer
than the one that was loaded before it.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.session import OnnxRuntimeSession
from evaluators.measure import blocks
from search.graph import packed_file

BASE_MS, MS_PER_BYTE, MS_PER_NODE = 0.1, 1e-5, 1e-4  # narrow weights are quicker; quantizing and casting takes time
LOADED = itertools.count()
load, real_time, real_block = OnnxRuntimeSession.__init__, OnnxRuntimeSession.time, blocks.time_block


def load_planted(
    session: OnnxRuntimeSession, device: Any, model: Path | bytes, options: Any, counts_memory: bool = False
) -> None:
    load(session, device, model, options, counts_memory)
    growth = 1.1 ** next(LOADED) if "BITFRONT_TEST_EVER_SLOWER" in os.environ else 1.0
    session.planted_ms = planted_ms(model) / device.threads * growth  # type: ignore[attr-defined]


def planted_ms(model: Path | bytes) -> float:
    """The milliseconds that one inference of a model is made to take."""
    packed = None if isinstance(model, bytes) else packed_file.read_message(model)
    proto = packed or onnx.load_from_string(model if isinstance(model, bytes) else model.read_bytes())
    weights = sum(_size(tensor) for tensor in proto.graph.initializer)
    return BASE_MS + MS_PER_BYTE * weights + MS_PER_NODE * len(proto.graph.node)


def _size(tensor: onnx.TensorProto) -> int:
    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def planted_time(session: OnnxRuntimeSession, count: int) -> NDArray[np.float64]:
    if "BITFRONT_TEST_REAL_CLOCK" in os.environ:
        return real_time(session, count)
    return np.full(count, session.planted_ms)  # type: ignore[attr-defined]


def planted_block(session: Any, count: int) -> blocks.InferenceBlock:
    block = real_block(session, count)
    if "BITFRONT_TEST_REAL_CLOCK" in os.environ:
        return block
    return replace(block, wall_ms=block.total_ms * float(os.environ.get("BITFRONT_TEST_BUSY", "1")))


blocks.time_block = planted_block
OnnxRuntimeSession.__init__ = load_planted  # type: ignore[method-assign]
OnnxRuntimeSession.time = planted_time  # type: ignore[method-assign]
