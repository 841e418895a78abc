"""Small real networks for tests, built in code with seeded random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


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
        return self.op("Conv", [x, weight, bias], name, kernel_shape=[k, k], strides=[stride] * 2, pads=pads, group=group)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        draw = self.rng.uniform
        parts = [draw(0.5, 1.5, channels), draw(-0.2, 0.2, channels), draw(-0.2, 0.2, channels), draw(0.5, 1.5, channels)]
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
        self.nodes[-1].output[0] = output if self.nodes[-1].output[0] != output else output
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
    b = n.op("Relu", [n.conv(n.op("MaxPool", [a], "p1", kernel_shape=[2, 2], strides=[2, 2]), "enc2", 16, 32)], "enc2/relu")
    c = n.op("Relu", [n.conv(n.op("MaxPool", [b], "p2", kernel_shape=[2, 2], strides=[2, 2]), "mid", 32, 32)], "mid/relu")
    weight = n.random("up2.w", 32, 32, 2, 2, fan_in=32)
    up = n.op("ConvTranspose", [c, weight], "up2", kernel_shape=[2, 2], strides=[2, 2])
    d = n.op("Relu", [n.conv(n.op("Concat", [up, b], "cat2", axis=1), "dec2", 64, 16)], "dec2/relu")
    scales = n.const("scales", np.array([1, 1, 2, 2], np.float32))
    up = n.op("Resize", [d, "", scales], "up1", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    e = n.op("Relu", [n.conv(n.op("Concat", [up, a], "cat1", axis=1), "dec1", 32, 16)], "dec1/relu")
    n.conv(e, "classes", 16, 4, 1)
    return n.model([batch, 3, 16, 16], "mask", [batch, 4, 16, 16])


def transformer(seed: int = 3, batch: int | str = 4, blocks: int = 2) -> onnx.ModelProto:
    """ViT-style encoder: patch convolution, LayerNorm, attention by MatMul, GELU by Erf, mean pooling, Gemm head."""
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
        x = _attention(n, x, f"layer.{i}/attn", d, heads, split, join)
        x = _mlp(n, x, f"layer.{i}/mlp", d)
    x = n.op("ReduceMean", [_layer_norm(n, x, "norm", d)], "mean", axes=[1], keepdims=0)
    n.gemm(x, "fc", d, 10)
    return n.model([batch, 3, 16, 16], "logits", [batch, 10])


def _layer_norm(n: Net, x: str, name: str, d: int) -> str:
    gain, bias = n.const(f"{name}.g", np.ones(d, np.float32)), n.const(f"{name}.b", np.zeros(d, np.float32))
    return n.op("LayerNormalization", [x, gain, bias], name)


def _attention(n: Net, x: str, name: str, d: int, heads: int, split: str, join: str) -> str:
    y = _layer_norm(n, x, f"{name}/norm", d)
    parts = {}
    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        linear = n.linear(y, f"{name}/{part}", d, d)
        parts[part] = n.op("Transpose", [n.op("Reshape", [linear, split], f"{name}/{part}/s")], f"{name}/{part}/t", perm=perm)
    scale = n.const(f"{name}/scale", np.float32(1 / np.sqrt(d / heads)))
    scores = n.op("Mul", [n.op("MatMul", [parts["q"], parts["k"]], f"{name}/qk"), scale], f"{name}/scaled")
    mixed = n.op("MatMul", [n.op("Softmax", [scores], f"{name}/softmax", axis=-1), parts["v"]], f"{name}/pv")
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
