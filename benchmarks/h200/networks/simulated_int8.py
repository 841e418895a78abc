"""INT8 simulated in PyTorch, so that it is known before any engine is built what a network will lose.

As TensorRT's engines do it: weights per output channel, activations per tensor by their largest value on the
calibration images; every weighted layer, the first included. What a residual block reads is rounded before it branches,
so its skip connection carries the rounded values too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from benchmarks.h200.networks.layers import BasicBlock, InvertedResidual

Ranges = dict[str, float]


def layers(network: nn.Module) -> dict[str, nn.Module]:
    """Name → weighted layer, in the order they were defined."""
    return {name: m for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def ranges(network: nn.Module, run: Callable[[], object]) -> Ranges:
    """Name → largest magnitude that every weighted layer and residual block reads while `run` runs the network."""
    found = dict.fromkeys(_readers(network), 0.0)

    def observing(name: str) -> Any:
        def observe(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            found[name] = max(found[name], float(inputs[0].abs().max()))

        return observe

    with _hooked(network, {name: observing(name) for name in found}):
        run()
    return found


@contextmanager
def rounded(network: nn.Module, largest: Ranges, names: Collection[str] | None = None) -> Iterator[None]:
    """Let the named weighted layers compute as in INT8, nothing else; None: all of them, and the residual blocks."""
    readers = _readers(network)
    chosen = {name: module for name, module in readers.items() if names is None or name in names}

    def rounding(name: str) -> Any:
        def round_input(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
            return (_rounded(inputs[0], torch.tensor(largest[name] or 1.0)),)

        return round_input

    weights = {m: m.weight.clone() for m in chosen.values() if isinstance(m, nn.Conv2d | nn.Linear)}
    try:
        with torch.no_grad():
            for layer, weight in weights.items():
                layer.weight.copy_(_rounded(weight, weight.flatten(1).abs().amax(1).clamp_min(1e-12)))
        with _hooked(network, {name: rounding(name) for name in chosen}):
            yield
    finally:
        with torch.no_grad():
            for layer, weight in weights.items():
                layer.weight.copy_(weight)


def _readers(network: nn.Module) -> dict[str, nn.Module]:
    kinds = (nn.Conv2d, nn.Linear, BasicBlock, InvertedResidual)
    return {name: module for name, module in network.named_modules() if isinstance(module, kinds)}


@contextmanager
def _hooked(network: nn.Module, hooks: dict[str, Any]) -> Iterator[None]:
    handles = [network.get_submodule(name).register_forward_pre_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rounded(x: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    scale = (magnitude / 127).to(x.device).reshape(-1, *[1] * (x.dim() - 1))
    return (x / scale).round().clamp(-127, 127) * scale
