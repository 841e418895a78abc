"""Make the digits example: train a small MobileNet-style network, then write digits.onnx and digits.npz.

    python examples/digits/train.py                 # about 15 minutes on one CPU core
    python examples/digits/train.py --weights w.pt  # keeps the trained weights; a second run starts from them

Needs PyTorch, scikit-learn and onnx; using the example needs none of them. Nothing is fetched: the digits come with
scikit-learn.

What it does, in order:
1. splits scikit-learn's 1,797 digits into 1,000 for training and 797 held out, before anything else is made of them;
2. trains on fresh 32x32 scenes every epoch: a turned, shifted, scaled digit in low contrast among clutter and noise;
3. rescales some residual streams channel by channel with powers of two (see `rescale_streams`), which leaves the
   float outputs as they are, checks just that, and so gives those streams the uneven ranges that real MobileNets have;
4. exports the network to ONNX and writes scenes of held-out digits with their labels and with the number of the
   original that each was made of.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
SIZE = 32  # pixels of a scene's side
LEVELS = 7  # pixels are k/7, so that 5,000 scenes compress to about 2 MB
TRAINING_ORIGINALS = 1000

# (channels, blocks, stride, expansion) of each stage; one residual stream runs through a stage.
STAGES = ((32, 1, 1, 1), (48, 4, 1, 4), (48, 4, 2, 4), (64, 3, 2, 4))
# (first block, last block, largest k of the channel factors 2^-k) of the streams that are made uneven; each is a whole
# stage, so that the writers and readers of its residual stream are all among these blocks and the reader behind them.
UNEVEN_STREAMS = ((0, 0, 8), (9, 11, 9))


class ConvNorm(nn.Sequential):
    """Convolution and BatchNorm, with ReLU6 behind them unless `linear`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        if not linear:
            self.act = nn.ReLU6()


