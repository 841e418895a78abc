"""Train the networks of the trust benchmark and write them as ONNX. Needs PyTorch, onnx and a few minutes of a core.

    python -m benchmarks.trust.networks                     # all four, about two minutes each
    python -m benchmarks.trust.networks --only encoder --steps 200 --out FOLDER

Four kinds that examples/digits is not: `residual` (ReLU, squeeze-and-excitation), `heads` (SiLU, inverted
residuals with squeeze-and-excitation, two outputs), `segmentation` (a U-Net) and `encoder` (a transformer). They are
trained as anybody would train them and left as they are: what INT8 costs comes from bright specks and far-off values in
the data, SiLU, gates and attention, and no weight is rescaled afterwards. Everything is seeded.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.trust import samples

BATCH = {"residual": 125, "heads": 125, "segmentation": 50, "encoder": 125}  # parts of a block of the data


class ConvNorm(nn.Sequential):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] | None = None,
    ):
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), *([] if act is None else [act()]))


class Gate(nn.Module):
    """Squeeze-and-excitation: every channel times a factor that the whole image decides."""

    def __init__(self, channels: int, squeezed: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.squeeze, self.excite, self.act = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1), act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.excite(self.act(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        return x * factor.sigmoid()


class Residual(nn.Module):
    """Two convolutions and a gate, and a way round them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(inputs, outputs, 3, stride, act=nn.ReLU), ConvNorm(outputs, outputs, 3)
        self.gate = Gate(outputs, outputs // 4, nn.ReLU)
        self.skip = nn.Identity() if stride == 1 and inputs == outputs else ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.gate(self.second(self.first(x))) + self.skip(x))


class ResidualNetwork(nn.Module):
    """(n, 1, 32, 32) → 12 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, 5, 2, act=nn.ReLU)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 48, 2))
        self.classifier = nn.Linear(48, samples.ANGLES * samples.WAVES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(functional.adaptive_avg_pool2d(self.blocks(self.stem(image)), 1).flatten(1))


class Inverted(nn.Module):
    """EfficientNet's block: widen, depthwise, gate, narrow; SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int = 3) -> None:
        super().__init__()
        hidden = widen * inputs
        self.widen = ConvNorm(inputs, hidden, 1, act=nn.SiLU)
        self.depthwise = ConvNorm(hidden, hidden, 3, stride, hidden, nn.SiLU)
        self.gate = Gate(hidden, max(8, inputs // 4), nn.SiLU)
        self.narrow = ConvNorm(hidden, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(self.gate(self.depthwise(self.widen(x))))
        return x + y if self.residual else y


class TwoHeads(nn.Module):
    """(n, 3, 32, 32) → 6 logits of the shape, 5 of the colour."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            Inverted(24, 24, 1),
            Inverted(24, 40, 2),
            Inverted(40, 40, 1),
            Inverted(40, 56, 2),
            Inverted(56, 56, 1),
        ]
        self.body = nn.Sequential(ConvNorm(3, 24, 3, 2, act=nn.SiLU), *blocks, ConvNorm(56, 128, 1, act=nn.SiLU))
        self.shape, self.colour = nn.Linear(128, samples.SHAPES), nn.Linear(128, samples.COLOURS)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.adaptive_avg_pool2d(self.body(image), 1).flatten(1)
        return self.shape(x), self.colour(x)


class Segmenter(nn.Module):
    """(n, 3, 48, 48) → (n, 5, 48, 48): a U-Net of three sizes that begins at half the resolution."""

    def __init__(self) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                ConvNorm(inputs, outputs, 3, stride, act=nn.ReLU), ConvNorm(outputs, outputs, 3, act=nn.ReLU)
            )

        self.down = nn.ModuleList([pair(3, 20, 2), pair(20, 36, 2), pair(36, 56, 2)])
        self.up = nn.ModuleList([ConvNorm(56 + 36, 36, 3, act=nn.ReLU), ConvNorm(36 + 20, 24, 3, act=nn.ReLU)])
        self.classes = nn.Conv2d(24, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        sizes = [image]
        for stage in self.down:
            sizes.append(stage(sizes[-1]))
        x = sizes[3]
        for stage, skip in zip(self.up, (sizes[2], sizes[1]), strict=True):
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))
        return functional.interpolate(self.classes(x), scale_factor=2.0, mode="bilinear", align_corners=False)


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Sizes as numbers: the exported graph then holds no shape arithmetic.
        steps, width = int(x.shape[1]), int(x.shape[2])
        parts = self.qkv(self.norm1(x)).reshape(-1, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(-1, steps, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Encoder(nn.Module):
    """(n, 32, 16) → 10 logits."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Conv1d(samples.CHANNELS, width, 5, padding=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, samples.STEPS, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, 4) for _ in range(3)))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, samples.MOTIFS)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        x = self.embed(signal.transpose(1, 2)).transpose(1, 2) + self.position
        return self.classifier(self.norm(self.blocks(x)).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": ResidualNetwork,
    "heads": TwoHeads,
    "segmentation": Segmenter,
    "encoder": Encoder,
}
STEPS = {"residual": 1400, "heads": 1400, "segmentation": 450, "encoder": 500}
NAMES = {
    "residual": (["image"], ["logits"]),
    "heads": (["image"], ["shape", "colour"]),
    "segmentation": (["image"], ["classes"]),
    "encoder": (["signal"], ["logits"]),
}


def loss_of(outputs: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    if isinstance(outputs, tuple):
        return sum(functional.cross_entropy(part, labels[:, n]) for n, part in enumerate(outputs))
    return functional.cross_entropy(outputs, labels)


def train(name: str, network: nn.Module, steps: int) -> None:
    """Train in place on samples that are drawn once."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=2e-2)
    network.train()
    start, step, seen = time.process_time(), 0, []
    for arrays in samples.blocks(name, "train", -(-steps * BATCH[name] // samples.BLOCK)):
        inputs, labels = (torch.from_numpy(arrays[key]) for key in (NAMES[name][0][0], "labels"))
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        for x, y in zip(inputs.split(BATCH[name]), labels.split(BATCH[name]), strict=True):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * min(step / steps / 0.1 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * step / (steps + 1)))
            loss = loss_of(network(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            seen.append(loss.item())
        if step % 50 == 0:
            mean, took = np.mean(seen[-100:]), time.process_time() - start
            print(f"{name}: step {step}/{steps}, loss {mean:.3f}, {took:.0f} s of a processor", flush=True)


def export(name: str, network: nn.Module, path: Path) -> None:
    """One ONNX file of opset 17 with a dynamic batch; BatchNorm is folded by the exporter."""
    inputs, outputs = NAMES[name]
    example = torch.from_numpy(samples.draw(name, "train", 2)[inputs[0]])
    axes = {key: {0: "batch"} for key in (*inputs, *outputs)}
    network = network.eval().to(memory_format=torch.contiguous_format)
    torch.onnx.export(
        network, (example,), str(path), dynamo=False, opset_version=17,
        input_names=inputs, output_names=outputs, dynamic_axes=axes,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(NETWORKS), help="repeatable")
    parser.add_argument("--steps", type=int, help=f"default {STEPS}")
    parser.add_argument("--out", type=Path, default=samples.HERE / "data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or NETWORKS:
        torch.manual_seed(0)
        network = NETWORKS[name]()
        train(name, network, arguments.steps or STEPS[name])
        export(name, network, arguments.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
