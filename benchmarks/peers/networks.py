"""Train the five networks that are hard by nature and write them as ONNX. Needs PyTorch, onnx and 15 minutes of a core.

    python -m benchmarks.peers.networks                       # all five, three minutes each
    python -m benchmarks.peers.networks --only mobile --out FOLDER

They are trained as anybody would train them and left as they are. What INT8 costs comes from the task (light of very
different brightness, highlights, hot pixels, sensors in different units) and from the architecture (SiLU, h-swish,
squeeze-and-excitation, depthwise convolutions, attention). No weight is rescaled. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.layers import Batches, ConvNorm, SignalEncoder, UNet, export, split, train
from benchmarks.peers import samples

HERE = Path(__file__).resolve().parent


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(inputs, outputs, 3, stride, act=nn.ReLU), ConvNorm(outputs, outputs, 3)
        self.skip = nn.Identity() if stride == 1 and inputs == outputs else ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.second(self.first(x)) + self.skip(x))


class ResidualNetwork(nn.Module):
    """(n, 1, 32, 32) → 12 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, 5, 2, act=nn.ReLU)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 40, 2))
        self.classifier = nn.Linear(40, samples.ANGLES * samples.WAVES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(functional.adaptive_avg_pool2d(self.blocks(self.stem(image)), 1).flatten(1))


class Gate(nn.Module):
    """Squeeze-and-excitation as in MobileNetV3: ReLU, then hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4)
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        return x * functional.hardsigmoid(factor)


class Inverted(nn.Module):
    """MobileNetV3's block: widen, depthwise, gate, narrow."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, gate: bool, swish: bool
    ) -> None:
        super().__init__()
        act = nn.Hardswish if swish else nn.ReLU
        parts = [ConvNorm(inputs, hidden, 1, act=act), ConvNorm(hidden, hidden, kernel, stride, hidden, act)]
        self.body = nn.Sequential(*parts, *([Gate(hidden)] if gate else []), ConvNorm(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class Mobile(nn.Module):
    """(n, 3, size, size) → 30 logits, by MobileNetV3's rules; `width` times as wide as for images of 32 pixels."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            ConvNorm(3, 16 * w, 3, 2, act=nn.Hardswish),
            Inverted(16 * w, 32 * w, 16 * w, 3, 1, gate=True, swish=False),
            Inverted(16 * w, 56 * w, 24 * w, 3, 2, gate=False, swish=False),
            Inverted(24 * w, 72 * w, 24 * w, 3, 1, gate=False, swish=False),
            Inverted(24 * w, 80 * w, 32 * w, 5, 2, gate=True, swish=True),
            Inverted(32 * w, 104 * w, 32 * w, 5, 1, gate=True, swish=True),
            ConvNorm(32 * w, 112 * w, 1, act=nn.Hardswish),
        )
        self.hidden = nn.Linear(112 * w, 96 * w)
        self.classifier = nn.Linear(96 * w, samples.SHAPES * samples.COLOURS)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.features(image), 1).flatten(1)
        return self.classifier(functional.hardswish(self.hidden(x)))


class Partial(nn.Module):
    """A cross-stage partial block, as in YOLO: half of the channels go through a residual bottleneck."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.one, self.other = ConvNorm(width, half, 1, act=nn.SiLU), ConvNorm(width, half, 1, act=nn.SiLU)
        self.inner = nn.Sequential(ConvNorm(half, half, 3, act=nn.SiLU), ConvNorm(half, half, 3, act=nn.SiLU))
        self.join = ConvNorm(width, width, 1, act=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        return self.join(torch.cat([one + self.inner(one), self.other(x)], 1))


def _partials(width: int, depth: int) -> list[Partial]:
    return [Partial(width) for _ in range(depth)]


class Head(nn.Module):
    """Boxes and shapes of one resolution, by branches of their own."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.box = nn.Sequential(ConvNorm(width, 24, 3, act=nn.SiLU), nn.Conv2d(24, 4, 1))
        self.shape = nn.Sequential(ConvNorm(width, 24, 3, act=nn.SiLU), nn.Conv2d(24, samples.DETECTED, 1))
        self.stride = stride
        nn.init.constant_(self.shape[-1].bias, -4.0)
        nn.init.constant_(self.box[-1].bias, 1.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, 4, cells) centre, width and height in pixels, and (n, shapes, cells) logits."""
        cells = int(x.shape[2])
        edges = functional.softplus(self.box(x)).flatten(2) * self.stride
        axis = (torch.arange(cells, device=x.device) + 0.5) * self.stride
        down, right = torch.meshgrid(axis, axis, indexing="ij")
        middle = torch.stack([right, down]).flatten(1)[None].to(edges)
        low, high = middle - edges[:, :2], middle + edges[:, 2:]
        return torch.cat([(low + high) / 2, high - low], 1), self.shape(x).flatten(2)


class Detector(nn.Module):
    """(n, 3, size, size) → (n, 8, places): of each place centre, width, height in pixels and four scores, as YOLOv8.

    Args:
        width: of all layers, as a multiple of that for images of 48 pixels.
        depth: cross-stage partial blocks of a stage.
    """

    def __init__(self, width: int = 1, depth: int = 1) -> None:
        super().__init__()
        w = width
        self.stem = ConvNorm(3, 12 * w, 3, 2, act=nn.SiLU)
        self.fine = nn.Sequential(ConvNorm(12 * w, 24 * w, 3, 2, act=nn.SiLU), *_partials(24 * w, depth))
        self.coarse = nn.Sequential(ConvNorm(24 * w, 40 * w, 3, 2, act=nn.SiLU), *_partials(40 * w, depth))
        self.mix = nn.Sequential(ConvNorm(64 * w, 24 * w, 1, act=nn.SiLU), *_partials(24 * w, depth))
        self.heads = nn.ModuleList([Head(24 * w, 4), Head(40 * w, 8)])

    def raw(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.fine(self.stem(image))
        coarse = self.coarse(fine)
        fine = self.mix(torch.cat([fine, functional.interpolate(coarse, scale_factor=2.0, mode="nearest")], 1))
        parts = [head(x) for head, x in zip(self.heads, (fine, coarse), strict=True)]
        return torch.cat([box for box, _ in parts], 2), torch.cat([shape for _, shape in parts], 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        boxes, shapes = self.raw(image)
        return torch.cat([boxes, shapes.sigmoid()], 1)


def segmenter(width: int = 1) -> UNet:
    """(n, 3, size, size) → (n, 5, size, size), with h-swish."""
    w = width
    return UNet((16 * w, 28 * w, 44 * w), (28 * w, 20 * w), samples.DETECTED + 1, nn.Hardswish)


def encoder() -> SignalEncoder:
    """(n, 32, 16) → 10 logits."""
    return SignalEncoder(samples.SENSORS, samples.STEPS, samples.MOTIFS, width=48)


def detection_loss(network: Detector, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of scores, whose aim at an object's middle is the overlap of the box found there, and 1 - GIoU."""
    boxes, logits = network.raw(image)
    wanted, which = _aims(labels, image.shape[2])
    positive = which >= 0
    found = boxes.permute(0, 2, 1)[positive]
    overlap, quality = _overlaps(found, wanted[positive])
    aim = torch.zeros_like(logits).permute(0, 2, 1)
    rows, places = positive.nonzero(as_tuple=True)
    aim[rows, places, which[positive]] = overlap.detach().clamp(min=0.1).to(aim.dtype)
    focus = (aim - logits.permute(0, 2, 1).sigmoid()).abs().square()
    scores = functional.binary_cross_entropy_with_logits(logits.permute(0, 2, 1), aim, reduction="none") * focus
    return (4 * scores.sum() + 2 * (1 - quality).sum()) / max(1, len(found))


def _aims(labels: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, places, 4) box that each place is to find, from edge to edge, and (n, places) its shape or -1.

    Small objects belong to the fine places, large ones to the coarse ones.
    """
    axes = [(torch.arange(size // stride, device=labels.device) + 0.5) * stride for stride in (4, 8)]
    middles = torch.cat([torch.cartesian_prod(axis, axis).flip(1) for axis in axes])
    fine = torch.arange(len(middles), device=labels.device) < len(axes[0]) ** 2
    low, high = labels[:, :, None, :2], labels[:, :, None, 2:4]
    far = ((middles - (low + high) / 2).abs() / torch.where(fine, 4.0, 8.0)[:, None]).amax(-1)
    small = (high - low).amax(-1) < 0.35 * size
    takes = (far <= 0.75) & (fine == small) & (labels[:, :, 4, None] >= 0)
    far = torch.where(takes, far, torch.inf)
    nearest = far.argmin(1)
    taken = far.gather(1, nearest[:, None])[:, 0].isfinite()
    chosen = labels[torch.arange(len(labels), device=labels.device)[:, None], nearest]
    return chosen[..., :4], torch.where(taken, chosen[..., 4].long(), -1)


def _overlaps(found: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """IoU and GIoU of boxes by centre and size with boxes by edges."""
    low, high = found[:, :2] - found[:, 2:] / 2, found[:, :2] + found[:, 2:] / 2
    inner = (torch.minimum(high, wanted[:, 2:]) - torch.maximum(low, wanted[:, :2])).clamp(min=0).prod(1)
    union = found[:, 2:].prod(1) + (wanted[:, 2:] - wanted[:, :2]).prod(1) - inner
    hull = (torch.maximum(high, wanted[:, 2:]) - torch.minimum(low, wanted[:, :2])).prod(1)
    overlap = inner / union
    return overlap, overlap - (hull - union) / hull


def class_loss(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(network(inputs), labels)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": ResidualNetwork,
    "mobile": Mobile,
    "detector": Detector,
    "segmenter": segmenter,
    "encoder": encoder,
}
STEPS = {"residual": 1400, "mobile": 2000, "detector": 1600, "segmenter": 800, "encoder": 1000}
BATCH = {"residual": 125, "mobile": 125, "detector": 50, "segmenter": 50, "encoder": 125}  # parts of a block


def batches(name: str, steps: int) -> Batches:
    """As many batches as `steps`, or a few more."""
    for arrays in samples.blocks(name, "train", -(-steps * BATCH[name] // samples.BLOCK)):
        labels = torch.from_numpy(arrays.pop("labels"))
        (inputs,) = map(torch.from_numpy, arrays.values())
        yield from split(inputs, labels, BATCH[name])


def write(name: str, network: nn.Module, path: Path, batch: int | None = None, **options: int) -> None:
    """Write a network as an ONNX file.

    Args:
        batch: a static one; dynamic where none is given.
        options: of the samples, as `size`.
    """
    arrays = samples.draw_block(name, "train", 0, **options)
    del arrays["labels"]
    ((input_name, array),) = arrays.items()
    output = {"detector": "detections", "segmenter": "classes"}.get(name, "logits")
    names = ([input_name], [output])
    export(network, torch.from_numpy(array[: batch or 2]), path, names, dynamic=batch is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(NETWORKS), help="repeatable")
    parser.add_argument("--steps", type=int, help=f"default {STEPS}")
    parser.add_argument("--out", type=Path, default=HERE / "data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or NETWORKS:
        torch.manual_seed(0)
        network = NETWORKS[name]()
        steps, loss = arguments.steps or STEPS[name], detection_loss if name == "detector" else class_loss
        train(name, network, batches(name, steps), steps, partial(loss, network))
        write(name, network, arguments.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
