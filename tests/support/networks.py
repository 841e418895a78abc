"""Small real networks for tests, built in code with seeded random weights."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from search.graph.model import Model, load
from search.values import Ranges, TensorRange


class Net:
    """Writes nodes one after another; every method returns the name of the tensor it makes."""

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def const(self, name: str, value: NDArray[np.generic]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def random(self, name: str, *shape: int, fan_in: int) -> str:
        return self.const(name, (self.rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32))

    def conv(self, x: str, name: str, cin: int, cout: int, k: int = 3, *, stride: int = 1, group: int = 1) -> str:
        weight = self.random(f"{name}.w", cout, cin // group, k, k, fan_in=cin // group * k * k)
        bias = self.const(f"{name}.b", self.rng.uniform(-0.1, 0.1, cout).astype(np.float32))
        pads = [k // 2] * 4
        return self.op(
            "Conv", [x, weight, bias], name, kernel_shape=[k, k], strides=[stride] * 2, pads=pads, group=group
        )

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        draw = self.rng.uniform
        parts = [
            draw(0.5, 1.5, channels),
            draw(-0.2, 0.2, channels),
            draw(-0.2, 0.2, channels),
            draw(0.5, 1.5, channels),
        ]
        names = [self.const(f"{name}.{i}", part.astype(np.float32)) for i, part in enumerate(parts)]
        return self.op("BatchNormalization", [x, *names], name)

    def clip6(self, x: str, name: str) -> str:
        low = self.const(f"{name}.low", np.float32(0))
        return self.op("Clip", [x, low, self.const(f"{name}.high", np.float32(6))], name)

    def gemm(self, x: str, name: str, cin: int, cout: int) -> str:
        weight = self.random(f"{name}.w", cout, cin, fan_in=cin)
        bias = self.const(f"{name}.b", self.rng.uniform(-0.1, 0.1, cout).astype(np.float32))
        return self.op("Gemm", [x, weight, bias], name, transB=1)

    def linear(self, x: str, name: str, cin: int, cout: int) -> str:
        weight = self.random(f"{name}.w", cin, cout, fan_in=cin)
        bias = self.const(f"{name}.b", self.rng.uniform(-0.1, 0.1, cout).astype(np.float32))
        return self.op("Add", [self.op("MatMul", [x, weight], name), bias], f"{name}/bias")

    def head(self, x: str, cin: int, classes: int = 10) -> str:
        pooled = self.op("GlobalAveragePool", [x], "pool")
        return self.gemm(self.op("Flatten", [pooled], "flatten"), "fc", cin, classes)

    def model(self, shape: list[int | str], output: str, out_shape: list[int | str]) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
        self.nodes[-1].output[0] = output
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, out_shape)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def residual_cnn(seed: int = 0, batch: int | str = 4, channels: int = 16, opset: int = 17) -> onnx.ModelProto:
    """ResNet-style: stem, an identity block, a down-sampling block, BatchNorm unfused, Gemm head."""
    n = Net(seed, opset)
    c = channels
    x = n.op("Relu", [n.batch_norm(n.conv("image", "stem", 3, c), "stem/bn", c)], "stem/relu")
    x = n.op("MaxPool", [x], "maxpool", kernel_shape=[2, 2], strides=[2, 2])
    y = n.op("Relu", [n.conv(x, "block.0/conv1", c, c)], "block.0/relu1")
    y = n.batch_norm(n.conv(y, "block.0/conv2", c, c), "block.0/bn2", c)
    x = n.op("Relu", [n.op("Add", [y, x], "block.0/add")], "block.0/relu2")
    y = n.op("Relu", [n.conv(x, "block.1/conv1", c, 2 * c, stride=2)], "block.1/relu1")
    y = n.conv(y, "block.1/conv2", 2 * c, 2 * c)
    down = n.conv(x, "block.1/down", c, 2 * c, 1, stride=2)
    x = n.op("Relu", [n.op("Add", [y, down], "block.1/add")], "block.1/relu2")
    n.head(x, 2 * c)
    return n.model([batch, 3, 16, 16], "logits", [batch, 10])


def mobile_cnn(seed: int = 1, batch: int | str = 4) -> onnx.ModelProto:
    """MobileNet-style: ReLU6 as Clip, depthwise convolutions, linear bottlenecks with residual Adds."""
    n = Net(seed)
    x = n.clip6(n.conv("image", "stem", 3, 16, stride=2), "stem/act")
    for i in range(2):
        y = n.clip6(n.conv(x, f"mb.{i}/expand", 16, 48, 1), f"mb.{i}/act1")
        y = n.clip6(n.conv(y, f"mb.{i}/depthwise", 48, 48, group=48), f"mb.{i}/act2")
        x = n.op("Add", [x, n.conv(y, f"mb.{i}/project", 48, 16, 1)], f"mb.{i}/add")
    n.head(x, 16)
    return n.model([batch, 3, 16, 16], "logits", [batch, 10])


def unet(seed: int = 2, batch: int | str = 2) -> onnx.ModelProto:
    """U-Net-style: down, up by ConvTranspose and by Resize, concatenated skips, per-pixel classes."""
    n = Net(seed)
    a = n.op("Relu", [n.conv("image", "enc1", 3, 16)], "enc1/relu")
    b = n.op(
        "Relu", [n.conv(n.op("MaxPool", [a], "p1", kernel_shape=[2, 2], strides=[2, 2]), "enc2", 16, 32)], "enc2/relu"
    )
    c = n.op(
        "Relu", [n.conv(n.op("MaxPool", [b], "p2", kernel_shape=[2, 2], strides=[2, 2]), "mid", 32, 32)], "mid/relu"
    )
    weight = n.random("up2.w", 32, 32, 2, 2, fan_in=32)
    up = n.op("ConvTranspose", [c, weight], "up2", kernel_shape=[2, 2], strides=[2, 2])
    d = n.op("Relu", [n.conv(n.op("Concat", [up, b], "cat2", axis=1), "dec2", 64, 16)], "dec2/relu")
    scales = n.const("scales", np.array([1, 1, 2, 2], np.float32))
    up = n.op(
        "Resize",
        [d, "", scales],
        "up1",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    e = n.op("Relu", [n.conv(n.op("Concat", [up, a], "cat1", axis=1), "dec1", 32, 16)], "dec1/relu")
    n.conv(e, "classes", 16, 4, 1)
    return n.model([batch, 3, 16, 16], "mask", [batch, 4, 16, 16])


def transformer(seed: int = 3, batch: int | str = 4, blocks: int = 2, *, masked: bool = False) -> onnx.ModelProto:
    """ViT-style encoder: patch convolution, LayerNorm, attention by MatMul, GELU by Erf, mean pooling, Gemm head.

    `masked`: tokens see those before them alone, and rows that would see none are zero, as exported SDPA writes it.
    """
    n, d, heads, tokens = Net(seed), 32, 2, 16
    x = n.conv("image", "patch", 3, d, 4, stride=4)
    n.nodes[-1].ClearField("attribute")
    n.nodes[-1].attribute.extend(
        [helper.make_attribute("kernel_shape", [4, 4]), helper.make_attribute("strides", [4, 4])]
    )
    x = n.op("Reshape", [x, n.const("flat", np.array([0, d, tokens], np.int64))], "tokens")
    x = n.op("Transpose", [x], "tokens/t", perm=[0, 2, 1])
    split = n.const("split", np.array([0, tokens, heads, d // heads], np.int64))
    join = n.const("join", np.array([0, tokens, d], np.int64))
    for i in range(blocks):
        x = _attention(n, x, f"layer.{i}/attn", d, heads, split, join, masked=masked)
        x = _mlp(n, x, f"layer.{i}/mlp", d)
    x = n.op("ReduceMean", [_layer_norm(n, x, "norm", d)], "mean", axes=[1], keepdims=0)
    n.gemm(x, "fc", d, 10)
    return n.model([batch, 3, 16, 16], "logits", [batch, 10])


def _layer_norm(n: Net, x: str, name: str, d: int) -> str:
    gain, bias = n.const(f"{name}.g", np.ones(d, np.float32)), n.const(f"{name}.b", np.zeros(d, np.float32))
    return n.op("LayerNormalization", [x, gain, bias], name)


def _attention(n: Net, x: str, name: str, d: int, heads: int, split: str, join: str, *, masked: bool) -> str:
    y = _layer_norm(n, x, f"{name}/norm", d)
    parts = {}
    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        linear = n.linear(y, f"{name}/{part}", d, d)
        parts[part] = n.op(
            "Transpose", [n.op("Reshape", [linear, split], f"{name}/{part}/s")], f"{name}/{part}/t", perm=perm
        )
    scale = n.const(f"{name}/scale", np.float32(1 / np.sqrt(d / heads)))
    scores = n.op("Mul", [n.op("MatMul", [parts["q"], parts["k"]], f"{name}/qk"), scale], f"{name}/scaled")
    if masked:
        later = n.const(f"{name}/later", np.triu(np.full((16, 16), -1e4, np.float32), 1))
        scores = n.op("Add", [scores, later], f"{name}/masked")
    shares = n.op("Softmax", [scores], f"{name}/softmax", axis=-1)
    if masked:
        nowhere = n.op("IsNaN", [shares], f"{name}/nowhere")
        shares = n.op("Where", [nowhere, n.const(f"{name}/zero", np.float32(0)), shares], f"{name}/shares")
    mixed = n.op("MatMul", [shares, parts["v"]], f"{name}/pv")
    joined = n.op("Reshape", [n.op("Transpose", [mixed], f"{name}/back", perm=[0, 2, 1, 3]), join], f"{name}/join")
    return n.op("Add", [x, n.linear(joined, f"{name}/proj", d, d)], f"{name}/add")


def _mlp(n: Net, x: str, name: str, d: int) -> str:
    h = n.linear(_layer_norm(n, x, f"{name}/norm", d), f"{name}/fc1", d, 4 * d)
    erf = n.op("Erf", [n.op("Div", [h, n.const(f"{name}/sqrt2", np.float32(2**0.5))], f"{name}/div")], f"{name}/erf")
    half = n.op("Mul", [h, n.op("Add", [erf, n.const(f"{name}/one", np.float32(1))], f"{name}/plus1")], f"{name}/gate")
    act = n.op("Mul", [half, n.const(f"{name}/half", np.float32(0.5))], f"{name}/gelu")
    return n.op("Add", [x, n.linear(act, f"{name}/fc2", 4 * d, d)], f"{name}/add")


NETWORKS = {"residual": residual_cnn, "mobile": mobile_cnn, "unet": unet, "transformer": transformer}


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def images(count: int, seed: int = 0, shape: tuple[int, ...] = (3, 16, 16)) -> NDArray[np.float32]:
    """(count, *shape) float32, smooth enough that networks answer differently to different images."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, *shape)) + rng.standard_normal((count, shape[0], 1, 1))).astype(np.float32)


