"""Held-out errors of the two surrogates, against ridge regression, on measured engines and on synthetic losses.

Latency: 89 and 28 engines of two random-weight networks on an H200, 70 of the example on a CPU with busy neighbours.
Loss: groups with log-normal noise through a curve and binomial top-1 of 1,000 samples; and the example's own.

usage: python benchmarks/surrogate.py [--repeats 6] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from random_networks import NAMES, Measured, free_layout, load_digits, load_measured

from search.forecast.priors import Baseline, LatencyPrior, latency_prior, noise_prior
from search.forecast.surrogate import Quality, fit_latency, fit_loss, quality
from search.graph.grouping import Edge
from search.space.layout import Layout, Precisions

Floats = NDArray[np.float64]
Predict = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[Floats, Floats]]
SIZES = (20, 40)
SAMPLES = 1000


def main(repeats: int = 6) -> dict[str, float]:
    """Flat figures: `NETWORK.MODEL.ROWS.FIGURE`, with figure one of error, ranks, coverage."""
    figures: dict[str, float] = {}
    for measured in [*map(load_measured, NAMES), load_digits()]:
        prior = latency_prior(measured.layout, baselines(measured))
        bare = latency_prior(measured.layout, baselines(measured, profiled=False))
        for name, predict in {
            "bayes": bayes(measured, prior),
            "bayes, no profiles": bayes(measured, bare),
            "ridge": ridge(measured, changes=False),
            "ridge + changes": ridge(measured, changes=True),
        }.items():
            for rows, found in held_out(measured, predict, repeats):
                figures |= told(f"{measured.name}.{name}.{rows}", found)
    figures |= synthetic_losses(repeats)
    figures |= digits_losses(repeats)
    return figures | speed()


def told(name: str, found: Sequence[Quality]) -> dict[str, float]:
    """Print and return means over repeats."""
    error, ranks, coverage = (
        float(np.nanmean([getattr(each, part) for each in found])) if found else float("nan")
        for part in ("error", "rank_correlation", "coverage")
    )
    print(f"{name:52} error {error:6.1%}  ranks {ranks:6.3f}  in 90 % interval {coverage:4.0%}", flush=True)
    return {f"{name}.error": error, f"{name}.ranks": ranks, f"{name}.coverage": coverage}


# -- latency -----------------------------------------------------------------------------------------------------------


def baselines(measured: Measured, profiled: bool = True) -> list[Baseline]:
    """The uniform engines."""
    found = []
    for row in np.flatnonzero(measured.uniform):
        precisions = measured.precisions[row]
        profile = measured.profiles[measured.layout.palette[precisions[0]]] if profiled else ()
        found.append(Baseline(precisions, float(measured.latency_ms[row]), profile))
    return found


def bayes(measured: Measured, prior: LatencyPrior) -> Predict:
    def predict(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Floats, Floats]:
        rows = measured.precisions[train], measured.latency_ms[train], measured.spread[train]
        return fit_latency(measured.layout, prior, *rows).predict(measured.precisions[test])

    return predict


def ridge(measured: Measured, changes: bool, penalty: float = 1.0) -> Predict:
    """Of latency on one-hot precisions, with or without one term for the number of changes; its interval is that of
    the residuals of its training rows."""
    groups = len(measured.layout.groups)
    features = np.eye(3)[measured.precisions].reshape(len(measured.precisions), 3 * groups)
    if changes:
        ends = measured.precisions[:, measured.layout.edges]
        count = (ends[:, :, 0] != ends[:, :, 1]).sum(axis=1)
        features = np.concatenate([features, count[:, None] / np.sqrt(len(measured.layout.edges))], axis=1)

    def predict(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Floats, Floats]:
        x, y = features[train] - features[train].mean(axis=0), measured.latency_ms[train]
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - y.mean()))
        found = y.mean() + (features[test] - features[train].mean(axis=0)) @ weights
        return found, np.full(len(test), float(np.std(y - y.mean() - x @ weights)))

    return predict


def held_out(measured: Measured, predict: Predict, repeats: int) -> Iterator[tuple[str, list[Quality]]]:
    """After the uniform engines alone, after 20 and 40 random mixes more, and 10-fold with all."""
    uniform, mixed = np.flatnonzero(measured.uniform), np.flatnonzero(~measured.uniform)

    def judged(train: NDArray[np.int64], test: NDArray[np.int64]) -> Quality:
        return quality(*predict(train, test), measured.latency_ms[test])

    yield "uniform", [judged(uniform, mixed)]
    for size in SIZES:
        if size < len(mixed):
            orders = [np.random.default_rng(i).permutation(mixed) for i in range(repeats)]
            yield f"{size}", [judged(np.concatenate([uniform, o[:size]]), o[size:]) for o in orders]
    found = []
    for repeat in range(min(repeats, 3)):
        mean, std = np.zeros((2, len(measured.latency_ms)))
        for fold in np.array_split(np.random.default_rng(repeat).permutation(mixed), 10):
            train = np.setdiff1d(np.arange(len(mean)), fold)
            mean[fold], std[fold] = predict(train, fold)
        found.append(quality(mean[mixed], std[mixed], measured.latency_ms[mixed]))
    yield "10-fold", found


# -- loss --------------------------------------------------------------------------------------------------------------


def synthetic_losses(repeats: int) -> dict[str, float]:
    """True losses are a known curve of additive noise; measured ones are paired differences of top-1 flips."""
    figures: dict[str, float] = {}
    layout = load_measured("resnet18").layout
    for name, known, power, worst in (
        ("straight", False, 1.0, 0.1),
        ("straight, sensitivities", True, 1.0, 0.1),
        ("root, sensitivities", True, 0.6, 0.3),
        ("steep", False, 1.6, 0.1),
        ("nothing lost", False, 1.0, 0.0002),
    ):
        for size in (5, *SIZES):
            found = [_synthetic(layout, known, power, worst, size, seed) for seed in range(repeats)]
            figures |= told(f"loss {name}.{size}", found)
    return figures


def _synthetic(layout: Layout, known: bool, power: float, worst: float, size: int, seed: int) -> Quality:
    rng = np.random.default_rng(seed)
    groups = len(layout.groups)
    noise = np.zeros((groups, 3))
    noise[:, 2] = rng.lognormal(0, 1.0, groups)
    noise[:, 1] = 0.01 * rng.lognormal(0, 1.0, groups)
    guess = noise * rng.lognormal(0, 0.4, noise.shape) if known else None
    precisions = np.concatenate([uniforms(groups), smooth(rng, size + 200, groups)])
    total = noise[np.arange(groups), precisions].sum(axis=1) / noise[:, 2].sum()
    truth = 0.6 * (1 - np.exp(-worst * total**power / 0.6))
    loss, std = measured_losses(truth, rng)
    train, test = slice(0, 3 + size), slice(3 + size, None)
    model = fit_loss(layout, noise_prior(layout, guess), precisions[train], loss[train], std[train])
    mean, predicted = model.predict(precisions[test])
    true = quality(mean, predicted, truth[test], max(worst, 0.01))
    # Errors and ranks against the truth, intervals against what is measured.
    shown = quality(mean, predicted, loss[test])
    return Quality(true.rank_correlation, true.error, shown.coverage, true.resolution, true.n)


def measured_losses(truth: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Paired top-1 losses: some samples turn wrong, and a fifth as many of them turn right."""
    wrong = rng.binomial(SAMPLES, np.clip(1.25 * truth, 0, 1))
    right = rng.binomial(SAMPLES, np.clip(0.25 * truth, 0, 1))
    loss = (wrong - right) / SAMPLES
    return loss, np.sqrt(np.maximum(wrong + right, 1) / SAMPLES - loss**2) / np.sqrt(SAMPLES)


