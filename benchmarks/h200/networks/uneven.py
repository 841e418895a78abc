"""Channels of very different ranges, without changing what a network computes.

Trained for a minute, the convolution networks lose nothing in INT8: no mix could be worth anything. Networks in use
lose much, above all because the channels of a tensor, which share one scale, have very uneven ranges. That is brought
about here on purpose in two streams of each network: every layer that writes a stream gets its output channel c
multiplied by 2^-k, every layer that reads it gets its input channel c divided by the same. Between the two stand only
residual Adds, ReLU and pooling, which commute with positive factors, and powers of two touch no mantissa bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

LARGEST = 10.0  # k up to 10: FP16 still holds what is left of the smallest channels
_STEP = 0.125


@dataclass(frozen=True)
class Stream:
    """`writers` are the BatchNorms behind convolutions, `readers` convolutions or the classifier, by name.

    `more` is added to the width, for a stream that bears more than the other.
    """

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    more: float = 0.0

    @property
    def layers(self) -> set[str]:
        """The weighted layers at both ends."""
        return {*map(_convolution_before, self.writers), *self.readers}


# Where FP16 is cheap enough on an H200 for a mix to be worth it: with both streams in FP16 and the rest in INT8 a
# network should take 1.08 to 1.09 of its INT8 latency, going by layer times and rows measured earlier.
STREAMS: dict[str, tuple[Stream, ...]] = {
    "resnet18": (
        Stream(("layer2.1.bn1",), ("layer2.1.conv2",)),
        Stream(("layer4.0.bn2", "layer4.0.downsample.1", "layer4.1.bn2"), ("layer4.1.conv1", "fc")),
    ),
    "mobilenet_v2": (
        Stream(
            ("features.11.conv.3", "features.12.conv.3", "features.13.conv.3"),
            ("features.12.conv.0.0", "features.13.conv.0.0", "features.14.conv.0.0"),
        ),
        Stream(("features.17.conv.3",), ("features.18.0",), more=1.5),
    ),
}


@torch.no_grad()
def rescale(network: nn.Module, streams: Sequence[Stream], width: float) -> None:
    """Scale the streams in place: every k from 0 to `width` about equally often, in mixed order.

    Args:
        width: from 0, which changes nothing, to `LARGEST`; between whole numbers the largest k is rarer. No stream
            gets more than `LARGEST`.
    """
    if not 0 <= width <= LARGEST:
        raise ValueError(f"expected a width from 0 to {LARGEST:g}, got {width}")
    generator = torch.Generator().manual_seed(2)
    for stream in streams:
        readers = [network.get_submodule(name) for name in stream.readers]
        channels = readers[0].weight.shape[1]
        places = torch.randperm(channels, generator=generator) / channels
        reach = min(width + stream.more, LARGEST) if width else 0.0
        factors = (0.5 ** (places * (reach + 1)).floor()).to(readers[0].weight)
        for name in stream.writers:
            norm = network.get_submodule(name)
            norm.weight *= factors
            norm.bias *= factors
        for reader in readers:
            reader.weight /= factors.reshape(-1, *[1] * (reader.weight.dim() - 2))


def rescaled(
    network: nn.Module, streams: Sequence[Stream], loss_of: Callable[[nn.Module], float], wanted: float
) -> tuple[nn.Module, float]:
    """A copy that loses about `wanted`: the least width that loses as much, or the largest there is, and that width.

    Args:
        loss_of: what a network loses in INT8; it grows with the width, so bisection finds the place.
    """
    low, high = 0, round(LARGEST / _STEP)
    while high - low > 1:
        middle = (low + high) // 2
        if loss_of(_copy(network, streams, middle * _STEP)) >= wanted:
            high = middle
        else:
            low = middle
    return _copy(network, streams, high * _STEP), high * _STEP


def _copy(network: nn.Module, streams: Sequence[Stream], width: float) -> nn.Module:
    changed = copy.deepcopy(network)
    rescale(changed, streams, width)
    return changed


def _convolution_before(norm: str) -> str:
    head, _, last = norm.rpartition(".")
    return f"{head}.conv{last[2:]}" if last.startswith("bn") else f"{head}.{int(last) - 1}"
