"""Train the networks of the proof and export them to ONNX. Needs PyTorch, scikit-learn and minutes of a GPU.

    python benchmarks/h200/train.py WORK                      # all three, 75 s of training each (the encoder 150 s)
    python benchmarks/h200/train.py WORK --networks resnet18 --seconds 60

Writes, anew, for each network WORK/NETWORK/model.onnx, training.json and data/digits.npz, the held-out digits that
evaluation images are drawn from. 1,000 of scikit-learn's 1,797 digits are trained on, the rest held out.
Plain training: SGD with momentum for the convolution networks, AdamW for the encoder, BatchNorm as usual, no tricks
that make a network easier or harder to quantize. At the end every network is run with simulated INT8 (inputs per
tensor by min-max, weights per channel), which foretells whether INT8 loses anything.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.h200 import scenes
from benchmarks.h200.networks import NETWORKS

TRAINED_ON = 1000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Images:
    """`pixels` (n, 3, size, size) float16 on the device, `labels` (n,) int64."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for x, y in zip(self.pixels.split(size), self.labels.split(size), strict=True):
            yield x.float(), y


def split_digits() -> tuple[tuple[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]:
    """(images (n, 8, 8) uint8, values (n,)) to train on, and held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, values = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(images))
    train, held_out = order[:TRAINED_ON], order[TRAINED_ON:]
    return (images[train], values[train]), (images[held_out], values[held_out])


def on_device(drawn: tuple[NDArray[Any], NDArray[Any]]) -> Images:
    return Images(torch.from_numpy(drawn[0]).to(DEVICE), torch.from_numpy(drawn[1]).to(DEVICE))


def train(network: nn.Module, pool: Images, seconds: float, batch: int, adaptive: bool) -> int:
    """Train in place for so many seconds; steps done. The learning rate follows the clock, so any GPU will do."""
    optimizer = _optimizer(network, adaptive, batch)
    peaks = [group["lr"] for group in optimizer.param_groups]
    network.train()
    start, steps = time.perf_counter(), 0
    while (progress := (time.perf_counter() - start) / seconds) < 1:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * min(progress / 0.08 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * progress))
        chosen = torch.randint(len(pool), (batch,), device=DEVICE)
        x = _varied(pool.pixels[chosen].float())
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = functional.cross_entropy(network(x), pool.labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        steps += 1
        if steps % 200 == 0:
            print(f"  step {steps}, {progress:.0%}, loss {loss.item():.3f}", flush=True)
    return steps


def _optimizer(network: nn.Module, adaptive: bool, batch: int) -> torch.optim.Optimizer:
    if adaptive:
        return torch.optim.AdamW(network.parameters(), lr=6e-4, weight_decay=0.05)
    # Norms and biases are decayed too, as torchvision's reference training does.
    return torch.optim.SGD(network.parameters(), lr=0.1 * batch / 256, momentum=0.9, nesterov=True, weight_decay=1e-4)


def _varied(x: torch.Tensor) -> torch.Tensor:
    """Shifted by up to a sixteenth of the side, colours exchanged: a batch at a time, which costs nothing."""
    size = x.shape[-1]
    down, right = torch.randint(-size // 16, size // 16 + 1, (2,)).tolist()
    x = x.roll((down, right), (2, 3))[:, torch.randperm(3, device=x.device)]
    return x.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def top1(network: nn.Module, images: Images) -> float:
    network.eval()
    right = sum(int((network(x).argmax(1) == y).sum()) for x, y in images.batches(100))
    return right / len(images)


@torch.no_grad()
def simulated_int8_top1(network: nn.Module, calibration: Images, images: Images) -> float:
    """Top-1 with the inputs of all weighted layers but those that read pixels rounded as INT8 engines do."""
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear) and m.weight.shape[1] != 3]
    largest: dict[nn.Module, float] = dict.fromkeys(layers, 0.0)

    def observe(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        largest[layer] = max(largest[layer], float(inputs[0].abs().max()))

    def quantize(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (_rounded(inputs[0], torch.tensor(largest[layer] or 1.0)),)

    with _hooked(layers, observe):
        top1(network, calibration)
    weights = {layer: layer.weight.clone() for layer in layers}
    for layer in layers:
        layer.weight.copy_(_rounded(layer.weight, layer.weight.flatten(1).abs().amax(1).clamp_min(1e-12)))
    with _hooked(layers, quantize):
        found = top1(network, images)
    for layer in layers:
        layer.weight.copy_(weights[layer])
    return found


@contextmanager
def _hooked(layers: list[Any], hook: Any) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rounded(x: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    scale = (magnitude / 127).to(x.device).reshape(-1, *[1] * (x.dim() - 1))
    return (x / scale).round().clamp(-127, 127) * scale


def export(network: nn.Module, path: Path, size: int, batch: int, opset: int) -> None:
    """One ONNX file with a static batch; the exporter folds BatchNorm."""
    network = network.eval().float().cpu().to(memory_format=torch.contiguous_format)
    example = torch.zeros(batch, 3, size, size)
    names = {"input_names": ["image"], "output_names": ["logits"]}
    torch.onnx.export(network, (example,), str(path), dynamo=False, opset_version=opset, **names)


def make(
    name: str,
    arguments: argparse.Namespace,
    pool: Images,
    splits: dict[str, Images],
    held_out: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    """Train, judge and export one network."""
    folder = arguments.work / name
    shutil.rmtree(folder, ignore_errors=True)  # a study of another network's weights is of no use
    save_digits(folder / "data", held_out, arguments.size, arguments.glints)
    torch.manual_seed(0)
    network = NETWORKS[name](scenes.CLASSES, arguments.size).to(DEVICE, memory_format=torch.channels_last)
    adaptive = name.startswith("vit")
    seconds = arguments.seconds * (2 if adaptive else 1)
    steps = train(network, pool, seconds, arguments.train_batch, adaptive)
    figures = {
        "network": name,
        "size": arguments.size,
        "glints": arguments.glints,
        "steps": steps,
        "batch": arguments.train_batch,
        "images": len(pool),
        "seconds": seconds,
        "top1": top1(network, splits["final"]),
        "simulated_int8_top1": simulated_int8_top1(network, splits["calibration"], splits["final"]),
        "parameters": sum(p.numel() for p in network.parameters()),
        "torch": torch.__version__,
    }
    (folder / "training.json").write_text(json.dumps(figures, indent=1))
    export(network, folder / "model.onnx", arguments.size, arguments.batch, arguments.opset)
    loss = 100 * (figures["top1"] - figures["simulated_int8_top1"])
    print(f"{name}: {steps} steps, top-1 {figures['top1']:.1%}, simulated INT8 loses {loss:.1f} points", flush=True)


def save_digits(folder: Path, held_out: tuple[NDArray[Any], NDArray[Any]], size: int, glints: float) -> None:
    folder.mkdir(parents=True)
    images, values = held_out
    np.savez_compressed(folder / "digits.npz", images=images, labels=values, size=size, glints=glints)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=75, help="of training; the encoder gets twice that")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="static batch of the exported model")
    parser.add_argument("--train-batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=30_000, help="scenes to train on")
    parser.add_argument("--glints", type=float, default=0.0, help="brightness of rare highlights, in white; 0: none")
    parser.add_argument("--opset", type=int, default=17)
    arguments = parser.parse_args()
    training, held_out = split_digits()
    size, glints, start = arguments.size, arguments.glints, time.perf_counter()
    # Drawn before the GPU is touched: the drawing processes are forks of this one.
    drawn = scenes.draw_all(*training, scenes.SEEDS["train"], arguments.images, size, glints)
    parts = {s: scenes.draw_all(*held_out, scenes.SEEDS[s], scenes.COUNTS[s], size, glints) for s in scenes.COUNTS}
    print(f"drew {arguments.images} scenes in {time.perf_counter() - start:.0f} s", flush=True)
    pool, splits = on_device(drawn), {split: on_device(part) for split, part in parts.items()}
    for name in arguments.networks:
        make(name, arguments, pool, splits, held_out)


if __name__ == "__main__":
    main()