def uniforms(groups: int) -> Precisions:
    return np.repeat(np.arange(3, dtype=np.int8)[:, None], groups, axis=1)


def smooth(rng: np.random.Generator, rows: int, groups: int) -> Precisions:
    """(rows, groups) random mixes with few changes of precision from one group to the next."""
    keep = rng.random((rows, groups)) < rng.uniform(0.3, 0.95, (rows, 1))
    drawn = rng.choice(3, (rows, groups), p=[0.2, 0.3, 0.5])
    keep[:, 0] = False
    last = np.maximum.accumulate(np.where(keep, 0, np.arange(groups)), axis=1)
    return np.take_along_axis(drawn, last, axis=1).astype(np.int8)


def digits_losses(repeats: int) -> dict[str, float]:
    """The example's losses, without sensitivities; errors as shares of what all INT8 loses."""
    digits, figures = load_digits(), {}
    uniform, mixed = np.flatnonzero(digits.uniform), np.flatnonzero(~digits.uniform)
    for size in SIZES:
        found = []
        for seed in range(repeats):
            order = np.random.default_rng(seed).permutation(mixed)
            train, test = np.concatenate([uniform, order[:size]]), order[size:]
            rows = digits.precisions[train], digits.loss[train], digits.loss_std[train]
            model = fit_loss(digits.layout, noise_prior(digits.layout), *rows)
            found.append(
                quality(*model.predict(digits.precisions[test]), digits.loss[test], digits.loss[uniform].max())
            )
        figures |= told(f"loss digits.{size}", found)
    return figures


# -- speed -------------------------------------------------------------------------------------------------------------


def speed(groups: int = 200, rows: int = 1000, asked: int = 2000, tries: int = 3) -> dict[str, float]:
    """Seconds, warm, the best of a few tries: this machine has neighbours."""
    rng = np.random.default_rng(0)
    names = [f"g{i:03d}" for i in range(groups)]
    spans = [(i, j) for j in range(groups) for i in range(max(0, j - 3), j)]
    layout = free_layout(names, [Edge(names[i], names[j], names[i], int(rng.integers(1, 9) * 1e5)) for i, j in spans])
    precisions, others = smooth(rng, rows, groups), smooth(rng, asked, groups)
    engines = [Baseline(row, ms) for row, ms in zip(uniforms(groups), (4.0, 2.2, 1.6), strict=True)]
    prior = latency_prior(layout, engines)
    ms = layout.values(prior.mean(), precisions) * rng.normal(1, 0.01, rows)
    truth = 0.1 * (precisions == 2).mean(axis=1)
    loss, std = measured_losses(truth, rng)
    noise = noise_prior(layout)
    parts = {
        "fit_latency": lambda: fit_latency(layout, prior, precisions, ms),
        "fit_loss": lambda: fit_loss(layout, noise, precisions, loss, std),
    }
    figures = {}
    for name, fit in parts.items():
        model = fit()
        figures[f"{name}_s"] = best_time(fit, tries)
        figures[f"{name}_predict_s"] = best_time(lambda model=model: model.predict(others), tries)
        figures[f"{name}_draw_s"] = best_time(lambda model=model: model.draw(rng), tries)
    print(f"{groups} groups, {len(spans)} edges, {rows} rows, {asked} predictions:")
    for name, seconds in figures.items():
        print(f"  {name:26} {1000 * seconds:7.1f} ms")
    return figures


def best_time(what: Callable[[], object], tries: int) -> float:
    found = []
    for _ in range(tries):
        start = time.perf_counter()
        what()
        found.append(time.perf_counter() - start)
    return min(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = main(arguments.repeats)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
