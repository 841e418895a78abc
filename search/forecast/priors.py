"""Priors of latency and noise before any mix is measured, from the uniform engines and from sensitivities.

On an H200 such priors, from the three uniform engines alone, predicted mixed engines of ResNet-18 and MobileNetV2
within 2.2 % and 1.3 %. Layers of the profile were assigned to the groups beside which they run. One conversion per
tensor was assumed, with a time from the smallest kernel and the memory traffic of the profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.errors import SurrogateError
from search.space.layout import Costs, Layout, Precisions
from search.values import LayerTime

# What a change of precision costs without a profile, as a share of an average group in the slowest baseline; half of it
# is the same for all, half grows with the tensor. Measured: 0.16 (ResNet-18) and 0.42 (MobileNetV2) on an H200.
_USUAL_CHANGE = 0.3
# Relative standard deviations of a group's time: timed alone in a profile, timed with others in one layer or in a
# precision whose engine is fused otherwise, and not timed. Profiling itself adds to short layers.
_PROFILED, _SHARED, _UNMEASURED = 0.15, 0.6, 0.8
_NODE_FLOOR = 0.25  # of an average group: a group that is nearly free in a profile is not known better than that
_LEAST_SENSITIVE = 1e-4  # of an average group: nothing is without loss, and logarithms are taken
_NAMELESS = 0.1  # share of a profile in layers of no group above which some are regions, not only reformats
# Relative standard deviations of what changes of precision cost: as profiles timed them, and without a profile. Known,
# they are still other changes than those of a mix.
_KNOWN_CHANGE, _GUESSED_CHANGE = 0.5, 1.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """One measured engine, usually uniform.

    Attributes:
        precisions: (groups,) int8 precisions that its groups ran in.
        profile: its layers in the order in which they ran; empty if it was not profiled.
    """

    precisions: Precisions
    latency_ms: float
    profile: tuple[LayerTime, ...] = ()


@dataclass(frozen=True)
class LatencyPrior:
    """Gaussian priors of latency, in milliseconds.

    A change of precision on an edge costs `constant + moved`. Uncertain are a factor on each of the two for every pair
    of precisions, and a factor for each edge.

    Attributes:
        nodes, nodes_std: (groups, precisions).
        constant: (edges,) part of a change that does not depend on the size of the tensor.
        moved: (edges, precisions, precisions) part of a change by bytes read and written; zero without a change.
        change_std: relative standard deviation of those factors.
        opaque: (groups,) whether a group runs inside a layer that shows none of its groups; None if not known.
        broken: (engines, groups) precisions of baselines whose profiles show what others run as a whole.
    """

    base_std: float
    nodes: Floats
    nodes_std: Floats
    constant: Floats
    moved: Floats
    change_std: float
    opaque: NDArray[np.bool_] | None = None
    broken: Sequence[Precisions] = ()

    def mean(self) -> Costs:
        """The expected costs."""
        return Costs(0.0, self.nodes.copy(), self.changes())

    def changes(self) -> Floats:
        """(edges, precisions, precisions) expected milliseconds of each change."""
        return (self.constant[:, None, None] + self.moved) * ~np.eye(self.moved.shape[1], dtype=bool)


@dataclass(frozen=True)
class NoisePrior:
    """Log-normal priors of the noise that each group adds, relative to all groups in the worst precision.

    Attributes:
        nodes: (groups, precisions) most probable noise, zero in FP32.
        log_std: standard deviation of its natural logarithm.
    """

    nodes: Floats
    log_std: float


def latency_prior(layout: Layout, baselines: Sequence[Baseline], work: Floats | None = None) -> LatencyPrior:
    """Expect each group to take as long as in the uniform engines.

    Args:
        baselines: measured engines. A group's time counts for the precision that it really ran in.
        work: (groups,) relative work, such as multiply-adds, by which a latency is divided among groups if there is
            no profile; None divides it evenly.

    Raises:
        SurrogateError: there is no baseline, or a latency is not a positive number.
    """
    if not baselines or not all(np.isfinite(b.latency_ms) and b.latency_ms > 0 for b in baselines):
        got = [b.latency_ms for b in baselines]
        raise SurrogateError(
            f"predicting latency needs measured baselines, each with a positive latency; got latencies {got}. "
            "`bitfront show STUDY 0` shows why a uniform assignment failed."
        )
    share = _shares(layout, baselines, work)
    constant, moved, known = _changes(layout, baselines)
    changes = LatencyPrior(0.0, share, share, constant, moved, 1.0).changes()
    nodes, std = _nodes(layout, baselines, share, changes)
    fastest = min(baseline.latency_ms for baseline in baselines)
    floor = _NODE_FLOOR * nodes.mean(axis=0)
    std = std * np.sqrt(nodes**2 + floor**2)
    change_std = _KNOWN_CHANGE if known else _GUESSED_CHANGE
    opaque, broken = hidden(layout, baselines), [b.precisions for b in _broken_up(layout, baselines)]
    return LatencyPrior(0.02 * fastest, nodes, std, constant, moved, change_std, opaque, broken)


def hidden(layout: Layout, baselines: Sequence[Baseline]) -> NDArray[np.bool_] | None:
    """(groups,) whether a group has no layer of its own in any profile, although a profile has layers without a group.

    None if nothing was profiled, or if layers without a group take too little time to be regions.
    """
    profiled = [baseline for baseline in baselines if baseline.profile]
    nameless = [
        sum(layer.ms for layer in b.profile if layer.group is None and not layer.moves)
        / max(sum(layer.ms for layer in b.profile), 1e-300)
        for b in profiled
    ]
    if not profiled or max(nameless) < _NAMELESS:
        return None
    shown = np.any([_own(layout, baseline) > 0 for baseline in profiled], axis=0)
    return np.asarray(~shown)


def noise_prior(layout: Layout, sensitivities: Floats | None = None) -> NoisePrior:
    """Expect the noise that was measured for each group; without measurements, the same noise of every group.

    Args:
        sensitivities: (groups, precisions) relative output error with that group alone in that precision, NaN if not
            measured; None if nothing was measured.

    Raises:
        SurrogateError: the shape is wrong.
    """
    shape = (len(layout.groups), len(layout.palette))
    usual = np.tile([precision.usual_noise for precision in layout.palette], (shape[0], 1)) / max(shape[0], 1)
    if sensitivities is None:
        return NoisePrior(usual, 1.0)
    if sensitivities.shape != shape:
        raise SurrogateError(f"sensitivities: expected an array of shape {shape}, got {sensitivities.shape}.")
    noise = np.where(np.isfinite(sensitivities), np.maximum(sensitivities, 0.0), np.nan)
    worst = np.nansum(noise, axis=0).max(initial=0.0)
    if not worst > 0:
        return NoisePrior(usual, 1.0)
    noise = np.where(np.isnan(noise), usual, noise / worst)
    nodes = np.maximum(noise, _LEAST_SENSITIVE * usual)
    nodes[:, 0] = 0.0  # of FP32
    return NoisePrior(nodes, 0.7)


# -- time of groups ----------------------------------------------------------------------------------------------------


def _nodes(layout: Layout, baselines: Sequence[Baseline], share: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """(groups, precisions) times, and their relative standard deviations."""
    total, weight = np.zeros((2, len(layout.groups), len(layout.palette)))
    std = np.full_like(total, _UNMEASURED)
    places = np.arange(len(layout.groups))
    broken = _broken_up(layout, baselines)
    for baseline in baselines:
        times, profiled = _times(layout, baseline, share)
        spent = layout.values(Costs(0.0, np.zeros_like(total), changes), baseline.precisions[None])[0]
        times = times * max(baseline.latency_ms - spent, 0.5 * baseline.latency_ms) / times.sum()
        # What was profiled counts more than what was shared out.
        trust = 100.0 if profiled else 1.0
        total[places, baseline.precisions] += trust * times
        weight[places, baseline.precisions] += trust
        at = std[places, baseline.precisions]
        # An engine of several precisions may break up what others fuse; among fused groups one takes another time.
        known = profiled and not any(baseline is each for each in broken)
        std[places, baseline.precisions] = np.minimum(at, _PROFILED if known else _SHARED)
    return _fill_means(layout, total, weight), std


def _broken_up(layout: Layout, baselines: Sequence[Baseline]) -> list[Baseline]:
    """Engines of several precisions that show the groups which an engine of one precision fuses."""
    fused = any(b.profile and _is_uniform(b) and _opaque(layout, b) for b in baselines)
    return [b for b in baselines if fused and b.profile and not _is_uniform(b) and not _opaque(layout, b)]


def _is_uniform(baseline: Baseline) -> bool:
    return bool((baseline.precisions == baseline.precisions[0]).all())


def _fill_means(layout: Layout, total: Floats, weight: Floats) -> Floats:
    """Means; for a precision that a group was not measured in, from its other precisions and their usual ratios."""
    usual = np.array([precision.usual_time for precision in layout.palette])
    mean = total / np.maximum(weight, 1e-300)
    as_fp32 = (mean / usual * (weight > 0)).sum(axis=1) / np.maximum((weight > 0).sum(axis=1), 1)
    return np.where(weight > 0, mean, as_fp32[:, None] * usual)


def _times(layout: Layout, baseline: Baseline, share: Floats) -> tuple[Floats, bool]:
    """(groups,) relative times in one engine, and whether they come from a profile."""
    if _opaque(layout, baseline):
        visible = _own(layout, baseline)
        hidden = np.where(visible > 0, 0.0, share)
        rest = sum(layer.ms for layer in baseline.profile) - visible.sum()
        if hidden.sum() > 0 and rest > 0:
            return visible + rest * hidden / hidden.sum(), False
        return share, False
    place = {group: i for i, group in enumerate(layout.groups)}
    mixed, own = bool(_find_changes(layout, baseline).any()), _own(layout, baseline)
    times, before, waiting = np.zeros(len(place)), None, 0.0
    for layer in baseline.profile:
        if layer.moves and mixed:  # these are what the changes cost, which edges stand for
            continue
        # Pools, normalisations and conversions run as the group beside them does: before it at the input, else after.
        before = place.get(layer.group or "", before)
        nameless = layer.group is None and not layer.moves
        inside = _hidden_after(own, before) if nameless else np.zeros(0, dtype=np.int64)
        if len(inside):  # a region that shows none of its groups
            times[inside] += (layer.ms + waiting) * share[inside] / share[inside].sum()
            waiting = 0.0
        elif before is None:
            waiting += layer.ms
        else:
            times[before] += layer.ms + waiting
            waiting = 0.0
    return times, True


def _hidden_after(own: Floats, before: int | None) -> NDArray[np.int64]:
    """Indices of the following groups without a layer of their own."""
    start = 0 if before is None else before + 1
    shown = np.flatnonzero(own[start:] > 0)
    return np.arange(start, start + int(shown[0]) if len(shown) else len(own))


def _opaque(layout: Layout, baseline: Baseline) -> bool:
    """Whether the profile shows too little, because most groups run inside layers that belong to none."""
    own = _own(layout, baseline)
    work = sum(layer.ms for layer in baseline.profile if not layer.moves)
    return bool(own.sum() <= 0.5 * work or (own > 0).sum() <= 0.5 * len(own))


def _own(layout: Layout, baseline: Baseline) -> Floats:
    """(groups,) times of the layers that belong to one group alone."""
    place = {group: i for i, group in enumerate(layout.groups)}
    times = np.zeros(len(place))
    for layer in baseline.profile:
        if layer.group in place and not layer.moves:
            times[place[layer.group]] += layer.ms
    return times


def _shares(layout: Layout, baselines: Sequence[Baseline], work: Floats | None) -> Floats:
    """(groups,) shares of a latency, sum 1: from profiles if they show something, else from work, else equal."""
    shown = [_own(layout, baseline) for baseline in baselines if not _opaque(layout, baseline)]
    if shown:
        shares = np.sum([own / own.sum() for own in shown], axis=0)
        if work is not None and np.sum(work[shares > 0]) > 0:  # what no profile shows, by its work
            shares = np.where(shares > 0, shares, work * shares.sum() / np.sum(work[shares > 0]))
    else:
        shares = np.ones(len(layout.groups)) if work is None or not np.sum(work) > 0 else np.asarray(work, float)
    shares = shares + 1e-3 * shares.mean()
    return np.asarray(shares / shares.sum())


# -- what a change of precision costs ----------------------------------------------------------------------------------


def _changes(layout: Layout, baselines: Sequence[Baseline]) -> tuple[Floats, Floats, bool]:
    """(edges,) costs by count, (edges, precisions, precisions) costs by size, and whether they come from a profile."""
    size = _sizes(layout)
    width, count = _widths(layout), len(layout.palette)
    moved = size[:, None, None] * (width[:, None] + width[None]) * ~np.eye(count, dtype=bool)
    # A tensor is converted once for all its readers in another precision.
    readers = np.bincount(layout.edges[:, 0], minlength=len(layout.groups))[layout.edges[:, 0]]
    each = 1.0 / np.maximum(readers, 1)
    profiled = [b for b in baselines if not _opaque(layout, b)]
    if profiled and len(size):
        floor, per_byte = _kernel_floor(profiled), _per_byte(layout, profiled, size)
    else:
        slowest = max(baseline.latency_ms for baseline in baselines)
        usual = 0.5 * _USUAL_CHANGE * slowest / max(len(layout.groups), 1)
        typical = float(moved.mean() * count / (count - 1)) if len(size) and count > 1 else 1.0
        floor, per_byte = usual, usual / max(typical, 1e-300)
    constant, moved = floor * each, per_byte * moved * each[:, None, None]
    factor = _seen(layout, profiled, constant, moved)
    return factor * constant, factor * moved, bool(profiled)


def _widths(layout: Layout) -> Floats:
    """(precisions,) bytes of one value."""
    return np.array([precision.value_bytes for precision in layout.palette])


def _sizes(layout: Layout) -> Floats:
    """(edges,) elements; the typical number if a shape is unknown."""
    known = layout.elements[layout.elements > 0]
    return np.where(layout.elements > 0, layout.elements, np.median(known) if len(known) else 1.0)


def _scale(baseline: Baseline) -> float:
    """The measured latency divided by the profiled one, because profiling makes every layer slower."""
    return baseline.latency_ms / sum(layer.ms for layer in baseline.profile)


def _kernel_floor(profiled: Sequence[Baseline]) -> float:
    """The shortest time of any layer, as of a kernel that does nearly nothing."""
    return min(_scale(b) * min((t.ms for t in b.profile if t.ms > 0), default=np.inf) for b in profiled)


def _per_byte(layout: Layout, profiled: Sequence[Baseline], size: Floats) -> float:
    """Milliseconds a byte of the groups that do least beside reading and writing."""
    source, target = layout.edges[:, 0], layout.edges[:, 1]
    elements = np.bincount(target, size, len(layout.groups))
    largest = np.zeros(len(layout.groups))
    np.maximum.at(largest, source, size)
    elements = np.maximum(elements + largest, size.min())
    lowest_rates = []
    for baseline in profiled:
        width = _widths(layout)[baseline.precisions]
        own = _own(layout, baseline) * _scale(baseline)
        rates = (own / (elements * width))[own > 0]
        lowest_rates.append(np.quantile(rates, 0.1))
    return float(np.median(lowest_rates))


def _find_changes(layout: Layout, baseline: Baseline) -> NDArray[np.bool_]:
    """(edges,) whether the precision changes on an edge."""
    ends = baseline.precisions[layout.edges]
    return np.asarray(ends[:, 0] != ends[:, 1])


def _seen(layout: Layout, profiled: Sequence[Baseline], constant: Floats, moved: Floats) -> float:
    """Measured over expected time of conversions, in baselines where some group keeps a higher precision."""
    moves: Mapping[bool, list[tuple[float, float]]] = {False: [], True: []}
    for baseline in profiled:
        changed = _find_changes(layout, baseline)
        ends = baseline.precisions[layout.edges]
        expected = (constant + moved[np.arange(len(ends)), ends[:, 0], ends[:, 1]])[changed].sum()
        took = _scale(baseline) * sum(layer.ms for layer in baseline.profile if layer.moves)
        moves[bool(changed.any())].append((took, float(expected)))
    around = [took for took, _ in moves[False]]
    at_ends = float(np.mean(around)) if around else 0.0
    ratios = [np.log(np.clip((took - at_ends) / expected, 0.25, 4.0)) for took, expected in moves[True]]
    return float(np.exp(np.mean(ratios))) if ratios else 1.0
