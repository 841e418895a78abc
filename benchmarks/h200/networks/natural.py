"""Train networks that are hard by nature, in sizes for a GPU, and write them with their data. Needs PyTorch and NumPy.

    python -m benchmarks.h200.networks.natural WORK                    # all three: under three minutes on an H200
    python -m benchmarks.h200.networks.natural WORK --only detector    # the SiLU network alone

They are those of `benchmarks.peers.networks`, wider and for larger images. Every network gets a folder in WORK with
`model.onnx` (opset 17, static batch), `search.npz`, `calibration.npz`, `final.npz`, and `training.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.peers import networks, samples
from benchmarks.peers.samples import BLOCK, Arrays

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Plan:
    """How a network is made.

    Attributes:
        size: pixels of a side.
        images: to train on; each is seen `steps` * `train_batch` / `images` times.
        batch: of the exported model.
    """

    make: Callable[[], nn.Module]
    size: int
    steps: int
    images: int = 20_000
    train_batch: int = 100
    batch: int = 32


PLANS: Mapping[str, Plan] = {
    "detector": Plan(partial(networks.Detector, width=4, depth=2), size=128, steps=2000),
    "mobile": Plan(partial(networks.Mobile, width=4), size=96, steps=1500),
    "segmenter": Plan(partial(networks.segmenter, width=3), size=96, steps=1000),
}
# From blocks of one purpose to another nothing overlaps; search and final are different blocks of one purpose.
SPLITS = {"calibration": ("calibration", 0, 2), "search": ("evaluation", 0, 12), "final": ("evaluation", 12, 36)}


def draw(pool: ProcessPoolExecutor, name: str, size: int, purpose: str, first: int, end: int) -> Arrays:
    """Blocks `first` to `end` of a purpose, drawn on all cores."""
    blocks = list(pool.map(partial(samples.draw_block, name, purpose, size=size), range(first, end)))
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


def make(name: str, plan: Plan, folder: Path, pool: ProcessPoolExecutor, shrink: int) -> None:
    """Draw the data, train, export; `shrink` divides how much of everything, to try it out."""
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    for split, (purpose, first, end) in SPLITS.items():
        last = first + max(1, (end - first) // shrink)
        np.savez(folder / f"{split}.npz", **draw(pool, name, plan.size, purpose, first, last))
    drawn = draw(pool, name, plan.size, "train", 0, max(1, plan.images // BLOCK // shrink))
    seconds = {"drawing": time.perf_counter() - start}
    torch.manual_seed(0)
    network = plan.make().to(DEVICE, memory_format=torch.channels_last)
    start = time.perf_counter()
    loss = train(name, network, drawn, max(3, plan.steps // shrink), max(4, plan.train_batch // shrink))
    seconds["training"] = time.perf_counter() - start
    networks.write(name, network.float().cpu(), folder / "model.onnx", size=plan.size, batch=plan.batch)
    figures = {
        "network": name,
        "parameters": sum(p.numel() for p in network.parameters()),
        "size": plan.size,
        "batch": plan.batch,
        "steps": plan.steps // shrink,
        "loss": loss,
        "seconds": {key: round(value, 1) for key, value in seconds.items()},
        "torch": torch.__version__,
    }
    (folder / "training.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures), flush=True)


def train(name: str, network: nn.Module, arrays: Arrays, steps: int, batch: int) -> float:
    """Train in place in bfloat16; the mean loss of the last fifty steps."""
    images = torch.from_numpy(arrays["image"]).to(DEVICE).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(arrays["labels"]).to(DEVICE)
    loss_of = networks.detection_loss if name == "detector" else networks.class_loss
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=2e-2)
    generator = torch.Generator().manual_seed(0)
    network.train()
    seen: list[torch.Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min((step + 1) / steps / 0.1, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        rows = torch.randint(len(images), (batch,), generator=generator).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = loss_of(network, images[rows], labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        seen.append(loss.detach())
    return float(torch.stack(seen[-50:]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", action="append", choices=list(PLANS), help="repeatable")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="an N-th of everything, to try it out")
    arguments = parser.parse_args()
    # The drawing processes are started before the GPU is touched, as they are forks of this one.
    with ProcessPoolExecutor() as pool:
        list(pool.map(abs, range(64)))
        for name in arguments.only or PLANS:
            make(name, PLANS[name], arguments.work / name, pool, arguments.shrink)


if __name__ == "__main__":
    main()
