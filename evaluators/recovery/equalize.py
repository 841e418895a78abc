"""Equalization: channels of a stream are brought to alike ranges by powers of two, which change no float output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from evaluators.calibration.channels import ChannelValues, observe_channels
from evaluators.cores import usable_processors
from evaluators.lowering.placement import quantized_tensors
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import Proposal, RecoveryStep
from evaluators.recovery.streams.choice import Stream, kept_axes, magnitudes_of
from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.fp16_limits import limit_exponents
from evaluators.recovery.streams.layers import Layer, describe_layer, describe_tensor
from evaluators.recovery.streams.result import Exponents, Streams, factors_of
from search.graph.model import Model
from search.values import Precision, Ranges

_WORTH = 0.95  # of the noise: a smaller gain is left alone


class Equalize(RecoveryStep):
    """Divides channels of activations by powers of two and multiplies the weights that read them."""

    name = "equalize"
    summary = "brings the channels of each stream to alike ranges by powers of two; float outputs stay equal"
    exact = True

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        """Choose factors for every stream that no normalization writes: those are left to `smooth`."""
        model = context.model(ranges.recovery)
        streams = find_streams(model)
        wanted = [slots for slots in streams.components() if len(slots) > 1 and not streams.normalized & set(slots)]
        observed = observe_streams(context, model, streams, wanted)
        exponents = np.zeros(streams.count, np.int64)
        for stream in observed:
            exponents += _best(stream, streams.count)
        exponents = limit_exponents(model, streams, exponents)
        return propose_factors(context, ranges, streams, exponents)


def observe_streams(
    context: RecoveryContext, model: Model, streams: Streams, wanted: Iterable[list[int]]
) -> list[Stream]:
    """The streams of some slots with what their layers read on the fitting samples, of groups that INT8 is for."""
    wanted = list(wanted)
    inside = set[int]().union(*wanted)
    tensors = {name: s for name, s in streams.tensors.items() if inside & set(np.unique(s).tolist())}
    if not tensors:
        return []
    kept = {name: kept_axes(slots) for name, slots in tensors.items()}
    threads = usable_processors()
    values = observe_channels(model.graph, kept, context.fitting(), threads=threads, alive=context.alive)
    layers = _describe_layers(context, model, streams, values)
    names = quantized_tensors(model, context.int8, context.placement)
    symmetric = context.placement.symmetric
    rounded = [describe_tensor(tensors[n], values[n], symmetric=symmetric) for n in tensors if n in names]
    magnitudes = magnitudes_of(tensors, values, streams.count)
    found = []
    for slots in wanted:
        mine = [layer for layer in layers if np.isin(layer.slots, slots).any()]
        parts = [tensor for tensor in rounded if np.isin(tensor.slots, slots).any()]
        if mine and np.isfinite(magnitudes[slots]).all():
            found.append(Stream(slots, mine, parts, magnitudes[slots]))
    return found


def _describe_layers(
    context: RecoveryContext, model: Model, streams: Streams, values: dict[str, ChannelValues]
) -> list[Layer]:
    quantized = {name for g in model.groups if context.int8[g.id] is Precision.INT8 for name in g.anchors}
    read = [reader for reader in streams.readers if reader.node in quantized and reader.tensor in values]
    nodes = {node.name: node for node in model.graph.graph}
    bits = context.placement.weight_bits
    return [describe_layer(nodes[r.node], r, values[r.tensor], bits) for r in read]


def _best(stream: Stream, count: int) -> Exponents:
    found = np.zeros(count, np.int64)
    least = stream.noise(found) * _WORTH
    for _, exponents in stream.candidates(count):
        noise = stream.noise(exponents)
        if noise < least:
            found, least = exponents, noise
    return found


def propose_factors(
    context: RecoveryContext, ranges: Ranges, streams: Streams, exponents: Exponents, notes: tuple[str, ...] = ()
) -> Proposal | None:
    """Ranges of the model with factors added to what is recovered already; None where no exponent is other than 0."""
    if not exponents.any():
        return None
    factors = dict(ranges.recovery.factors)
    for name, factor in factors_of(streams.scalings, exponents).items():
        factors[name] = np.asarray(factors[name] * factor, np.float32) if name in factors else factor
    recovery = replace(ranges.recovery, factors=factors)
    return Proposal(context.calibrate(recovery), (*notes, *streams.notes))
