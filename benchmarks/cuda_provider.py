"""Search ResNet-18 on ONNX Runtime's CUDA provider: which layers FP16 pays for there.

Needs an NVIDIA GPU, onnxruntime-gpu and torchvision. Weights are random (BatchNorm randomised), so accuracy means
agreement with FP32 and says nothing about a trained network.

usage: python benchmarks/cuda_provider.py [--trials 16] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from studies.show.front_table import front_json
from studies.show.progress_display import Lines
from studies.verbs import commands


def export_resnet(folder: Path) -> tuple[Path, Path]:
    """ResNet-18 as ONNX, batch 32 at 224×224, and 384 random images."""
    import torch
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    example = torch.randn(32, 3, 224, 224)
    torch.onnx.export(network, (example,), str(folder / "resnet18.onnx"), opset_version=17, dynamo=False)
    images = np.random.default_rng(0).standard_normal((384, 3, 224, 224)).astype(np.float32)
    name = commands.layers({"model": str(folder / "resnet18.onnx")}).model.inputs[0].name
    np.savez(folder / "data.npz", **{name: images})
    return folder / "resnet18.onnx", folder / "data.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", default="16")
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp()))
    arguments = parser.parse_args()
    folder = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    model, data = export_resnet(folder)
    from rich.console import Console

    options = {
        "model": str(model),
        "data": str(data),
        "study": "resnet18-cuda",
        "storage": f"sqlite:///{folder / 'cuda.db'}",
        "device": "cuda",
        "metric": "sqnr",
        "granularity": "block",
        "trials": arguments.trials,
    }
    start = time.monotonic()
    finished = commands.search(options, Lines(Console(highlight=False)))
    answer = front_json(finished.standing, finished.mixes)
    answer["seconds"] = time.monotonic() - start
    answer["not_obeyed"] = int(finished.standing.table.not_obeyed.clip(0).sum())
    answer["opaque"] = int(finished.standing.table.opaque.clip(0).sum())
    (folder / "cuda.json").write_text(json.dumps(answer, indent=1, default=str))
    for row in answer["rows"]:
        print(row["trial"], row["role"], row["latency_ms"], row["speedup"], row["metric"], row["mix"])
    print({key: answer[key] for key in ("evaluations", "seconds", "not_obeyed", "opaque", "latency_tie_band")})


if __name__ == "__main__":
    main()
