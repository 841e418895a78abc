"""A network of torchvision, trained on the generated images of `mobile`, as ONNX; run by a Python with torchvision.

usage: python -m benchmarks.peers.train_torchvision NAME OUT.onnx
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torchvision

from benchmarks.peers.samples import BLOCK, COLOURS, SHAPES, draw_block

BLOCKS, EPOCHS, BATCH = 80, 12, 8  # blocks of images that train; images that the file takes at a time
SIZE = 64


def images(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [draw_block("mobile", "train", number, size=SIZE) for number in range(first, first + count)]
    return tuple(torch.cat([torch.from_numpy(part[key]) for part in parts]) for key in ("image", "labels"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = getattr(torchvision.models, arguments.name)(num_classes=SHAPES * COLOURS).to(device)
    x, y = (each.to(device) for each in images(0, BLOCKS))
    steps = EPOCHS * -(-len(x) // 100)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), device=device).split(100):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval().cpu()
    x, y = images(BLOCKS, 4)
    with torch.no_grad():
        right = (torch.cat([model(part) for part in x.split(100)]).argmax(1) == y).double().mean()
    names = {"input_names": ["image"], "output_names": ["logits"]}
    torch.onnx.export(model, (x[:BATCH],), str(arguments.out), dynamo=False, opset_version=17, **names)
    print(json.dumps({"top1": float(right), "images": BLOCKS * BLOCK}))


if __name__ == "__main__":
    main()
