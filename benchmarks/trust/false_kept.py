"""How often a loss just beyond the limit is called `kept`: draws of which the true loss is known.

A verdict asks whether an upper bound of the loss keeps the limit. Here the true loss is the limit itself, by a hair on
the wrong side, so that every `kept` is wrong, and no other loss beyond the limit gives more of them. Of shares every
draw is judged; of other scores draws are left out whose mean is not even 1.2 standard errors below the limit, which no
bound calls kept.

usage: python -m benchmarks.trust.false_kept [--draws 20000] [--write]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table, write_tables
from evaluators.measure.mean_bounds import LossUnits, batch_losses, sample_losses
from studies.gate.loss import count_units

Floats = NDArray[np.float64]
Random = np.random.Generator
Draw = Callable[[Random, tuple[int, int]], Floats]
LEVEL, SHARE = 0.05, 1.0
SIZES = (50, 180, 300, 1000, 10_000)
LIMITS = (0.01, 0.05)
WON = (0.0, 0.002, 0.01, 0.1)
BEYOND = "1 % carry the whole loss"
_NEAR = 1.2  # standard errors
_QUARTER = "without bounds"  # kinds of which a quarter of the draws has to do
HEAD = ("scores", "independent units", "cases", "draws each", "most `kept` that are wrong", "where")


@dataclass(frozen=True)
class Case:
    """Draws of one kind.

    Attributes:
        units: how many are independent in a draw, in words.
        count: draws → how many of them are called kept.
    """

    kind: str
    units: str
    name: str
    count: Callable[[Random, int], int]


def is_kept(units: LossUnits, limit: float) -> bool:
    """Whether the verdict is `kept`; no bound is below the mean."""
    return units.mean < limit and units.chance_below(limit) <= LEVEL


def share_cases() -> Iterator[Case]:
    """Samples that are right or wrong, of which some flip back."""
    for samples, limit, won in product(SIZES, LIMITS, WON):
        name = f"limit {limit:.0%}, {won:.1%} won back"
        count = partial(count_shares, samples=samples, limit=limit, won=won)
        yield Case("right or wrong", f"{samples:,} samples", name, count)


def count_shares(random: Random, draws: int, samples: int, limit: float, won: float) -> int:
    """How many of that many drawn tables are called kept."""
    seen, often = np.unique(
        random.multinomial(samples, [limit + won, won, 1 - limit - 2 * won], draws)[:, :2], axis=0, return_counts=True
    )
    return sum(
        int(times)
        for (lost, back), times in zip(seen.tolist(), often, strict=True)
        if is_kept(count_units(lost, back, samples), limit)
    )


BOUNDED: dict[str, tuple[Draw, float]] = {
    "1 % of samples lose 0.5 to 1": (lambda r, s: (r.random(s) < 0.01) * r.uniform(0.5, 1, s), 0.0075),
    "2 % lose everything, all vary by 0.05": (
        lambda r, s: np.where(r.random(s) < 0.02, 1.0, r.normal(0, 0.05, s)),
        0.02,
    ),
    "skewed (beta 0.2, 4)": (lambda r, s: r.beta(0.2, 4, s), 0.2 / 4.2),
    "skewed the other way, -beta": (lambda r, s: -r.beta(0.2, 4, s), -0.2 / 4.2),
    "ties: eighths, lost 3 %, won 2 %": (
        lambda r, s: r.integers(1, 9, s) / 8 * r.choice([1.0, -1.0, 0.0], s, p=[0.03, 0.02, 0.95]),
        0.0045 * 1.25,
    ),
    "even, from -0.1 to 0.12": (lambda r, s: r.uniform(-0.1, 0.12, s), 0.01),
}
UNBOUNDED: dict[str, tuple[Draw, float]] = {
    "normal": (lambda r, s: r.normal(size=s), 0.0),
    "normal, in ties": (lambda r, s: np.round(r.normal(size=s)), 0.0),
    "Student's t with 3 degrees": (lambda r, s: r.standard_t(3, s), 0.0),
    "exponential": (lambda r, s: r.exponential(size=s), 1.0),
    "exponential, the other way": (lambda r, s: -r.exponential(size=s), -1.0),
    "lognormal": (lambda r, s: np.exp(r.normal(size=s)), math.exp(0.5)),
    "nine in ten lose nothing, else exponential": (lambda r, s: r.exponential(size=s) * (r.random(s) < 0.1), 0.1),
    "normal, 5 % lose five deviations more": (lambda r, s: r.normal(size=s) + 5 * (r.random(s) < 0.05), 0.25),
    BEYOND: (lambda r, s: np.where(r.random(s) < 0.01, 1.0, 0.0), 0.01),
}


def score_cases() -> Iterator[Case]:
    """Scores of samples of other kinds."""
    for samples, (name, (draw, true)) in product((50, 180, 1000), BOUNDED.items()):
        count = partial(count_scores, samples=samples, draw=draw, true=true, most=SHARE)
        yield Case("between 0 and 1", f"{samples:,} samples", name, count)
    for samples, (name, (draw, true)) in product((100, 300, 1000), UNBOUNDED.items()):
        kind = "without bounds" if name != BEYOND else "without bounds, not promised"
        count = partial(count_scores, samples=samples, draw=draw, true=true, most=None)
        yield Case(kind, f"{samples:,} samples", name, count)


def count_scores(random: Random, draws: int, samples: int, draw: Draw, true: float, most: float | None) -> int:
    return sum(is_kept(sample_losses(row, most), true) for row in near_rows(draw(random, (draws, samples)), true))


def near_rows(losses: Floats, true: float) -> Floats:
    """The draws that any bound might call kept."""
    error = losses.std(axis=1) / math.sqrt(losses.shape[1])
    rows: Floats = losses[losses.mean(axis=1) < true - _NEAR * error + 1e-12]
    return rows


def cluster_cases() -> Iterator[Case]:
    """Samples in clusters of uneven sizes, and batches of a metric that is no mean over samples."""
    for clusters, alike in product((50, 300), (1.0, 0.3)):
        draw = partial(draw_clusters, clusters=clusters, alike=alike)
        name = f"{alike:.0%} lost together"
        yield Case(
            "right or wrong, in clusters of 1 to 20", f"{clusters} clusters", name, partial(count_units_kept, draw=draw)
        )
    for batches, rare in product((10, 40), (False, True)):
        name = "a few samples lose much" if rare else "all samples lose a little"
        draw = partial(draw_batches, batches=batches, rare=rare)
        kind = "ratio of sums over batches of 16, as mIoU"
        yield Case(kind, f"{batches} batches", name, partial(count_units_kept, draw=draw))


def count_units_kept(random: Random, draws: int, draw: Callable[[Random], LossUnits]) -> int:
    return sum(is_kept(draw(random), 0.05) for _ in range(draws))


def draw_clusters(random: Random, clusters: int, alike: float) -> LossUnits:
    """5 % of samples are lost, a share of them with their whole cluster."""
    sizes = random.integers(1, 21, clusters)
    codes = np.repeat(np.arange(clusters), sizes)
    together = (random.random(clusters) < 0.05 * alike)[codes]
    alone = random.random(len(codes)) < 1 - (1 - 0.05) / (1 - 0.05 * alike)
    return sample_losses((together | alone).astype(np.float64), SHARE, codes)


def draw_batches(random: Random, batches: int, rare: bool) -> LossUnits:
    """Losses of Σ overlap / Σ union, of which 5 % are lost in the mean."""
    union = random.gamma(2.0, size=(batches, 16))
    before = union * random.uniform(0.5, 1, union.shape)
    lost = (random.random(union.shape) < 0.1) * 0.5 * union if rare else union * random.uniform(0, 0.1, union.shape)
    after = before - lost
    each = (before.sum(axis=1) - after.sum(axis=1)) / union.sum(axis=1)
    whole = float((before.sum() - after.sum()) / union.sum())
    return batch_losses(each, np.full(batches, 16.0), whole, SHARE)


def simulate(draws: int) -> list[list[str]]:
    """A row for every kind of scores and number of units: the worst of its cases."""
    worst: dict[tuple[str, str], tuple[float, str, int]] = {}
    for seed, case in enumerate([*share_cases(), *score_cases(), *cluster_cases()]):
        many = draws // 4 if case.kind.startswith(_QUARTER) else draws
        share = case.count(np.random.default_rng(seed), many) / many
        before, name, cases = worst.get((case.kind, case.units), (-1.0, "", 0))
        worst[case.kind, case.units] = (share, case.name, cases + 1) if share > before else (before, name, cases + 1)
        print(f"{case.kind}, {case.units}, {case.name}: {share:.2%}", flush=True)
    return [
        [kind, units, str(cases), f"{draws // 4 if kind.startswith(_QUARTER) else draws:,}", f"{share:.2%}", name]
        for (kind, units), (share, name, cases) in worst.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, help="of each case")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/false_kept.md")
    arguments = parser.parse_args()
    text = table(HEAD, simulate(arguments.draws))
    print(text)
    if arguments.write:
        write_tables("false_kept", "How often is *kept* wrong?", "python -m benchmarks.trust.false_kept --write", text)


if __name__ == "__main__":
    main()