class Block(nn.Module):
    """Inverted residual: 1x1 expand, 3x3 depthwise, 1x1 project without activation, and an Add where asked."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, residual: bool):
        super().__init__()
        hidden = inputs * expansion
        self.expand = ConvNorm(inputs, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(hidden, hidden, 3, stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs, 1, linear=True)
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class Network(nn.Module):
    """(n, 1, 32, 32) float32 in [0, 1] -> (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        inputs = 32
        self.stem = ConvNorm(1, inputs, 3, stride=2)
        self.features = nn.ModuleList()
        for outputs, blocks, stride, expansion in STAGES:
            for i in range(blocks):
                self.features.append(Block(inputs, outputs, stride if i == 0 else 1, expansion, residual=i > 0))
                inputs = outputs
        self.head = ConvNorm(inputs, 128, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(128, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        for block in self.features:
            x = block(x)
        return self.classifier(self.pool(self.head(x)).flatten(1))


def split_originals() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The 8x8 digits as (images (n, 1, 8, 8) in [0, 1], labels (n,)): those to train on, and those held out."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
    train, held_out = order[:TRAINING_ORIGINALS], order[TRAINING_ORIGINALS:]
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def uniform(n: int, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(n, generator=generator) * (high - low) + low


def place(images: torch.Tensor, size: tuple[float, float], shift: float, generator: torch.Generator) -> torch.Tensor:
    """Draw each 8x8 image turned, sheared, scaled and shifted on an empty 32x32 canvas.

    Args:
        size: least and greatest side of the digit, as a fraction of the canvas.
        shift: greatest distance of its centre from the middle, as a fraction of half the canvas.
    """
    n = len(images)
    angle = uniform(n, -0.6, 0.6, generator)  # radians
    scale = 1 / uniform(n, *size, generator)
    shear = uniform(n, -0.3, 0.3, generator)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    x, y = uniform(n, -shift, shift, generator), uniform(n, -shift, shift, generator)
    rows = [torch.stack([cos, shear * cos - sin], 1), torch.stack([sin, shear * sin + cos], 1)]
    turn = torch.stack(rows, 1)  # canvas -> image
    offset = -(turn @ torch.stack([x, y], 1)[:, :, None])
    grid = functional.affine_grid(torch.cat([turn, offset], 2), (n, 1, SIZE, SIZE), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def windows(n: int, generator: torch.Generator) -> torch.Tensor:
    """(n, 1, 32, 32) masks that are 1 in one small random rectangle each."""
    axis = torch.arange(SIZE)
    spans = []
    for _ in range(2):
        start, length = uniform(n, -4, SIZE, generator)[:, None], uniform(n, 5, 10, generator)[:, None]
        spans.append((axis >= start) & (axis < start + length))
    return (spans[0][:, None, :, None] & spans[1][:, None, None, :]).float()


def scenes(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One scene per 8x8 image: the digit, scraps of other digits of the same set as clutter, low contrast, noise."""
    n = len(images)
    canvas = place(images, (0.5, 0.85), 0.3, generator)
    for _ in range(4):
        others = images[torch.randint(n, (n,), generator=generator)]
        canvas = torch.maximum(canvas, place(others, (0.6, 0.9), 0.6, generator) * windows(n, generator))
    contrast = uniform(n, 0.3, 1.0, generator)[:, None, None, None]
    light = uniform(n, 0.0, 0.2, generator)[:, None, None, None]
    noise = torch.randn(canvas.shape, generator=generator) * 0.1
    return ((canvas * contrast + light + noise).clamp(0, 1) * LEVELS).round() / LEVELS


def train(network: Network, images: torch.Tensor, labels: torch.Tensor, epochs: int, repeats: int) -> None:
    """Train in place on `repeats` fresh scenes of every original per epoch."""
    generator = torch.Generator().manual_seed(1)
    batch = 100
    steps = epochs * repeats * (len(images) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.2)
    network.train()
    for epoch in range(epochs):
        start, right, total = time.perf_counter(), 0, 0.0
        for _ in range(repeats):
            order = torch.randperm(len(images), generator=generator)
            pixels = scenes(images[order], generator).contiguous(memory_format=torch.channels_last)
            for x, y in zip(pixels.split(batch), labels[order].split(batch), strict=True):
                logits = network(x)
                loss = functional.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                right += int((logits.argmax(1) == y).sum())
                total += loss.item()
        seen = repeats * len(images)
        figures = f"loss {total / seen * batch:.3f}, top-1 {right / seen:.1%}, {time.perf_counter() - start:.0f} s"
        print(f"epoch {epoch + 1}/{epochs}: {figures}", flush=True)


@torch.no_grad()
def logits_of(network: Network, pixels: torch.Tensor) -> torch.Tensor:
    network.eval()
    return torch.cat([network(x) for x in pixels.split(250)])


@torch.no_grad()
def rescale_streams(network: Network) -> None:
    """Give `UNEVEN_STREAMS` channels of very different ranges, without changing what the network computes.

    Every convolution that writes such a stream (`project`) gets output channel c times s_c = 2^-k_c, every one that
    reads it (the next `expand`, or `head`) gets input channel c divided by s_c. No activation stands between, and the
    residual Adds see one factor per channel. Powers of two touch no mantissa bit, so all float sums stay bit for bit.
    """
    generator = torch.Generator().manual_seed(2)
    for first, last, largest in UNEVEN_STREAMS:
        blocks = network.features[first : last + 1]
        behind = network.features[last + 1].expand if last + 1 < len(network.features) else network.head
        writers = [block.project for block in blocks]
        readers = [block.expand for block in blocks[1:]] + [behind]
        channels = writers[0].norm.num_features
        # Every k about equally often, in mixed order: the loss then depends little on the draw.
        factors = 0.5 ** (torch.randperm(channels, generator=generator) % (largest + 1)).float()
        for writer in writers:  # through BatchNorm's scale and shift, as the convolution has no bias of its own
            writer.norm.weight *= factors
            writer.norm.bias *= factors
        for reader in readers:
            reader.conv.weight /= factors[:, None, None]


def rescale_checked(network: Network, pixels: torch.Tensor) -> None:
    """Rescale the streams and make sure that the outputs stayed what they were."""
    before = logits_of(network, pixels)
    rescale_streams(network)
    worst = float((logits_of(network, pixels) - before).abs().max())
    print(f"rescaled streams: outputs differ by at most {worst:.1e}")
    if worst > 1e-5:
        raise SystemExit("the rescaling changed the float outputs; it must not")


def export(network: Network, path: Path) -> None:
    """Write the network as one ONNX file of opset 17 with a dynamic batch; BatchNorm is folded by the exporter."""
    network.eval()
    torch.onnx.export(
        network, (torch.zeros(1, 1, SIZE, SIZE),), str(path), dynamo=False, opset_version=17,
        input_names=["image"], output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    )  # fmt: skip
    onnx.checker.check_model(onnx.load(path), full_check=True)


def evaluation_scenes(images: torch.Tensor, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`samples` scenes of held-out digits, every original about equally often, in mixed order; and their originals."""
    generator = torch.Generator().manual_seed(3)
    rounds = -(-samples // len(images))
    order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(rounds)])[:samples]
    return scenes(images[order], generator), order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for digits.onnx and digits.npz")
    parser.add_argument("--weights", type=Path, help="file of trained weights: read where it exists, else written")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=16, help="scenes of every training original per epoch")
    parser.add_argument("--samples", type=int, default=5000, help="held-out scenes in digits.npz")
    parser.add_argument("--even", action="store_true", help="leave all streams as trained, to see what rescaling does")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    training, held_out = split_originals()
    network = Network().to(memory_format=torch.channels_last)
    if args.weights and args.weights.exists():
        network.load_state_dict(torch.load(args.weights, weights_only=True))
    else:
        train(network, *training, args.epochs, args.repeats)
        if args.weights:
            torch.save(network.state_dict(), args.weights)

    images, labels_of = held_out
    pixels, originals = evaluation_scenes(images, args.samples)
    labels = labels_of[originals]
    top1 = (logits_of(network, pixels).argmax(1) == labels).float().mean()
    print(f"float top-1 on {len(labels)} held-out scenes: {top1:.2%}")
    if not args.even:
        rescale_checked(network, pixels[:500])
    export(network.to(memory_format=torch.contiguous_format), args.out / "digits.onnx")
    # Scenes of one original belong together: what is hard about it is hard in all of them.
    arrays = {"image": pixels, "labels": labels, "clusters": originals}
    np.savez_compressed(args.out / "digits.npz", **{name: array.numpy() for name, array in arrays.items()})


if __name__ == "__main__":
    main()
