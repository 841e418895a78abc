"""Train the unseen networks and write what `bitfront search` needs for them. Needs PyTorch; for ResNet-18 scikit-learn.

    python benchmarks/h200/unseen.py WORK                                  # both, and ResNet-18 of the proof
    python benchmarks/h200/unseen.py WORK --networks silu segmentation
    python benchmarks/h200/unseen.py /tmp/w --networks silu --steps 20 --size 96 --images 40    # a try on a CPU

Writes WORK/NETWORK/model.onnx, training.json and data, and WORK/unseen_data.py, which says how to search. `silu` is a
YOLO-like detector (39 convolutions, CSP blocks, SiLU, two outputs, batch 16 at 192×192), `segmentation` a DeepLab-like
network (28 convolutions, 7×192×192 outputs). Both are hard to quantize, as far as they are, by nature: bright specks
in the input, and activations without an upper end. `resnet18` is that of train.py, with uneven channels.

A network that is there already is left as it is; `--again` trains it once more.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.h200 import unseen_data, unseen_scenes
from benchmarks.h200.unseen_networks import CLASSES, NETWORKS, OUTPUTS
from benchmarks.h200.unseen_scenes import Scenes

HERE = Path(__file__).resolve().parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = {"silu": 1600, "segmentation": 1400}
SEEDS = {"train": 11, "calibration": 12, "search": 13, "final": 14}
SHARES = {"calibration": 0.5, "search": 1.0, "final": 1.0}  # of --images
TRAIN_BATCH = 48
_DRAWN = 16  # scenes at a time, of the splits
_ALSO = "resnet18"


def train(name: str, network: nn.Module, steps: int, size: int) -> float:
    """Train in place on fresh scenes; seconds that it took."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    generator = torch.Generator(DEVICE).manual_seed(SEEDS["train"])
    network.train()
    start = time.perf_counter()
    for step in range(1, steps + 1):
        progress = step / steps
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(progress / 0.1 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * progress))
        scenes = unseen_scenes.draw(TRAIN_BATCH if DEVICE == "cuda" else 8, size, generator)
        image = scenes.image.contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            outputs = network(image)
        loss = _detection_loss(outputs, scenes) if name == "silu" else _mask_loss(outputs, scenes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        if step % 200 == 0:
            print(f"  step {step}, {time.perf_counter() - start:.0f} s, loss {loss.item():.3f}", flush=True)
    return time.perf_counter() - start


def _detection_loss(outputs: tuple[torch.Tensor, torch.Tensor], scenes: Scenes) -> torch.Tensor:
    """Binary cross-entropy of every cell and class, per object."""
    logits = torch.cat([part.float().flatten(2) for part in outputs], 2)
    wanted = functional.one_hot(scenes.cells.long(), CLASSES + 1)[..., 1:].transpose(1, 2).float()
    loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    return loss / wanted.sum().clamp(min=1)


def _mask_loss(logits: torch.Tensor, scenes: Scenes) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), scenes.mask.long())


