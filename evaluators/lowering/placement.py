"""Where a target needs Q/DQ, and which tensors of an assignment become INT8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from search.values import REFERENCE, Precision

# Ops that only move or select values: where Q/DQ are written, output and input share one scale, so that engines can
# drop the Q/DQ pair between them.
SAME_SCALE = frozenset(
    {"DepthToSpace", "Flatten", "MaxPool", "Reshape", "Resize", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)
# Ops whose further inputs stay what they are, say the scales of a Resize.
DATA_ONLY = frozenset({"Resize", "Upsample"})
# Ops outside all groups that lose nothing in a narrow float type when their inputs and outputs fit; others, as sums
# over an axis, stay FP32.
NARROW_SAFE = SAME_SCALE | frozenset(
    "Add AveragePool Clip Concat Div Elu Expand Gather Gelu GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish "
    "LeakyRelu Max Min Mish Mul Neg PRelu Pad ReduceMax Relu Sigmoid Slice Split Sub Tanh Tile Where".split()
)


@dataclass(frozen=True)
class Placement:
    """How a target wants precision written into an ONNX graph.

    Attributes:
        name: part of an evaluation's digest.
        symmetric: activations with the zero point in the middle of their codes; otherwise anywhere in UINT8.
        quantize_outputs: Q/DQ also behind INT8 ops, Adds and `followers`, because the engine fuses
            only `DQ → op → Q`.
        followers: op types that stay INT8 between INT8 groups when `quantize_outputs`.
        float_output: weighted op types that are INT8 even without a Q behind them.
        int32_bias: biases quantized too (ONNX Runtime); otherwise float (TensorRT).
        shared_concat: all inputs of a Concat take its output's scale.
        shared_resize: what a Resize reads and makes has one scale, because the engine's Resize hands on codes.
        before_activations: an INT8 convolution hands on INT8 to an activation that is computed in a kernel of its own:
            a SiLU or the like with the residual Add behind it, a PRelu, and most activations of a depthwise
            convolution and of one that reads few channels.
        between_groups: ops outside all groups, between INT8 convolutions and INT8 groups, read and make INT8.
        stored_outputs: what an INT8 convolution hands on is INT8 in memory, whoever reads it, if it leads to a group.
        narrow: op types outside all groups that compute in the narrow float type of what they read.
        float_side: what quantized groups compute in where they compute in floats, if it holds their values.
        weight_bits: width of the codes of weights.
        pair_limit: of the sum of two codes of a weight, where the kernel adds their products in 16 bits; see
            `weight_pairs`. None for kernels that do not.
        middle_of_uint8: symmetric activations are UINT8 around 128, and not INT8 around 0, which is the same numbers.
    """

    name: str
    symmetric: bool
    quantize_outputs: bool
    int32_bias: bool
    narrow: frozenset[str] = NARROW_SAFE
    float_side: Precision = REFERENCE
    shared_concat: bool = False
    shared_resize: bool = False
    before_activations: bool = False
    between_groups: bool = False
    stored_outputs: bool = False
    followers: frozenset[str] = frozenset()
    float_output: frozenset[str] = frozenset()
    weight_bits: int = 8
    pair_limit: int | None = None
    middle_of_uint8: bool = False

    @property
    def is_signed(self) -> bool:
        """Whether activations are INT8, and not UINT8."""
        return self.symmetric and not self.middle_of_uint8

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for a process that lowers for a target it does not have."""
        values = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(self).items()}
        return {**values, "float_side": self.float_side.label}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {name: frozenset(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**{**values, "float_side": Precision.parse(data["float_side"])})


ONNXRUNTIME_CPU = Placement(
    name="onnxruntime-cpu-u8s8",
    symmetric=False,
    quantize_outputs=True,
    int32_bias=True,
    followers=SAME_SCALE
    | frozenset("Add AveragePool Concat GlobalAveragePool HardSigmoid HardSwish LeakyRelu Mul Sigmoid".split()),
    float_output=frozenset({"Gemm", "MatMul"}),
)
# ONNX Runtime rewrites most INT8 activations as UINT8, and runs in float what it then finds between both.
ONNXRUNTIME_CPU_SYMMETRIC = replace(
    ONNXRUNTIME_CPU, name="onnxruntime-cpu-u8s8-symmetric", symmetric=True, middle_of_uint8=True
)
PAIR_LIMIT = 128  # 128 · 255 fits into 16 bits with a sign
# Without INT8 kernels: casts are written, and weights alone in blocks beside FP16. Its Softmax and LayerNormalization
# sum in FP32 whatever they read; without Casts around them encoders took 0.83 to 0.87 of the time on an H200.
ONNXRUNTIME_CUDA = Placement(
    name="onnxruntime-cuda",
    symmetric=True,
    quantize_outputs=False,
    int32_bias=False,
    narrow=NARROW_SAFE | {"LayerNormalization", "Softmax"},
    float_side=Precision.FP16,
)
TENSORRT = Placement(
    name="tensorrt-s8s8",
    symmetric=True,
    quantize_outputs=False,
    int32_bias=False,
    float_side=Precision.FP16,
    shared_concat=True,
)
# With precisions set on layers: what engines of 8.6.0 on an H100 and an H200 did.
TENSORRT_WEAK = replace(
    TENSORRT, name="tensorrt-weak-s8s8", before_activations=True, between_groups=True, shared_resize=True
)
# What weakly typed engines round, written out: 59 of 60 INT8 convolutions of three mixes on 8.6.0 wrote INT8.
TENSORRT_TWIN = replace(TENSORRT_WEAK, name="tensorrt-twin-s8s8", stored_outputs=True)
TENSORRT_BY_TYPING = {"weak": TENSORRT_WEAK, "strong": TENSORRT}
