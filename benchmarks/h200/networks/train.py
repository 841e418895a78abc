"""Train the networks of the proof and export them to ONNX. Needs PyTorch, scikit-learn and minutes of a GPU.

    python -m benchmarks.h200.networks.train WORK            # all three: 35 s, 50 s and 100 s of training on an H200
    python -m benchmarks.h200.networks.train WORK --networks resnet18 --steps 3000
    python -m benchmarks.h200.networks.train WORK --even           # as trained: INT8 loses nothing

Writes, anew, for each network WORK/NETWORK/model.onnx, training.json and data/digits.npz, the held-out digits that
evaluation images are drawn from. 1,000 of scikit-learn's 1,797 digits are trained on, the rest held out.
SGD with momentum for the convolution networks, AdamW for the encoder, BatchNorm as usual. Seeds, algorithms and the
number of steps are fixed, so that a GPU of the same model with the same PyTorch makes the same network once more, and
its studies can be gone on with there.

As trained, all three lose nothing in INT8, measured on an H200: 0.3 ± 0.5 points (ResNet-18), 0.0 (MobileNetV2), 0.1
(encoder). So the convolution networks are then made harder to quantize, openly: two streams of each get channels of
uneven ranges, as those of real MobileNets have (see uneven.py). The float outputs stay what they were, bit for bit,
which is checked. How uneven is found by bisection: until INT8, simulated (see simulated_int8.py), loses `--lose` points
on the images of the search. The encoder stays as it was trained.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from benchmarks.h200.networks import scenes, simulated_int8, uneven
from benchmarks.h200.networks.layers import NETWORKS

TRAINED_ON = 1000
STEPS = {"resnet18": 1700, "mobilenet_v2": 1250, "vit_small": 2800}
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


def train(network: nn.Module, pool: Images, steps: int, batch: int, adaptive: bool) -> float:
    """Train in place; seconds that it took."""
    optimizer = _optimizer(network, adaptive, batch)
    peaks = [group["lr"] for group in optimizer.param_groups]
    network.train()
    start = time.perf_counter()
    for step in range(1, steps + 1):
        progress = step / steps
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
        if step % 200 == 0:
            print(f"  step {step}, {progress:.0%}, loss {loss.item():.3f}", flush=True)
    return time.perf_counter() - start


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
def logits(network: nn.Module, images: Images) -> torch.Tensor:
    network.eval()
    return torch.cat([network(x) for x, _ in images.batches(100)])


def ranges(network: nn.Module, splits: Mapping[str, Images]) -> simulated_int8.Ranges:
    return simulated_int8.ranges(network, lambda: logits(network, splits["calibration"]))


def simulated_top1(network: nn.Module, splits: Mapping[str, Images], split: str) -> float:
    """All INT8."""
    with simulated_int8.rounded(network, ranges(network, splits)):
        return top1(network, splits[split])


def made_uneven(
    name: str, network: nn.Module, splits: Mapping[str, Images], points: float
) -> tuple[nn.Module, dict[str, Any]]:
    """The network with uneven channels in its streams, and what that did.

    Raises:
        RuntimeError: the float outputs changed.
    """
    images, streams = splits["search"], uneven.STREAMS[name]
    true, before = top1(network, images), logits(network, images)
    changed, width = uneven.rescaled(
        network, streams, lambda copy: true - simulated_top1(copy, splits, "search"), points / 100
    )
    worst = float((logits(changed, images) - before).abs().max())
    if worst > 1e-5 * float(before.abs().max()):
        raise RuntimeError(f"{name}: the float outputs changed by {worst:.1e}; they must not")
    return changed, {"width": width, "outputs_differ_by": worst, "even_int8": simulated_top1(network, splits, "final")}


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
    splits: Mapping[str, Images],
    held_out: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    """Train, judge and export one network."""
    folder = arguments.work / name
    shutil.rmtree(folder, ignore_errors=True)  # a study of another network's weights is of no use
    save_digits(folder / "data", held_out, arguments.size)
    torch.manual_seed(0)
    network = NETWORKS[name](scenes.CLASSES, arguments.size).to(DEVICE, memory_format=torch.channels_last)
    adaptive = name.startswith("vit")
    steps = arguments.steps or STEPS[name]
    made = {"steps": steps, "seconds": train(network, pool, steps, arguments.train_batch, adaptive)}
    if name in uneven.STREAMS and not arguments.even:
        network, made["uneven"] = made_uneven(name, network, splits, arguments.lose)
    figures = {"network": name, **made, **judged(network, splits), **described(arguments, pool)}
    (folder / "training.json").write_text(json.dumps(figures, indent=1))
    export(network, folder / "model.onnx", arguments.size, arguments.batch, arguments.opset)
    tell(figures)


def judged(network: nn.Module, splits: Mapping[str, Images]) -> dict[str, Any]:
    figures = {"top1": top1(network, splits["final"]), "simulated_int8_top1": simulated_top1(network, splits, "final")}
    return {**figures, "parameters": sum(p.numel() for p in network.parameters())}


def described(arguments: argparse.Namespace, pool: Images) -> dict[str, Any]:
    names = ("size", "train_batch", "opset")
    return {**{name: getattr(arguments, name) for name in names}, "images": len(pool), "torch": torch.__version__}


def tell(figures: Mapping[str, Any]) -> None:
    name, loss = figures["network"], 100 * (figures["top1"] - figures["simulated_int8_top1"])
    print(f"{name}: {figures['steps']} steps, top-1 {figures['top1']:.1%}, simulated INT8 loses {loss:.1f} points")
    if "uneven" in figures:
        made = figures["uneven"]
        print(
            f"  width {made['width']:g}; as trained INT8 would lose {100 * (figures['top1'] - made['even_int8']):.1f} "
            f"points; float outputs differ by at most {made['outputs_differ_by']:.1e}"
        )
    sys.stdout.flush()


def save_digits(folder: Path, held_out: tuple[NDArray[Any], NDArray[Any]], size: int) -> None:
    folder.mkdir(parents=True)
    images, values = held_out
    np.savez_compressed(folder / "digits.npz", images=images, labels=values, size=size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--steps", type=int, help=f"of training; default {STEPS}")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="static batch of the exported model")
    parser.add_argument("--train-batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=15_000, help="scenes to train on")
    parser.add_argument("--even", action="store_true", help="leave the networks as trained")
    parser.add_argument("--uneven", dest="even", action="store_false", help="uneven channels in two streams (default)")
    parser.add_argument("--lose", type=float, default=5.0, help="points that simulated INT8 is to lose")
    parser.add_argument("--opset", type=int, default=17)
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # of what is judged; training has its own types
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is first used
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it
    training, held_out = split_digits()
    size, start = arguments.size, time.perf_counter()
    # Drawn before the GPU is touched: the drawing processes are forks of this one.
    drawn = scenes.draw_all(*training, scenes.SEEDS["train"], arguments.images, size)
    parts = {s: scenes.draw_all(*held_out, scenes.SEEDS[s], scenes.COUNTS[s], size) for s in scenes.COUNTS}
    print(f"drew {arguments.images} scenes in {time.perf_counter() - start:.0f} s", flush=True)
    pool, splits = on_device(drawn), {split: on_device(part) for split, part in parts.items()}
    for name in arguments.networks:
        make(name, arguments, pool, splits, held_out)


if __name__ == "__main__":
    main()
