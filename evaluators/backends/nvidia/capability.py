"""The precisions that NVIDIA GPUs compute natively, by compute capability.

The table is that of TensorRT's support matrix ("Hardware and Precision") and of the CUDA programming guide.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Version = tuple[int, int]
# By label: the first version with tensor cores for it, and those without that have instructions for its products.
_NATIVE: Mapping[str, tuple[Version, Collection[Version]]] = {
    "fp16": ((7, 0), ((5, 3), (6, 0), (6, 2))),
    "int8": ((7, 2), ((6, 1), (7, 0))),
}


def is_native(label: str, version: Version) -> bool:
    """Whether a precision is quicker than FP32, by tensor cores or without."""
    tensor_cores, others = _NATIVE[label]
    return version >= tensor_cores or version in others


def native_texts(version: Version) -> list[str]:
    """`fp16 on tensor cores`, `no native int8`: a text for each precision."""
    return [_text(label, version) for label in _NATIVE]


def _text(label: str, version: Version) -> str:
    if version >= _NATIVE[label][0]:
        return f"{label} on tensor cores"
    return f"{label} without tensor cores" if is_native(label, version) else f"no native {label}"
