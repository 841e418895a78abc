"""Train a PyTorch network for INT8 with the configuration that `bitfront export --for qat` wrote.

    python examples/qat/finetune.py qat-example engine/handover/qat/qat.json    # 15 s of one core; needs PyTorch, onnx

Every layer that the configuration has in INT8 computes on rounded weights and activations, while gradients pass through
the rounding. The weights and the scales of the activations learn to give the outputs of the float network. Prints the
accuracy in INT8 before and after, on scenes that were not trained on, and writes two files to give to bitfront again:
tuned.onnx, the float network, and ranges.toml, the ranges of its activations in INT8.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from network import TRAINING, Network, accuracy, export, fold_norms, tensors, train
from torch import nn
from torch.nn import functional

WEIGHT_RATE, SCALE_RATE = 0.002, 0.1


class RoundedActivation(nn.Module):
    """Rounds a tensor to INT8 with a learned scale (LSQ); all layers that read or write the tensor share it.

    The zero point stays. What is learned is the logarithm of the factor on the configuration's scale, so that one
    learning rate suits tensors of all sizes.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.log_factor = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = self.settings["scale"] * self.log_factor.exp(), self.settings["zero_point"]
        codes = (x / scale + zero).clamp(self.settings["quant_min"], self.settings["quant_max"])
        codes = codes + (codes.round() - codes).detach()  # rounded, with the gradient of what is not rounded
        return (codes - zero) * scale

    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that INT8 represents."""
        factor = float(self.log_factor.detach().exp())
        return self.settings["low"] * factor, self.settings["high"] * factor


class RoundedLayer(nn.Module):
    """A convolution or linear layer in INT8: it rounds what it reads, its weight, and where needed its output.

    The scale of each channel of the weight follows the weight, as it does in bitfront.
    """

    def __init__(
        self, layer: nn.Module, settings: dict[str, Any], activations: Mapping[str, RoundedActivation]
    ) -> None:
        super().__init__()
        self.layer, self.weight = layer, settings["weight"]
        (self.input,) = (activations[name] for name in settings["inputs"])
        self.output = activations[settings["output"]] if settings["output"] else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        scale = weight.detach().flatten(1).abs().amax(1).clamp_min(1e-12) / self.weight["quant_max"]
        zero = torch.zeros_like(scale, dtype=torch.int32)
        limits = (self.weight["quant_min"], self.weight["quant_max"])
        rounded = torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, *limits)
        return self.output(torch.func.functional_call(self.layer, {"weight": rounded}, (self.input(x),)))


def round_layers(
    network: nn.Module, layers: list[dict[str, Any]], activations: Mapping[str, RoundedActivation]
) -> list[str]:
    """Put a RoundedLayer in the place of every layer that runs in INT8; their names."""
    replaced = []
    for settings in layers:
        if settings["precision"] == "int8":
            parent, _, name = settings["module"].rpartition(".")
            owner = network.get_submodule(parent)
            setattr(owner, name, RoundedLayer(getattr(owner, name), settings, activations))
            replaced.append(settings["module"])
    return replaced


def restore_layers(network: nn.Module, names: list[str]) -> None:
    """Undo `round_layers`; the trained weights stay."""
    for full in names:
        parent, _, name = full.rpartition(".")
        owner = network.get_submodule(parent)
        setattr(owner, name, getattr(owner, name).layer)


@torch.no_grad()
def float_outputs(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([network(some) for some in images.split(500)])


def write_ranges(activations: Mapping[str, RoundedActivation], path: Path) -> None:
    """Write the learned ranges as options `--range` in a file for `bitfront search --config`."""
    ends = {name: activation.range() for name, activation in activations.items()}
    rules = [f"  '^{re.escape(name)}$={low:.6g}:{high:.6g}',\n" for name, (low, high) in ends.items()]
    path.write_text(f"range = [\n{''.join(rules)}]\n", encoding="utf-8")


def read_configuration(path: Path) -> dict[str, Any]:
    configuration: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if configuration["source"]["rescaled"]:
        raise SystemExit(
            "reading the configuration: its scales are those of model.float.onnx, whose channels recovery rescaled. "
            "Search with --recover none for a configuration of your own weights."
        )
    return configuration


def main() -> None:
    parser = argparse.ArgumentParser(description="Train for INT8 for one epoch.")
    parser.add_argument("folder", type=Path, help="what network.py wrote")
    parser.add_argument("configuration", type=Path, help="qat.json of an export")
    parser.add_argument("--seed", type=int, default=0, help="order of the training scenes")
    given = parser.parse_args()
    configuration = read_configuration(given.configuration)
    torch.set_num_threads(1)
    network = Network()
    network.load_state_dict(torch.load(given.folder / "weights.pt", weights_only=True))
    fold_norms(network)  # the configuration is of folded weights
    held_out, (images, _) = tensors(3000, seed=3), tensors(TRAINING, seed=1)
    print(f"FP32          {accuracy(network, *held_out):.2%}")
    goals = float_outputs(network, images)
    weights = list(network.parameters())
    activations = {name: RoundedActivation(settings) for name, settings in configuration["tensors"].items()}
    names = round_layers(network, configuration["layers"], activations)
    print(f"INT8 before   {accuracy(network, *held_out):.2%}   {len(names)} layers in INT8")
    rates = [(weights, WEIGHT_RATE), ([one.log_factor for one in activations.values()], SCALE_RATE)]
    train(network, images, goals, functional.mse_loss, rates, epochs=1, seed=given.seed)
    print(f"INT8 after    {accuracy(network, *held_out):.2%}   one epoch of {TRAINING} scenes")
    restore_layers(network, names)
    export(network, given.folder / "tuned.onnx")
    write_ranges(activations, given.folder / "ranges.toml")
    print(f"wrote {given.folder / 'tuned.onnx'} and {given.folder / 'ranges.toml'}")


if __name__ == "__main__":
    main()
