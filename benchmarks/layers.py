"""Layers and training that the networks of several benchmarks share. Needs PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

RATE = 3e-3  # of learning, at most

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


class ConvNorm(nn.Sequential):
    """Convolution, BatchNorm, and an activation where one is given."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] | None = None,
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), *([] if act is None else [act()]))


class UNet(nn.Module):
    """(n, 3, size, size) → (n, classes, size, size): three sizes, beginning at half the resolution.

    Args:
        down: channels of the three sizes, the finest first.
        up: channels on the way back.
    """

    def __init__(self, down: Sequence[int], up: Sequence[int], classes: int, act: type[nn.Module]) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(ConvNorm(inputs, outputs, 3, 2, act=act), ConvNorm(outputs, outputs, 3, act=act))

        fine, middle, coarse = down
        self.down = nn.ModuleList([pair(3, fine), pair(fine, middle), pair(middle, coarse)])
        self.up = nn.ModuleList(
            [ConvNorm(coarse + middle, up[0], 3, act=act), ConvNorm(up[0] + fine, up[1], 3, act=act)]
        )
        self.classes = nn.Conv2d(up[1], classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        sizes = [image]
        for stage in self.down:
            sizes.append(stage(sizes[-1]))
        x = sizes[3]
        for stage, skip in zip(self.up, (sizes[2], sizes[1]), strict=True):
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))
        return functional.interpolate(self.classes(x), scale_factor=2.0, mode="bilinear", align_corners=False)


class EncoderBlock(nn.Module):
    """Attention and two linear layers, each behind a LayerNorm and beside a way round them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.wide = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Sizes as numbers: the exported graph then holds no shape arithmetic.
        steps, width = int(x.shape[1]), int(x.shape[2])
        parts = self.qkv(self.norm1(x)).reshape(-1, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(-1, steps, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class SignalEncoder(nn.Module):
    """(n, steps, sensors) → logits: a convolution, three blocks of a transformer, the mean over the steps."""

    def __init__(self, sensors: int, steps: int, classes: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(sensors, width, 5, padding=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, steps, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, 4) for _ in range(3)))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        x = self.embed(signal.transpose(1, 2)).transpose(1, 2) + self.position
        return self.classifier(self.norm(self.blocks(x)).mean(1))


def train(
    name: str,
    network: nn.Module,
    batches: Batches,
    steps: int,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Train in place, on each batch once.

    Args:
        batches: inputs and labels; as many as there are, `steps` or a few more.
        steps: by which the rate of learning rises and falls.
        loss_of: (inputs, labels) → what is to become small.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=2e-2)
    network.train()
    start, seen = time.process_time(), []
    for step, (x, y) in enumerate(batches, 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(step / steps / 0.1 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * step / (steps + 1)))
        loss = loss_of(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        seen.append(loss.item())
        if step % 50 == 0:
            mean, took = np.mean(seen[-100:]), time.process_time() - start
            print(f"{name}: step {step}/{steps}, loss {mean:.3f}, {took:.0f} s of a processor", flush=True)


def split(inputs: torch.Tensor, labels: torch.Tensor, batch: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of one block of samples, images with their channels last in memory."""
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return zip(inputs.split(batch), labels.split(batch), strict=True)


def export(
    network: nn.Module,
    example: torch.Tensor,
    path: Path,
    names: tuple[Sequence[str], Sequence[str]],
    *,
    dynamic: bool = True,
) -> None:
    """Write one ONNX file of opset 17; BatchNorm is folded by the exporter.

    Args:
        names: of the inputs and of the outputs.
        dynamic: whether the batch may have any size; else it is that of the example.
    """
    inputs, outputs = names
    network = network.eval().to(memory_format=torch.contiguous_format)
    torch.onnx.export(
        network, (example,), str(path), dynamo=False, opset_version=17,
        input_names=list(inputs), output_names=list(outputs),
        dynamic_axes={key: {0: "batch"} for key in (*inputs, *outputs)} if dynamic else None,
    )  # fmt: skip
