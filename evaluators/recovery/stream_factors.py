"""Streams with their statistics, and factors as a proposal: the common part of both exact steps."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

import numpy as np

from evaluators.calibration.channels import observe_channels
from evaluators.cores import worthwhile_threads
from evaluators.lowering.int8.plan import quantized_tensors
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import Proposal
from evaluators.recovery.streams.choice import Stream, kept_axes, magnitudes_of
from evaluators.recovery.streams.fp16_limits import limit_exponents
from evaluators.recovery.streams.layers import describe_layer, describe_tensor
from evaluators.recovery.streams.result import Exponents, Reader, Streams, factors_of, join_factors
from search.graph.model import Model
from search.values import Ranges


def observe_streams(
    context: RecoveryContext,
    model: Model,
    streams: Streams,
    wanted: Iterable[list[int]],
    *,
    suits: Callable[[set[str], set[str]], bool] = lambda rounded, read: True,
) -> Iterator[Stream]:
    """The streams of some slots with what samples say of them, where groups that INT8 is for read them.

    Samples are run once, before the first, if there is a stream. One stream at a time, since each holds as much as its
    weights.

    Args:
        suits: (tensors of a stream that INT8 rounds, tensors that such groups read) → whether it is looked at.
    """
    names = quantized_tensors(model, context.assignment, context.placement)
    quantized = {name for g in model.groups if context.assignment[g.id].recovered for name in g.anchors}
    mine = [(slots, _tensors_with(streams, names, slots), _readers_of(streams, quantized, slots)) for slots in wanted]
    suitable = [(s, rounded, r) for s, rounded, r in mine if r and suits(set(rounded), {each.tensor for each in r})]
    inside = set[int]().union(*(slots for slots, _, _ in suitable))
    tensors = {name: s for name, s in streams.tensors.items() if inside & set(np.unique(s).tolist())}
    if not tensors:
        return
    kept = {name: kept_axes(slots) for name, slots in tensors.items()}
    threads = worthwhile_threads()
    values = observe_channels(model.graph, kept, context.fitting(), threads=threads, alive=context.alive)
    magnitudes = magnitudes_of(tensors, values, streams.count)
    symmetric = context.placement.symmetric
    for slots, rounded, readers in suitable:
        if not np.isfinite(magnitudes[slots]).all():
            continue
        layers = [
            describe_layer(model.graph.graph.node(r.node), r, values[r.tensor], context.placement.weight_bits)
            for r in readers
        ]
        described = [describe_tensor(name, tensors[name], values[name], symmetric=symmetric) for name in rounded]
        yield Stream(slots, layers, described, magnitudes[slots])


def _tensors_with(streams: Streams, names: Container[str], slots: list[int]) -> list[str]:
    """Tensors of some names that have one of these slots."""
    return [name for name, own in streams.tensors.items() if name in names and np.isin(own, slots).any()]


def _readers_of(streams: Streams, nodes: Container[str], slots: list[int]) -> list[Reader]:
    """The readers among some nodes that read one of these slots."""
    return [each for each in streams.readers if each.node in nodes and np.isin(each.slots, slots).any()]


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
