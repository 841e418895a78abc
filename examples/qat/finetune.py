"""Train a PyTorch network for INT8 with the configuration that `bitfront export --for qat` wrote.

    python examples/qat/finetune.py qat-example engine/handover/qat/qat.json      # a minute of one core; needs PyTorch

Every layer that the configuration has in INT8 computes on rounded weights and activations, while gradients pass through
the rounding. Prints the accuracy in INT8 before and after, on scenes that were not trained on, and writes tuned.onnx,
the float network to give to bitfront again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from network import TRAINING, Network, accuracy, export, fold_norms, tensors, train
from torch import nn

RATE = 0.002


class RoundedLayer(nn.Module):
    """A convolution or linear layer in INT8: it rounds what it reads, its weight, and where needed its output.

    Activations keep the scales of the configuration. The scale of each channel of the weight follows the weight, as it
    does in bitfront.
    """

    def __init__(self, layer: nn.Module, settings: dict[str, Any], tensors: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.weight = layer, settings["weight"]
        (self.input,) = (tensors[name] for name in settings["inputs"])
        self.output = tensors[settings["output"]] if settings["output"] else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        scale = weight.detach().flatten(1).abs().amax(1).clamp_min(1e-12) / self.weight["quant_max"]
        zero = torch.zeros_like(scale, dtype=torch.int32)
        limits = (self.weight["quant_min"], self.weight["quant_max"])
        rounded = torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, *limits)
        y = torch.func.functional_call(self.layer, {"weight": rounded}, (round_activation(x, self.input),))
        return y if self.output is None else round_activation(y, self.output)


def round_activation(x: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    limits = (settings["quant_min"], settings["quant_max"])
    return torch.fake_quantize_per_tensor_affine(x, settings["scale"], settings["zero_point"], *limits)


def round_layers(network: nn.Module, configuration: dict[str, Any]) -> list[str]:
    """Put a RoundedLayer in the place of every layer that runs in INT8; their names."""
    replaced = []
    for settings in configuration["layers"]:
        if settings["precision"] == "int8":
            parent, _, name = settings["module"].rpartition(".")
            owner = network.get_submodule(parent)
            setattr(owner, name, RoundedLayer(getattr(owner, name), settings, configuration["tensors"]))
            replaced.append(settings["module"])
    return replaced


def restore_layers(network: nn.Module, names: list[str]) -> None:
    """Undo `round_layers`; the trained weights stay."""
    for full in names:
        parent, _, name = full.rpartition(".")
        owner = network.get_submodule(parent)
        setattr(owner, name, getattr(owner, name).layer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train for INT8 for one epoch.")
    parser.add_argument("folder", type=Path, help="what network.py wrote")
    parser.add_argument("configuration", type=Path, help="qat.json of an export")
    given = parser.parse_args()
    configuration = json.loads(given.configuration.read_text(encoding="utf-8"))
    if configuration["source"]["rescaled"]:
        raise SystemExit(
            "reading the configuration: its scales are those of model.float.onnx, whose channels recovery rescaled. "
            "Search with --recover none for a configuration of your own weights."
        )
    torch.set_num_threads(1)
    network = Network()
    network.load_state_dict(torch.load(given.folder / "weights.pt", weights_only=True))
    fold_norms(network)  # the configuration is of folded weights
    held_out = tensors(3000, seed=3)
    print(f"FP32          {accuracy(network, *held_out):.2%}")
    names = round_layers(network, configuration)
    print(f"INT8 before   {accuracy(network, *held_out):.2%}   {len(names)} layers in INT8")
    train(network, *tensors(TRAINING, seed=1), epochs=1, rate=RATE, seed=0)
    print(f"INT8 after    {accuracy(network, *held_out):.2%}   one epoch of {TRAINING} scenes")
    restore_layers(network, names)
    export(network, given.folder / "tuned.onnx")
    print(f"wrote {given.folder / 'tuned.onnx'}")


if __name__ == "__main__":
    main()