def write_splits(name: str, folder: Path, size: int, images: int) -> None:
    """Draw the splits into `{split}-images.npy` and `{split}-labels.npy`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, share in SHARES.items():
        generator = torch.Generator(DEVICE).manual_seed(SEEDS[split])
        parts = list(_drawn(name, round(images * share), size, generator))
        for label, place in (("images", 0), ("labels", 1)):
            np.save(folder / f"{split}-{label}.npy", np.concatenate([part[place] for part in parts]))


def _drawn(name: str, count: int, size: int, generator: torch.Generator) -> Iterator[tuple[Any, Any]]:
    for start in range(0, count, _DRAWN):
        scenes = unseen_scenes.draw(min(_DRAWN, count - start), size, generator)
        yield scenes.image.cpu().numpy(), (scenes.cells if name == "silu" else scenes.mask).cpu().numpy()


@torch.no_grad()
def score(name: str, network: nn.Module, folder: Path) -> float:
    """What the float network scores on the search split, by the metric of the search."""
    network.eval()
    data = unseen_data.load(name, "search", folder)
    metric = unseen_data.DetectionF1()
    counts = np.zeros((CLASSES + 1, CLASSES + 1))
    for start in range(0, len(data["labels"]), _DRAWN):
        image = torch.from_numpy(np.array(data["image"][start : start + _DRAWN])).to(DEVICE)
        labels, outputs = data["labels"][start : start + _DRAWN], network(image)
        if name == "silu":
            metric.update({"fine": outputs[0].cpu().numpy(), "coarse": outputs[1].cpu().numpy()}, labels)
        else:
            classes = outputs.argmax(1).cpu().numpy()
            counts += np.bincount((labels * (CLASSES + 1) + classes).reshape(-1), minlength=counts.size).reshape(
                counts.shape
            )
    return metric.compute() if name == "silu" else _miou(counts)


def _miou(counts: Any) -> float:
    """Mean over classes of intersection over union, of (wanted, found) counts of pixels."""
    both = np.diag(counts)
    union = counts.sum(0) + counts.sum(1) - both
    return float((both[union > 0] / union[union > 0]).mean())


def export(name: str, network: nn.Module, path: Path, size: int, batch: int, opset: int) -> None:
    """One ONNX file with a static batch; the exporter folds BatchNorm."""
    network = network.eval().float().cpu().to(memory_format=torch.contiguous_format)
    names = {"input_names": ["image"], "output_names": OUTPUTS[name]}
    example = torch.zeros(batch, 3, size, size)
    torch.onnx.export(network, (example,), str(path), dynamo=False, opset_version=opset, **names)


def make(name: str, arguments: argparse.Namespace) -> None:
    """Train, score and export one network."""
    folder = arguments.work / name
    shutil.rmtree(folder, ignore_errors=True)
    write_splits(name, folder / "data", arguments.size, arguments.images)
    torch.manual_seed(0)
    network = NETWORKS[name]().to(DEVICE, memory_format=torch.channels_last)
    steps = arguments.steps or STEPS[name]
    seconds = train(name, network, steps, arguments.size)
    figures = {"network": name, "steps": steps, "seconds": seconds, "score": score(name, network, arguments.work)}
    figures |= {"size": arguments.size, "images": arguments.images, "torch": torch.__version__}
    figures["convolutions"] = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    export(name, network, folder / "model.onnx", arguments.size, arguments.batch, arguments.opset)
    (folder / "training.json").write_text(json.dumps(figures, indent=1))
    print(f"{name}: {steps} steps in {seconds:.0f} s; scores {figures['score']:.3f} on the search split", flush=True)


def make_resnet18(arguments: argparse.Namespace) -> None:
    """ResNet-18 of the proof, by train.py, and its scenes as files."""
    more = ["--steps", str(arguments.steps)] if arguments.steps else []
    command = [sys.executable, str(HERE / "train.py"), str(arguments.work), "--networks", _ALSO, *more]
    subprocess.run([*command, *arguments.train_options], check=True)
    from benchmarks.h200 import scenes

    for split in scenes.COUNTS:
        scenes.load(arguments.work / _ALSO / "data", split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS, _ALSO], default=[*NETWORKS, _ALSO])
    parser.add_argument("--steps", type=int, help=f"of training; default {STEPS}, ResNet-18 as train.py has it")
    parser.add_argument("--size", type=int, default=192, help="pixels of a side, a multiple of 32; not of ResNet-18")
    parser.add_argument("--batch", type=int, default=16, help="static batch of the exported models; not of ResNet-18")
    parser.add_argument("--images", type=int, default=600, help="of the search split, and as many final ones")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--again", action="store_true", help="train networks that are there once more")
    arguments, arguments.train_options = parser.parse_known_args()
    if arguments.train_options and _ALSO not in arguments.networks:
        parser.error(f"unknown options {' '.join(arguments.train_options)}; only {_ALSO} passes on those of train.py")
    arguments.work.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "unseen_data.py", arguments.work)
    torch.backends.cudnn.benchmark = True
    for name in arguments.networks:
        if (arguments.work / name / "model.onnx").exists() and not arguments.again:
            print(f"{name} is there already")
        elif name == _ALSO:
            make_resnet18(arguments)
        else:
            make(name, arguments)


if __name__ == "__main__":
    main()
