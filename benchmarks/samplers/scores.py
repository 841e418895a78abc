"""What a run is worth: its share of the best-known hypervolume over trials, and how near it came to a budget's best.

All scores use the answers without noise of what was tried, so that no method gains by a lucky measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.bench import Bench
from benchmarks.samplers.simulator import PRECISIONS, best_front
from benchmarks.samplers.simulator.problem import TIE_BAND, Problem
from benchmarks.samplers.simulator.simulated import Network
from studies.judging.rules.hypervolume import hypervolume_history

QUANTILES = (0.25, 0.5, 0.75)
BUDGET_TRIALS = 20
NEAR = 0.001  # a tenth of a point
_HAIR = 1e-9

Floats = NDArray[np.float64]


def about(network: Network) -> dict[str, Any]:
    """Facts about a network and its simulator that its scores rest on."""
    held_out, problem, front = network.simulator.held_out, network.problem, network.front
    ms, loss = problem.measures(np.array(list(problem.baselines.values())))
    uniform = hypervolume_history(ms, loss, np.ones(len(ms), bool), problem.reference)[-1]
    return {
        "digest": network.simulator.digest,
        "groups": len(problem.layout.groups),
        "held_out": {key: round(float(value), 6) for key, value in vars(held_out).items()},
        "misfit": [round(sd, 5) for sd in network.simulator.misfit_sds],
        "not_additive": round(not_additive(problem), 5),
        "noise": vars(problem.noise),
        "left_out": network.simulator.rows.left_out,
        "front": len(front.ms),
        "tried": front.tried,
        "volume": network.volume,
        "uniform_share": round(float(uniform / network.volume), 4),
        "baselines": dict(zip(problem.baselines, np.stack([ms, loss], axis=1).round(6).tolist(), strict=True)),
        "fastest_row": float(network.simulator.rows.latency_ms.min()),
        "budgets": {f"{q:g}": _budget(network, q) for q in QUANTILES},
    }


def not_additive(problem: Problem, fitted: int = 6000, judged: int = 2000) -> float:
    """Relative standard deviation that the best sum of terms of groups and of edges leaves of the latency.

    By least squares on assignments without noise, far more than any search makes, judged on others.
    """
    rng, total = np.random.default_rng(0), fitted + judged
    half, drawn = total // 2, (best_front.random, best_front.blocky)
    codes = np.concatenate([draw(problem, n, rng) for draw, n in zip(drawn, (half, total - half), strict=True)])
    precisions = problem.layout.precisions(rng.permutation(codes))
    ends = precisions[:, problem.layout.edges[:, 0]], precisions[:, problem.layout.edges[:, 1]]
    terms = [np.eye(PRECISIONS)[precisions], np.eye(PRECISIONS**2)[PRECISIONS * ends[0] + ends[1]]]
    features = np.concatenate([np.ones((total, 1)), *(term.reshape(total, -1) for term in terms)], axis=1)
    known, log_ms = features[:fitted], np.log(problem.truth(precisions)[0])
    gram = known.T @ known + 1e-3 * np.eye(known.shape[1])
    coefficients = np.linalg.solve(gram, known.T @ log_ms[:fitted])
    return float(np.std(log_ms[fitted:] - features[fitted:] @ coefficients))


def budget_ms(network: Network, quantile: float) -> float:
    """A quantile of the latencies on the best-known front, by a hair more.

    It may be the very latency of a mix there, whose last bits depend on which others are answered at the same time.
    """
    return float(np.quantile(network.front.ms, quantile)) * (1 + _HAIR)


def _budget(network: Network, quantile: float) -> dict[str, float]:
    """Budget, least known loss within it, and the tie band of that loss: half its 95 % interval."""
    ms = budget_ms(network, quantile)
    codes = network.front.codes[np.flatnonzero(network.front.ms <= ms)[-1]]
    tried = [network.problem.evaluate(codes, seed) for seed in range(20)]
    band = float(np.median([(m.loss_high - m.loss_low) / 2 for m in tried]))
    return {"ms": ms, "loss": network.front.best_loss(ms), "band": band, "samples": network.problem.noise.samples}


def over_trials(network: Network, bench: Bench) -> list[list[float]]:
    """[trial, share of the best-known hypervolume from then on], only where the share rises; the first is 1."""
    ms, loss = network.problem.measures(bench.codes())
    shares = hypervolume_history(ms, loss, np.ones(len(ms), bool), network.problem.reference) / network.volume
    rises = np.flatnonzero(np.diff(shares, prepend=-1.0) > 0)
    return [[int(place) + 1, round(float(shares[place]), 5)] for place in rises]


def within_budget(network: Network, bench: Bench) -> dict[str, float | None]:
    """Loss beyond the least known one within the budget; None where nothing kept it.

    `found`: of the best of all that was tried. `near`: the same, where the budget may be exceeded by the latency's tie
    band. `picked`: of what a user would pick, who sees only the noisy measures and is content with the budget on these;
    within that tie band.
    """
    budget = bench.budget_ms
    assert budget is not None, "a run without a budget"
    ms, loss = network.problem.measures(bench.codes())
    best = network.front.best_loss(budget)
    gap, near = (
        float(loss[ms <= most].min()) - best if (ms <= most).any() else None
        for most in (budget, budget * (1 + TIE_BAND))
    )
    measured = list(bench.measurements.values())
    order = sorted((m.loss, m.latency_ms, i) for i, m in enumerate(measured) if m.latency_ms <= budget)
    pick = order[0][2] if order else None
    fits = pick is not None and ms[pick] <= budget * (1 + TIE_BAND)
    picked = float(loss[pick]) - best if fits else None
    return {"found": _rounded(gap), "near": _rounded(near), "picked": _rounded(picked)}


def curve(steps: Sequence[Sequence[float]], trials: int) -> Floats:
    """(trials,) share after each trial, from what `over_trials` gave."""
    shares = np.zeros(trials)
    for trial, share in steps:
        shares[int(trial) - 1 :] = share
    return shares


def reached(steps: Sequence[Sequence[float]], share: float) -> float:
    """The first trial with at least that share; inf where there is none."""
    return next((float(trial) for trial, value in steps if value >= share), np.inf)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(max(value, 0.0), 6)