# -- patterns that real exports hold, each in the smallest network that shows it ---------------------------------------

Shape = list[int | str]


def finish(n: Net, inputs: dict[str, Shape], outputs: dict[str, Shape], **kinds: int) -> onnx.ModelProto:
    """A checked model with several inputs and outputs; `kinds` gives element types other than float by name."""

    def info(name: str, shape: Shape) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)

    graph = helper.make_graph(
        n.nodes, "net", [info(*item) for item in inputs.items()], [info(*item) for item in outputs.items()], n.weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", n.opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def activations(seed: int = 10) -> onnx.ModelProto:
    """Convolutions followed by every activation that real networks use, SiLU and a squeeze-and-excite gate."""
    n, c = Net(seed), 16
    x = n.conv("image", "stem", 3, c)
    for kind, attributes in (
        ("LeakyRelu", {"alpha": 0.1}),
        ("HardSwish", {}),
        ("Sigmoid", {}),
        ("Elu", {}),
        ("Tanh", {}),
        ("HardSigmoid", {}),
    ):
        name = kind.lower()
        x = n.op(kind, [n.conv(x, name, c, c)], f"{name}/act", **attributes)
    x = n.op("PRelu", [n.conv(x, "prelu", c, c), n.const("slope", np.full((c, 1, 1), 0.2, np.float32))], "prelu/act")
    x = n.conv(x, "silu", c, c)
    x = n.op("Mul", [x, n.op("Sigmoid", [x], "silu/sigmoid")], "silu/act")
    y = n.op("Relu", [n.conv(x, "dw", c, c, group=c)], "dw/act")
    gate = n.op("GlobalAveragePool", [y], "se/pool")
    gate = n.op("Relu", [n.conv(gate, "se/reduce", c, 4, 1)], "se/act")
    gate = n.op("Sigmoid", [n.conv(gate, "se/expand", 4, c, 1)], "se/gate")
    x = n.op("Add", [x, n.conv(n.op("Mul", [y, gate], "se/scale"), "project", c, c, 1)], "add")
    n.head(x, c)
    return n.model([4, 3, 8, 8], "logits", [4, 10])


def arithmetic(seed: int = 23) -> onnx.ModelProto:
    """Almost a hard-swish, and a gain per channel: constants far above 1 between convolutions; a Gemm with a bias.

    A hard-swish would be one op, and a gain right before a convolution a part of it.
    """
    n, c = Net(seed), 16
    x = n.conv("image", "first", 3, c)
    shifted = n.clip6(n.op("Add", [x, n.const("three", np.float32(3))], "shift"), "shift/clip")
    x = n.op("Div", [n.op("Mul", [x, shifted], "product"), n.const("six", np.float32(5.5))], "swish")
    gains = np.linspace(2, 60, c, dtype=np.float32).reshape(1, c, 1, 1)
    x = n.op("Relu", [n.op("Mul", [x, n.const("gains", gains)], "gain")], "gain/relu")
    x = n.op("Relu", [n.conv(x, "second", c, c)], "second/relu")
    n.head(x, c)
    return n.model([4, 3, 16, 16], "logits", [4, 10])


def convolutions(seed: int = 11) -> onnx.ModelProto:
    """Grouped, biasless, 5×5, dilated, transposed (with groups) and directly before the output."""
    n, c = Net(seed), 16
    x = n.op("Relu", [n.conv("image", "stem", 3, c)], "stem/relu")
    x = n.op("Relu", [n.conv(x, "grouped", c, c, group=4)], "grouped/relu")
    x = n.op("Conv", [x, n.random("free.w", c, c, 3, 3, fan_in=9 * c)], "free", pads=[1] * 4)
    x = n.op("Relu", [x], "free/relu")
    x = n.op("Relu", [n.conv(x, "wide", c, c, 5)], "wide/relu")
    x = n.op("Conv", [x, n.random("dil.w", c, c, 3, 3, fan_in=9 * c)], "dilated", dilations=[2, 2], pads=[2] * 4)
    x = n.op("ConvTranspose", [x, n.random("up.w", c, c // 4, 2, 2, fan_in=c // 2)], "up", strides=[2, 2], group=4)
    n.conv(x, "last", c, 4, 1)
    return n.model([2, 3, 8, 8], "mask", [2, 4, 16, 16])


def conv_1d_3d(seed: int = 12) -> onnx.ModelProto:
    """A 1-D branch (sound) and a 3-D branch (video): two inputs, two outputs."""
    n = Net(seed)
    x = n.op("Conv", ["sound", n.random("a.w", 16, 4, 5, fan_in=20), n.const("a.b", np.ones(16, np.float32))], "a")
    x = n.op("Conv", [n.op("Relu", [x], "a/relu"), n.random("b.w", 16, 16, 3, fan_in=48)], "b")
    n.op("Relu", [x], "wave")
    n.nodes[-1].output[0] = "wave"
    y = n.op("Conv", ["video", n.random("c.w", 16, 3, 3, 3, 3, fan_in=81)], "c", pads=[1] * 6)
    y = n.op("MaxPool", [n.op("Relu", [y], "c/relu")], "c/pool", kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    n.op("Conv", [y, n.random("d.w", 8, 16, 1, 1, 1, fan_in=16)], "d")
    n.nodes[-1].output[0] = "volume"
    shapes: dict[str, Shape] = {"sound": [2, 4, 32], "video": [2, 3, 4, 8, 8]}
    return finish(n, shapes, {"wave": [2, 16, 26], "volume": [2, 8, 2, 4, 4]})


def products(seed: int = 13) -> onnx.ModelProto:
    """Gemm with transB, alpha, beta and without bias; MatMul with 2-D, 3-D and first-factor constants."""
    n = Net(seed)
    b = n.const("b", n.rng.uniform(-1, 1, 32).astype(np.float32))
    x = n.op("Relu", [n.op("Gemm", ["x", n.random("g1.w", 16, 32, fan_in=16), b], "g1")], "g1/relu")
    x = n.op("Gemm", [x, n.random("g2.w", 32, 32, fan_in=32), b], "g2", transB=1, alpha=0.5, beta=2.0)
    x = n.op("Gemm", [x, n.random("g3.w", 32, 32, fan_in=32)], "g3", transB=1)
    x = n.op("Relu", [x], "g3/relu")
    x = n.op("MatMul", [x, n.random("m1.w", 32, 24, fan_in=32)], "m1")
    x = n.op("Reshape", [x, n.const("three", np.array([4, 2, 12], np.int64))], "three/reshape")
    x = n.op("MatMul", [x, n.random("m2.w", 4, 12, 16, fan_in=12)], "m2")
    x = n.op("MatMul", [n.random("m3.w", 2, 2, fan_in=2), x], "m3")
    n.op(
        "Add",
        [n.op("MatMul", [x, n.random("m4.w", 16, 8, fan_in=16)], "m4"), n.const("m4.b", np.ones(8, np.float32))],
        "m4/add",
    )
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": [4, 16]}, {"y": [4, 2, 8]})


def branches(seed: int = 14) -> onnx.ModelProto:
    """Outputs in the middle, one tensor with three readers, x + x, a broadcast Add, an Add of two convolutions."""
    n, c = Net(seed), 16
    x = n.conv("image", "stem", 3, c)
    n.nodes[-1].output[0] = x = "features"
    r = n.op("Relu", [x], "stem/relu")
    a, b, d = n.conv(r, "a", c, c), n.conv(r, "b", c, c), n.conv(r, "d", c, c, 1)
    s = n.op("Relu", [n.op("Add", [a, b], "add_two")], "add_two/relu")
    s = n.op("Add", [s, d], "add_third")
    s = n.op("Add", [s, s], "doubled")
    pooled = n.op("GlobalAveragePool", [n.conv(s, "e", c, c, 1)], "e/pool")
    s = n.op("Add", [n.conv(s, "f", c, c, 1), pooled], "broadcast")
    s = n.op("Conv", [s, "d.w"], "d_again")
    n.op("Relu", [s], "last")
    n.nodes[-1].output[0] = "map"
    n.head("map", c)
    n.nodes[-1].output[0] = "logits"
    outputs: dict[str, Shape] = {"features": [2, c, 8, 8], "logits": [2, 10], "map": [2, c, 8, 8]}
    return finish(n, {"image": [2, 3, 8, 8]}, outputs)


def text_encoder(seed: int = 15) -> onnx.ModelProto:
    """Token ids through Gather, a mask as second input, MatMuls, and the weight behind a Transpose."""
    n, d, tokens = Net(seed), 32, 8
    table = n.random("embedding", 50, d, fan_in=1)
    x = n.op("Gather", [table, "ids"], "embed")
    m = n.op(
        "Unsqueeze",
        [n.op("Cast", ["mask"], "mask/float", to=TensorProto.FLOAT), n.const("last", np.array([2]))],
        "mask/3d",
    )
    x = n.op("Mul", [x, m], "masked")
    x = _mlp(n, x, "layer.0/mlp", d)
    w = n.op("Transpose", [n.random("head.w", d, d, fan_in=d)], "head/t", perm=[1, 0])
    x = n.op("Tanh", [n.op("MatMul", [x, w], "head")], "head/tanh")
    x = n.op("ReduceMean", [x], "mean", axes=[1], keepdims=0)
    scores = n.op("MatMul", [x, n.op("Transpose", ["embedding"], "tied/t", perm=[1, 0])], "tied")
    n.nodes[-1].output[0] = scores = "scores"
    n.op("ArgMax", [scores], "best", axis=1, keepdims=0)
    n.nodes[-1].output[0] = "token"
    shapes: dict[str, Shape] = {"ids": [4, tokens], "mask": [4, tokens]}
    kinds = {"ids": TensorProto.INT64, "mask": TensorProto.INT64, "token": TensorProto.INT64}
    return finish(n, shapes, {"scores": [4, 50], "token": [4]}, **kinds)


def conditional(seed: int = 16) -> onnx.ModelProto:
    """An If whose branches read tensors of quantizable layers outside, and hold a Conv of their own."""
    n, c = Net(seed), 16
    x = n.op("Relu", [n.conv("image", "stem", 3, c)], "stem/relu")
    y = n.conv(x, "second", c, c)
    bright = n.op("Greater", [n.op("ReduceMean", [x], "level", keepdims=0), n.const("zero", np.float32(0.5))], "bright")
    n.random("inner.w", c, c, 1, 1, fan_in=c)
    then_nodes = [
        helper.make_node("Conv", [y, "inner.w"], ["then_conv"], name="inner"),
        helper.make_node("Add", ["then_conv", x], ["then_out"], name="inner/add"),
    ]
    else_nodes = [helper.make_node("Identity", [y], ["else_out"], name="inner/identity")]
    bodies = {
        f"{name}_branch": helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [2, c, 8, 8])]
        )
        for name, nodes in (("then", then_nodes), ("else", else_nodes))
    }
    z = n.op("If", [bright], "if", **bodies)
    n.head(n.op("Relu", [n.conv(z, "third", c, c)], "third/relu"), c)
    return n.model([2, 3, 8, 8], "logits", [2, 10])


def masked_transformer(seed: int = 17) -> onnx.ModelProto:
    return transformer(seed, blocks=1, masked=True)


def foreign(seed: int = 18) -> onnx.ModelProto:
    """An op outside ONNX between convolutions: shape inference knows no type and no shape behind it."""
    n, c = Net(seed), 16
    x = n.op("Trilu", [n.conv("image", "first", 3, c)], "trilu", domain="com.microsoft")
    x = n.op("Relu", [n.conv(x, "second", c, c)], "second/relu")
    n.conv(n.op("Trilu", [n.conv(x, "third", c, c)], "trilu2", domain="com.microsoft"), "last", c, 20)
    ends = [helper.make_tensor_value_info(*end) for end in (("image", 1, [2, 3, 8, 8]), ("last_out", 1, [2, 20, 8, 8]))]
    graph = helper.make_graph(n.nodes, "net", ends[:1], ends[1:], n.weights)
    opsets = [helper.make_opsetid("", n.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


ODD = {
    "activations": activations,
    "convolutions": convolutions,
    "conv_1d_3d": conv_1d_3d,
    "products": products,
    "branches": branches,
    "text_encoder": text_encoder,
    "conditional": conditional,
    "masked": masked_transformer,
}
# Kept apart: ONNX's own tools cannot size what it makes.
BEYOND = {"foreign": foreign}


def row_products(seed: int = 7) -> onnx.ModelProto:
    """Products of one row, as weights alone in integers are for."""
    n = Net(seed)
    x = n.op("Relu", [n.gemm("image", "up", 64, 128)], "relu")
    n.linear(n.op("Relu", [n.linear(x, "mid", 128, 128)], "relu2"), "down", 128, 10)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"image": [1, 64]}, {"y": [1, 10]})


APART = {**BEYOND, "row_products": row_products}


def feeds(model: Model, seed: int = 0) -> dict[str, NDArray[Any]]:
    """One batch for every input of a loaded model."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {}
    for spec in model.inputs:
        if spec.dtype == "float32":
            noise = rng.standard_normal(spec.shape)
            lead = rng.standard_normal(spec.shape[:2] + (1,) * (len(spec.shape) - 2))
            arrays[spec.name] = (noise + lead).astype(np.float32)
        else:
            arrays[spec.name] = rng.integers(0, 2, spec.shape).astype(spec.dtype)
    return arrays


@functools.cache
def loaded(name: str) -> Model:
    """A loaded network of `NETWORKS`, `ODD` or `BEYOND`, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return load(save({**NETWORKS, **ODD, **APART}[name](), Path(folder) / f"{name}.onnx"))


@functools.cache
def ranged(name: str) -> Ranges:
    return observed(loaded(name))


def plain_session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime on the CPU with every optimization off: what the file itself says."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def observed(model: Model, batches: int = 4) -> Ranges:
    """Minimum and maximum of every float tensor over a few batches, read by running the clean model."""
    proto = ir.to_proto(model.graph)
    known = {output.name for output in proto.graph.output}
    for info in proto.graph.value_info:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT and info.name not in known:
            proto.graph.output.append(info)
    session = plain_session(proto)
    names = [output.name for output in session.get_outputs()]
    tensors: dict[str, TensorRange] = {}
    for seed in range(batches):
        batch = feeds(model, seed)
        arrays = {**batch, **dict(zip(names, session.run(names, batch), strict=True))}
        for name, array in arrays.items():
            if array.dtype == np.float32:
                low, high = float(array.min()), float(array.max())
                old = tensors.get(name, TensorRange(low, high))
                tensors[name] = TensorRange(min(low, old.low), max(high, old.high))
    return Ranges("minmax", tensors, tensors, batches * model.batch)


def sqnr_db(reference: NDArray[Any], other: NDArray[Any]) -> float:
    """Signal to quantization noise in decibels; infinite when equal."""
    noise = float(np.square(reference.astype(np.float64) - other).mean())
    signal = float(np.square(reference.astype(np.float64)).mean())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def session_of(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A plain session whose float16 Q read float32: ONNX Runtime 1.23's CPU kernel rounds float16 wrongly."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    scales = {t.name: numpy_helper.to_array(t) for t in copy.graph.initializer}
    nodes = []
    for node in copy.graph.node:
        if node.op_type == "QuantizeLinear" and scales[node.input[1]].dtype == np.float16:
            nodes.append(helper.make_node("Cast", node.input[:1], [f"{node.name}/wide"], to=TensorProto.FLOAT))
            wide = numpy_helper.from_array(scales[node.input[1]].astype(np.float32), f"{node.name}/wide/scale")
            copy.graph.initializer.append(wide)
            node.input[:2] = [f"{node.name}/wide", wide.name]
        nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return plain_session(copy)


def with_uneven_channels(network: onnx.ModelProto, first: str, second: str) -> onnx.ModelProto:
    """A network that computes the same, but whose INT8 is poor: channels between two convolutions differ by 2⁶.

    Args:
        first, second: names of two convolutions, the one behind the other with nothing but a Relu between.
    """
    constants = {tensor.name: tensor for tensor in network.graph.initializer}
    weight = numpy_helper.to_array(constants[f"{first}.w"])
    factor = np.exp2(-np.arange(len(weight)) % 7).astype(np.float32)
    for name, shape in ((f"{first}.w", (-1, 1, 1, 1)), (f"{first}.b", (-1,))):
        scaled = numpy_helper.to_array(constants[name]) * factor.reshape(shape)
        constants[name].CopyFrom(numpy_helper.from_array(scaled, name))
    scaled = numpy_helper.to_array(constants[f"{second}.w"]) / factor[:, None, None]
    constants[f"{second}.w"].CopyFrom(numpy_helper.from_array(scaled, f"{second}.w"))
    return network
