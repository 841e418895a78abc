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
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.layers import Batches, ConvNorm, SignalEncoder, UNet, export, split, train
from benchmarks.trust import samples

BATCH = {"residual": 125, "heads": 125, "segmentation": 50, "encoder": 125}  # parts of a block of the data


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


def segmenter() -> UNet:
    """(n, 3, 48, 48) → (n, 5, 48, 48)."""
    return UNet((20, 36, 56), (36, 24), 5, nn.ReLU)


def encoder() -> SignalEncoder:
    """(n, 32, 16) → 10 logits."""
    return SignalEncoder(samples.CHANNELS, samples.STEPS, samples.MOTIFS, width=64)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": ResidualNetwork,
    "heads": TwoHeads,
    "segmentation": segmenter,
    "encoder": encoder,
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


def batches(name: str, steps: int) -> Batches:
    """As many batches as `steps`, or a few more."""
    for arrays in samples.blocks(name, "train", -(-steps * BATCH[name] // samples.BLOCK)):
        inputs, labels = (torch.from_numpy(arrays[key]) for key in (NAMES[name][0][0], "labels"))
        yield from split(inputs, labels, BATCH[name])


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
        steps = arguments.steps or STEPS[name]
        train(name, network, batches(name, steps), steps, lambda x, y, network=network: loss_of(network(x), y))
        example = torch.from_numpy(samples.draw(name, "train", 2)[NAMES[name][0][0]])
        export(network, example, arguments.out / f"{name}.onnx", NAMES[name])


if __name__ == "__main__":
    main()
