"""Train a small network that loses accuracy in INT8 as it was trained, and write what bitfront needs of it.

    python examples/qat/network.py --out qat-example     # two minutes of one core; needs PyTorch and onnx

Writes network.onnx, data.npz and weights.pt. The task: which way a faint grating runs, in linear light. Scenes are
bright or dark, and some have hot pixels, so ranges are wide where little is told apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

SIZE, CLASSES = 16, 8
EPOCHS, TRAINING, HELD_OUT, BATCH = 4, 6000, 3000, 50

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Rates = Sequence[tuple[list[nn.Parameter], float]]  # parameters with their learning rate


def scenes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`image` (count, 1, 16, 16) float32 in linear light, and the class of each: the direction of its grating."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    angle = np.pi * labels / CLASSES
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    grating = np.sin(2 * np.pi * along / 4.5 + phase)
    image = 1 + 0.2 * grating + 0.2 * rng.normal(size=(count, SIZE, SIZE))
    image *= np.exp(rng.normal(0, 1, (count, 1, 1)))  # exposure
    hot = (rng.random((count, SIZE, SIZE)) < 0.004) & (rng.random((count, 1, 1)) < 0.3)
    return (image + hot * rng.uniform(5, 40, image.shape))[:, None].astype(np.float32), labels


class Block(nn.Module):
    """MobileNetV3's: expand, depthwise, squeeze-and-excitation, project, all with h-swish."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        wide = 3 * channels
        self.expand, self.expand_norm = nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(wide)
        self.squeeze, self.excite = nn.Conv2d(wide, channels // 2, 1), nn.Conv2d(channels // 2, wide, 1)
        self.project, self.project_norm = nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.residual = stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.expand_norm(self.expand(x)))
        y = functional.hardswish(self.depthwise_norm(self.depthwise(y)))
        gate = self.excite(functional.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        y = self.project_norm(self.project(y * functional.hardsigmoid(gate)))
        return x + y if self.residual else y


class Network(nn.Module):
    """(n, 1, 16, 16) → (n, 8) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 1), Block(16, 2), Block(16, 1))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.blocks(functional.hardswish(self.stem_norm(self.stem(image))))
        return self.head(x.mean((2, 3)))


def fold_norms(network: Network) -> Network:
    """Fold each BatchNorm into the convolution before it, as bitfront and engines do; in place."""
    network.eval()
    for module in network.modules():
        for name, norm in list(module.named_children()):
            if name.endswith("_norm") and isinstance(norm, nn.BatchNorm2d):
                conv = name.removesuffix("_norm")
                setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), norm))
                setattr(module, name, nn.Identity())
    return network


def train(
    network: nn.Module, images: torch.Tensor, goals: torch.Tensor, loss: Loss, rates: Rates, epochs: int, seed: int
) -> None:
    """Adam with one cycle of the learning rates; `loss` compares the outputs with the goals of their images."""
    torch.manual_seed(seed)
    steps = len(images) // BATCH
    adam = torch.optim.Adam([{"params": parameters, "lr": rate} for parameters, rate in rates])
    plan = torch.optim.lr_scheduler.OneCycleLR(adam, [rate for _, rate in rates], epochs * steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(BATCH)[:steps]:
            error = loss(network(images[chosen]), goals[chosen])
            adam.zero_grad()
            error.backward()
            adam.step()
            plan.step()


@torch.no_grad()
def accuracy(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of right answers."""
    right = [(network(x).argmax(1) == y).sum() for x, y in zip(images.split(500), labels.split(500), strict=True)]
    return float(sum(right)) / len(images)


def tensors(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = scenes(count, seed)
    return torch.from_numpy(images), torch.from_numpy(labels)


def export(network: nn.Module, path: Path) -> None:
    """Write the network as ONNX of opset 17; `image` (batch, 1, 16, 16) → `logits`."""
    network.eval()
    torch.onnx.export(
        network, (torch.zeros(2, 1, SIZE, SIZE),), str(path), input_names=["image"], output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}}, opset_version=17, dynamo=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the network of the QAT example.")
    parser.add_argument("--out", type=Path, default=Path("qat-example"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Network()
    rates = [(list(network.parameters()), 0.01)]
    train(network, *tensors(TRAINING, seed=1), functional.cross_entropy, rates, epochs=EPOCHS, seed=0)
    network.eval()
    images, labels = scenes(HELD_OUT, seed=2)
    np.savez(out / "data.npz", image=images, labels=labels)
    torch.save(network.state_dict(), out / "weights.pt")
    export(network, out / "network.onnx")
    right = accuracy(network, torch.from_numpy(images), torch.from_numpy(labels))
    print(f"wrote {out}: {right:.2%} of {HELD_OUT} held-out scenes are right in FP32")


if __name__ == "__main__":
    main()
