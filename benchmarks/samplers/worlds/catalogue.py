"""The worlds by name, as problems that every method of the sampler benchmark can search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import MEASURED
from benchmarks.samplers.simulator.noise import Noise
from benchmarks.samplers.simulator.problem import TIE_BAND, Problem
from benchmarks.samplers.worlds import graphs, latency, loss
from benchmarks.samplers.worlds.graphs import Graph
from benchmarks.samplers.worlds.latency import Latency
from benchmarks.samplers.worlds.loss import Loss
from search.space.choices import Choice, Space, Variable
from search.space.layout import Layout, Precisions, make_layout
from search.values import LayerTime, Precision

Floats = NDArray[np.float64]
_PROFILED, _SENSED = 0.08, 0.2  # relative errors of a profile's layers and of sensitivities
_PROFILING = 1.2  # what profiling adds to every layer


@dataclass(frozen=True)
class Recipe:
    """How a world is made.

    Attributes:
        graph: makes the graph of a number of groups.
        tangled: see `loss.make`.
        worst: share of right answers that all INT8 loses.
        opaque: what an opaque region does whose precisions are mixed.
        shown: whether profiles time the groups inside of opaque regions.
        products: whether products of activations have no INT8; then uniform INT8 has them in FP16.
        between: how many precisions there are between FP16 and INT8; they stand as BF16 and W8, whose place that is.
        killers: groups that make most of the loss, and that amplify one another.
        noise: of measurements, with the tie band that a study would measure under it.
    """

    graph: Callable[[int, np.random.Generator], Graph]
    groups: int
    tangled: float = 0.4
    worst: float = 0.12
    opaque: str = "slowest"
    shown: bool = False
    products: bool = False
    between: int = 0
    killers: int = 0
    noise: Noise = field(default_factory=Noise)
    tie_band: float = TIE_BAND


# Losses that no study can tell from none, and measurements as of a busy machine with few samples.
_LOSSLESS, _NOISY, _WIDE_BAND = 0.0005, Noise(latency_sd=0.02, samples=300), 0.035
_PRODUCTS = ("scores", "context")  # of activations
_BETWEEN = (Precision.BF16, Precision.W8)
WORLDS = {
    "branching_22": Recipe(graphs.branching, 22),
    "residual_60": Recipe(graphs.residual, 60),
    "mobile_61": Recipe(graphs.mobile, 61, worst=0.25),
    "tangled_60": Recipe(graphs.residual, 60, tangled=1.0, worst=0.3),
    "attention_slowest_62": Recipe(graphs.attention, 62),
    "encoder_broken_62": Recipe(graphs.encoder, 62, opaque="broken", shown=True),
    "branching_152": Recipe(graphs.branching, 152),
    "mobile_154": Recipe(graphs.mobile, 154, worst=0.25),
    "residual_400": Recipe(graphs.residual, 400),
    "lossless_22": Recipe(graphs.branching, 22, worst=_LOSSLESS),
    "lossless_60": Recipe(graphs.residual, 60, worst=_LOSSLESS),
    "lossless_mobile_61": Recipe(graphs.mobile, 61, worst=_LOSSLESS),
    "lossless_encoder_62": Recipe(graphs.encoder, 62, worst=_LOSSLESS, opaque="broken", shown=True),
    "lossless_152": Recipe(graphs.branching, 152, worst=_LOSSLESS),
    "noisy_60": Recipe(graphs.residual, 60, noise=_NOISY, tie_band=_WIDE_BAND),
    "noisy_lossless_60": Recipe(graphs.residual, 60, worst=_LOSSLESS, noise=_NOISY, tie_band=_WIDE_BAND),
    "attention_products_62": Recipe(graphs.attention, 62, products=True),
    "encoder_products_62": Recipe(graphs.encoder, 62, opaque="broken", products=True),
    "alike_401": Recipe(graphs.alike, 401),
    "loud_60": Recipe(graphs.residual, 60, noise=Noise(latency_sd=0.05, samples=200), tie_band=0.085),
    "killers_60": Recipe(graphs.residual, 60, killers=3),
    "between_60": Recipe(graphs.residual, 60, between=1),
    "five_60": Recipe(graphs.residual, 60, between=2),
}


@dataclass(frozen=True)
class Truth:
    """Latency and loss of a world without noise."""

    latency: Latency
    loss: Loss

    def __call__(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) precisions to (n,) ms and (n,) loss."""
        return self.latency(precisions), self.loss(precisions)


@cache
def make(name: str) -> Problem:
    """The world of a name; the same at every call."""
    recipe = WORLDS[name]
    rng = np.random.default_rng([recipe.groups, *name.encode()])
    graph = recipe.graph(recipe.groups, rng)
    palette = (*MEASURED[:-1], *_BETWEEN[: recipe.between], MEASURED[-1])
    layout = _layout(graph, palette, _PRODUCTS if recipe.products else ())
    took = latency.make(graph, layout, recipe.opaque, rng)
    truth = Truth(took, loss.make(graph, recipe.tangled, recipe.worst, recipe.killers, rng, recipe.between))
    groups = len(graph.names)
    codes = {precision.label: layout.codes_of(layout.space.uniform(precision)) for precision in layout.palette}
    profiles = {
        precision: _profile(graph, truth.latency, precisions, recipe.shown, rng)
        for precision, precisions in zip(layout.palette, layout.uniforms, strict=True)
    }
    problem = Problem(name, layout, truth, truth.loss.output_error, codes, profiles, recipe.noise)
    alone = _alone(truth.loss, groups, len(layout.palette), rng)
    return replace(problem, alone=alone, work=np.array(graph.work), tie_band=recipe.tie_band)


def _layout(graph: Graph, palette: tuple[Precision, ...], floats: tuple[str, ...]) -> Layout:
    """The layout where groups of these kinds do not have the last precision."""
    kinds = zip(graph.names, graph.kinds, strict=True)
    offered = {name: palette[:-1] if kind in floats else palette for name, kind in kinds}
    choices = {group: tuple(Choice(precision, True) for precision in some) for group, some in offered.items()}
    space = Space(choices, tuple(Variable(group, (group,), some) for group, some in offered.items()))
    return make_layout(graph.names, graph.edges, space, graph.blocks)


def _profile(
    graph: Graph, truth: Latency, uniform: Precisions, shown: bool, rng: np.random.Generator
) -> tuple[LayerTime, ...]:
    """Layers of a uniform engine; an opaque region is one layer of no group, unless groups inside are shown."""
    took = _PROFILING * truth.by_group(uniform[None])[0] * rng.lognormal(0, _PROFILED, len(graph.names))
    regions = [] if shown else graph.regions
    first = {members[0]: members for members in regions}
    hidden = {member for members in regions for member in members}
    layers = []
    for i, name in enumerate(graph.names):
        if i in first:
            members = first[i]
            region = f"{{ForeignNode[{graph.names[members[0]]}...{graph.names[members[-1]]}]}}"
            layers.append(LayerTime(region, "Myelin", None, False, float(took[members].sum())))
        elif i not in hidden:
            layers.append(LayerTime(name, "Conv", name, False, float(took[i])))
    return tuple(layers)


def _alone(truth: Loss, groups: int, count: int, rng: np.random.Generator) -> Floats:
    """(groups, precisions) output error of each group alone, as some samples estimate it."""
    rows = np.zeros((groups * count, groups), dtype=np.int8)
    places = np.arange(groups)
    for precision in range(count):
        rows[places * count + precision, places] = precision
    error = truth.output_error(rows).reshape(groups, count)
    return np.asarray(error * rng.lognormal(0, _SENSED, error.shape))
