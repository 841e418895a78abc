"""Streams with their statistics, and factors as a proposal: the common part of both exact steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from evaluators.calibration.channels import ChannelValues, observe_channels
from evaluators.cores import worthwhile_threads
from evaluators.lowering.int8.plan import quantized_tensors
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import Proposal
from evaluators.recovery.streams.choice import Stream, kept_axes, magnitudes_of
from evaluators.recovery.streams.fp16_limits import limit_exponents
from evaluators.recovery.streams.layers import RoundedLayer, describe_layer, describe_tensor
from evaluators.recovery.streams.result import Exponents, Streams, factors_of, join_factors
from search.graph.model import Model
from search.values import Ranges


def observe_streams(
    context: RecoveryContext, model: Model, streams: Streams, wanted: Iterable[list[int]]
) -> Iterator[Stream]:
    """The streams of some slots with what samples say of them, where groups that INT8 is for read them.

    Samples are run once, before the first. One stream at a time, since each holds as much as its weights.
    """
    wanted = list(wanted)
    inside = set[int]().union(*wanted)
    tensors = {name: s for name, s in streams.tensors.items() if inside & set(np.unique(s).tolist())}
    if not tensors:
        return
    kept = {name: kept_axes(slots) for name, slots in tensors.items()}
    threads = worthwhile_threads()
    values = observe_channels(model.graph, kept, context.fitting(), threads=threads, alive=context.alive)
    magnitudes = magnitudes_of(tensors, values, streams.count)
    names = quantized_tensors(model, context.int8, context.placement)
    symmetric = context.placement.symmetric
    for slots in wanted:
        if not np.isfinite(magnitudes[slots]).all():
            continue
        layers = list(_describe_layers(context, model, streams, values, slots))
        mine = [name for name, found in tensors.items() if name in names and np.isin(found, slots).any()]
        rounded = [describe_tensor(name, tensors[name], values[name], symmetric=symmetric) for name in mine]
        if layers:
            yield Stream(slots, layers, rounded, magnitudes[slots])


def _describe_layers(
    context: RecoveryContext, model: Model, streams: Streams, values: dict[str, ChannelValues], slots: list[int]
) -> Iterator[RoundedLayer]:
    quantized = {name for g in model.groups if context.int8[g.id].recovered for name in g.anchors}
    for reader in streams.readers:
        if reader.node in quantized and np.isin(reader.slots, slots).any():
            node, seen = model.graph.graph.node(reader.node), values[reader.tensor]
            yield describe_layer(node, reader, seen, context.placement.weight_bits)


def propose_factors(
    context: RecoveryContext, ranges: Ranges, streams: Streams, exponents: Exponents, cut: str = ""
) -> Proposal | None:
    """Ranges of the model with factors added to what is recovered already.

    If none remains that FP16 holds, the same ranges where time was short; else None.

    Args:
        cut: as of `Proposal`.
    """
    exponents = limit_exponents(context.model(ranges.recovery), streams, exponents)
    if not exponents.any():
        return Proposal(ranges, cut=cut) if cut else None
    factors = dict(ranges.recovery.factors)
    for name, more in factors_of(streams.scalings, exponents).items():
        factors[name] = join_factors(factors.get(name, ()), more)
    recovery = replace(ranges.recovery, factors=factors)
    return Proposal(context.calibrate(recovery), tuple(streams.notes), cut)
