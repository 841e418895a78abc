"""Methods that are no samplers: what other tools do, and hill climbing. All begin with the uniform assignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.samplers.bench import Bench
from benchmarks.samplers.simulator.best_front import undominated
from search.space.layout import Codes


def probes_then_prefixes(bench: Bench) -> None:
    """AIMET's order: every group alone in every lower precision, then all of these in turn, the least harmful first."""
    highest = bench.baselines()[0]
    probes = [(d, code) for d, width in enumerate(bench.problem.widths) for code in range(1, width)]
    loss = [bench.evaluate(_with(highest, *probe)).loss for probe in probes]
    codes = highest
    # Of equal losses the lower precision: it is what the user came for.
    for place in sorted(range(len(probes)), key=lambda i: (loss[i], -probes[i][1])):
        decision, code = probes[place]
        if code > codes[decision]:
            codes = _with(codes, decision, code)
            bench.evaluate(codes)


def revert_worst(bench: Bench) -> None:
    """NNCF's order: from all INT8 every group alone one precision up, then all of these, the most helpful first."""
    lowest = bench.baselines()[-1]
    reverts = [d for d in range(len(lowest)) if lowest[d] > 0]
    loss = {d: bench.evaluate(_with(lowest, d, int(lowest[d]) - 1)).loss for d in reverts}
    codes = lowest
    for decision in sorted(reverts, key=lambda d: loss[d]):
        codes = _with(codes, decision, int(codes[decision]) - 1)
        bench.evaluate(codes)


def climb(bench: Bench) -> None:
    """Hill climbing on the front: a random point of it, one random decision changed, kept if none dominates it."""
    bench.baselines()
    climb_on(bench)


def climb_on(bench: Bench) -> None:
    """Hill climbing from all that was measured so far."""
    rng = np.random.default_rng([bench.seed, 1])
    while True:
        bench.evaluate(step_from(_front(bench), bench.problem.widths, bench.knows, rng))


def step_from(front: Codes, widths: Sequence[int], knows: Callable[[Codes], bool], rng: np.random.Generator) -> Codes:
    """(decisions,) a random row of the front with one random decision changed, so that it is new; else random codes.

    Args:
        front: (n, decisions) codes of the best that was measured.
        widths: how many codes each decision has.
        knows: whether codes were tried before.
    """
    row = front[rng.integers(len(front))]
    options = [_with(row, d, c) for d, width in enumerate(widths) for c in range(width)]
    fresh = [option for option in options if not knows(option)]
    if fresh:
        return fresh[rng.integers(len(fresh))]
    return np.array([rng.integers(width) for width in widths])  # all around it is known: jump


def _front(bench: Bench) -> Codes:
    measured = list(bench.measurements.values())
    ms, loss = (np.array([getattr(m, name) for m in measured]) for name in ("latency_ms", "loss"))
    return bench.codes()[undominated(ms, loss)]


def _with(codes: Codes, decision: int, code: int) -> Codes:
    changed = codes.copy()
    changed[decision] = code
    return changed
