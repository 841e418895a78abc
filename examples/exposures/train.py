"""Train the network of the example and write exposures.onnx. Needs PyTorch, onnx and four minutes of a core.

    python examples/exposures/train.py

It is trained as anybody would train it, on scenes that are drawn once and never again, and left as it is: no weight is
changed after training. Everything is seeded.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import onnx
import samples
import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
CLASSES = len(samples.SHAPES) * samples.COLOURS
WIDTHS = ((32, 1), (48, 2), (48, 1), (72, 2), (72, 1))  # channels and stride of each block
STEPS, BATCH, RATE = 2000, 125, 3e-3


class ConvNorm(nn.Sequential):
    """Convolution and BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Gate(nn.Module):
    """Squeeze-and-excitation: a factor for every channel, from the means of all channels."""

    def __init__(self, channels: int):
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = functional.adaptive_avg_pool2d(x, 1)
        return x * self.excite(functional.relu(self.squeeze(means))).sigmoid()


class Block(nn.Module):
    """ResNet's basic block with squeeze-and-excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first, self.second = ConvNorm(inputs, outputs, 3, stride), ConvNorm(outputs, outputs, 3)
        self.gate = Gate(outputs)
        self.skip = nn.Identity() if stride == 1 and inputs == outputs else ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.gate(self.second(functional.relu(self.first(x)))) + self.skip(x))


class Network(nn.Module):
    """(n, 4, 16, 16) float32, planes of a mosaic -> (n, 30) logits.

    Each channel of the first convolution is normalized over its own frame, so the blocks see frames of any exposure
    alike.
    """

    def __init__(self) -> None:
        super().__init__()
        inputs = WIDTHS[0][0]
        self.stem = nn.Conv2d(4, inputs, 3, padding=1, bias=False)
        self.norm = nn.InstanceNorm2d(inputs, affine=True)
        self.blocks = nn.Sequential()
        for outputs, stride in WIDTHS:
            self.blocks.append(Block(inputs, outputs, stride))
            inputs = outputs
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        x = self.blocks(functional.relu(self.norm(self.stem(raw))))
        return self.classifier(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def batches(steps: int):
    """So many batches of frames and labels in mixed order, each scene once."""
    scenes = -(-steps * BATCH // samples.FRAMES)
    generator = torch.Generator().manual_seed(1)
    for drawn in samples.blocks(samples.TRAINING_SEED, scenes):
        frames, labels = torch.from_numpy(drawn["raw"]), torch.from_numpy(drawn["labels"])
        order = torch.randperm(len(labels), generator=generator)
        frames = frames[order].contiguous(memory_format=torch.channels_last)
        yield from zip(frames.split(BATCH), labels[order].split(BATCH), strict=True)


def train(network: Network, steps: int) -> None:
    """Train in place; the rate rises for a tenth of the steps and falls to 0 as a cosine."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=2e-2)
    network.train()
    start, seen = time.process_time(), []
    for step, (x, y) in enumerate(batches(steps), 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(step / steps / 0.1 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * step / (steps + 1)))
        logits = network(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        seen.append((loss.item(), float((logits.argmax(1) == y).float().mean())))
        if step % 50 == 0:
            (mean, right), took = np.mean(seen[-50:], axis=0), time.process_time() - start
            print(f"step {step}/{steps}: loss {mean:.3f}, top-1 {right:.1%}, {took:.0f} s of a processor", flush=True)


@torch.no_grad()
def report(network: Network, scenes: int = 1000) -> None:
    """Print top-1 at each exposure, on scenes that were not trained on."""
    network.eval()
    (drawn,) = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in [list(samples.blocks(samples.FRESH_SEED, scenes))]
    ]
    logits = torch.cat([network(x) for x in torch.from_numpy(drawn["raw"]).split(250)])
    right = (logits.argmax(1).numpy() == drawn["labels"]).reshape(-1, samples.FRAMES)
    print(f"top-1 {right.mean():.2%}, from the longest exposure to the shortest:", *(f"{r:.1%}" for r in right.mean(0)))


def export(network: Network, path: Path) -> None:
    """Write the network as one ONNX file of opset 17 with a dynamic batch; BatchNorm is folded by the exporter."""
    network = network.eval().to(memory_format=torch.contiguous_format)
    torch.onnx.export(
        network, (torch.zeros(2, 4, 16, 16),), str(path), dynamo=False, opset_version=17,
        input_names=["raw"], output_names=["logits"],
        dynamic_axes={"raw": {0: "batch"}, "logits": {0: "batch"}},
    )  # fmt: skip
    onnx.checker.check_model(onnx.load(path), full_check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for exposures.onnx")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Network().to(memory_format=torch.channels_last)
    train(network, arguments.steps)
    report(network)
    export(network, arguments.out / "exposures.onnx")


if __name__ == "__main__":
    main()
