"""The precisions that NVIDIA GPUs compute natively, by compute capability.

The tables are those of TensorRT's support matrix ("Hardware and Precision") and of the CUDA programming guide.
"""

from __future__ import annotations

_HALF_WITHOUT_TENSOR_CORES = ((5, 3), (6, 0), (6, 2))
_INT8_WITHOUT_TENSOR_CORES = ((6, 1), (7, 0))


def fp16_text(version: tuple[int, int]) -> str:
    if version >= (7, 0):
        return "fp16 on tensor cores"
    return "fp16 without tensor cores" if has_fp16(version) else "no native fp16"


def int8_text(version: tuple[int, int]) -> str:
    if version >= (7, 2):
        return "int8 on tensor cores"
    return "int8 without tensor cores" if has_int8(version) else "no native int8"


def has_fp16(version: tuple[int, int]) -> bool:
    """Whether FP16 is quicker than FP32, by tensor cores or without."""
    return version >= (7, 0) or version in _HALF_WITHOUT_TENSOR_CORES


def has_int8(version: tuple[int, int]) -> bool:
    """Whether there are instructions for INT8 products, of tensor cores or without."""
    return version >= (7, 2) or version in _INT8_WITHOUT_TENSOR_CORES
