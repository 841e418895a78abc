"""A network that answers like the measured one: two Gaussian processes fitted to its rows, with their held-out error.

Made another way than the models of the guided sampler, but what was learned from random-weight rows is nearly a sum of
terms of groups and edges, which is what those models can express: they are favoured here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.replay import gaussian
from benchmarks.replay.gaussian import GaussianProcess, Weights
from benchmarks.replay.measured import Rows, RowsError, synthetic_loss
from search.layout import PRECISIONS, Layout, Precisions
from search.values import digest_of

VERSION = 1  # raise when rows of equal content would give another simulator
FOLDS = 10
MIN_ROWS = 25
MOST_LATENCY_ERROR = 0.06
LEAST_LATENCY_RANK = 0.85
LEAST_LOSS_RANK = 0.7

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """Errors on rows that were left out in ten-fold cross-validation, uniform rows not counted.

    Attributes:
        latency: median of |predicted − measured| / measured.
        latency_rank, loss_rank: Spearman's correlation of predicted and measured.
        loss: median of |predicted − measured|, as a share of one.
        noise: of trained networks, the median error that sampling alone makes in `loss`.
    """

    rows: int
    latency: float
    latency_rank: float
    loss: float
    loss_rank: float
    noise: float


@dataclass(frozen=True)
class Totals:
    """What the processes' trend is made of: totals of an assignment, each divided by its largest.

    Groups in each precision but the first; edges between each pair of precisions, by number and by size of the tensor;
    and the time that the uniform engines' profiles say, where there are some.

    Attributes:
        times: (groups, `PRECISIONS`) ms; zeros where there are no profiles.
    """

    layout: Layout
    times: Floats

    def __call__(self, precisions: Precisions) -> Floats:
        groups, (sources, targets) = len(self.layout.groups), self.layout.edges.T
        found = [(precisions == precision).mean(axis=1) for precision in range(1, PRECISIONS)]
        weights = self.layout.elements / max(self.layout.elements.sum(), 1.0)
        for one, other in combinations(range(PRECISIONS), 2):
            ends = precisions[:, sources], precisions[:, targets]
            changed = ((ends[0] == one) & (ends[1] == other)) | ((ends[0] == other) & (ends[1] == one))
            found += [changed.mean(axis=1), changed @ weights]
        ms = self.times[np.arange(groups), precisions].sum(axis=1)
        return np.stack([*found, ms / (np.max(self.times.sum(axis=0)) or 1.0)], axis=1)


def totals(rows: Rows) -> Totals:
    times = np.zeros((len(rows.layout.groups), PRECISIONS))
    place = {group: i for i, group in enumerate(rows.layout.groups)}
    for precision, layers in rows.profiles.items():
        for layer in layers:
            if layer.group is not None and not layer.moves:
                times[place[layer.group], precision] += layer.ms
    return Totals(rows.layout, times)


@dataclass(frozen=True)
class Simulator:
    """Latency in ms and loss as a share of one, without noise, of any assignments."""

    rows: Rows
    latency: GaussianProcess
    error: GaussianProcess
    held_out: HeldOut

    @property
    def digest(self) -> str:
        return digest_of_rows(self.rows)

    def predict(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) precisions to (n,) ms and (n,) loss; never below half the fastest row, and no loss below 0."""
        ms = np.maximum(self.latency.predict(precisions), 0.5 * self.rows.latency_ms.min())
        return ms, _loss(self.rows, self.error, precisions)

    def noise(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) what the loss is made from, above FP32's: squared output error, or loss."""
        return _excess(self.rows, self.error, precisions)


def digest_of_rows(rows: Rows) -> str:
    """Names the simulator that is made of these rows."""
    return digest_of({"version": VERSION, "rows": rows.digest})


def make(rows: Rows, saved: dict[str, object] | None = None) -> Simulator:
    """Fit to rows.

    Args:
        saved: what `to_json` gave for the same rows, to spare the time of fitting.

    Raises:
        RowsError: too few rows, no loss to speak of, or held-out errors that would make a benchmark of noise.
    """
    check_rows(rows)
    edges, trend = rows.layout.edges, totals(rows)
    nothing = np.zeros(len(rows))
    if saved is None:
        latency = gaussian.fit(rows.precisions, rows.latency_ms, nothing, edges, trend)
        error = gaussian.fit(rows.precisions, rows.error, rows.error_sd, edges, trend)
        held_out = cross_validate(rows)
    else:
        held_out = HeldOut(**saved["held_out"])  # type: ignore[arg-type]
        starts = [Weights(np.array(saved[key]), len(rows.layout.groups), len(edges)) for key in ("latency", "error")]
        latency = gaussian.fit(rows.precisions, rows.latency_ms, nothing, edges, trend, starts[0], steps=0)
        error = gaussian.fit(rows.precisions, rows.error, rows.error_sd, edges, trend, starts[1], steps=0)
    check_errors(rows.name, held_out)
    return Simulator(rows, latency, error, held_out)


def to_json(simulator: Simulator) -> dict[str, object]:
    """What `make` needs to make it again."""
    weights = {"latency": simulator.latency.weights.flat, "error": simulator.error.weights.flat}
    flat = {name: [round(float(weight), 6) for weight in column] for name, column in weights.items()}
    return {"held_out": asdict(simulator.held_out), **flat}


def check_rows(rows: Rows) -> None:
    if len(rows) < MIN_ROWS:
        raise RowsError(f"simulating {rows.name}: needs at least {MIN_ROWS} rows, got {len(rows)}. Measure more.")
    worst = max(rows.baselines.values(), key=lambda place: rows.error[place])
    if rows.error[worst] <= 1.96 * rows.error_sd[worst]:
        raise RowsError(
            f"simulating {rows.name}: no uniform assignment loses anything ({100 * rows.error[worst]:.2f} ± "
            f"{196 * rows.error_sd[worst]:.2f} points at most), so there is no front to find. "
            "Measure a network that loses accuracy in INT8."
        )


def check_errors(name: str, found: HeldOut) -> None:
    """Raise RowsError when held-out errors are too large."""
    poor = []
    if not found.latency <= MOST_LATENCY_ERROR:
        poor.append(f"latency is wrong by {found.latency:.1%} (at most {MOST_LATENCY_ERROR:.0%})")
    if not found.latency_rank >= LEAST_LATENCY_RANK:
        poor.append(f"latencies correlate by {found.latency_rank:.2f} (at least {LEAST_LATENCY_RANK})")
    if not found.loss_rank >= LEAST_LOSS_RANK:
        poor.append(f"losses correlate by {found.loss_rank:.2f} (at least {LEAST_LOSS_RANK})")
    if poor:
        what = "; ".join(poor)
        raise RowsError(f"simulating {name}: too poor on held-out rows of {found.rows}: {what}. Measure more rows.")


def cross_validate(rows: Rows) -> HeldOut:
    """Ten-fold, everything learned anew in every fold."""
    # Rows of one assignment stay together, or one would give the other away.
    places: dict[bytes, int] = {}
    same = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows.precisions])
    folds = (np.random.default_rng(0).permutation(len(places)) % FOLDS)[same]
    ms, error, loss = np.empty(len(rows)), np.empty(len(rows)), np.empty(len(rows))
    for fold in range(FOLDS):
        kept, left = folds != fold, folds == fold
        data, edges, trend = rows.precisions[kept], rows.layout.edges, totals(rows)
        latency = gaussian.fit(data, rows.latency_ms[kept], np.zeros(kept.sum()), edges, trend)
        of_error = gaussian.fit(data, rows.error[kept], rows.error_sd[kept], edges, trend)
        ms[left] = latency.predict(rows.precisions[left])
        loss[left] = _loss(rows, of_error, rows.precisions[left])
        error[left] = of_error.predict(rows.precisions[left])
    mixed = np.setdiff1d(np.arange(len(rows)), list(rows.baselines.values()))
    measured = rows.error if rows.trained else synthetic_loss(rows.error, _int8(rows))
    return HeldOut(
        rows=len(rows),
        latency=float(np.median(np.abs(ms / rows.latency_ms - 1)[mixed])),
        latency_rank=float(spearmanr(ms[mixed], rows.latency_ms[mixed])[0]),
        loss=float(np.median(np.abs(loss - measured)[mixed])),
        loss_rank=float(spearmanr(error[mixed], rows.error[mixed])[0]),
        noise=float(0.6745 * np.median(rows.error_sd[mixed])),
    )


def _int8(rows: Rows) -> float:
    return float(rows.error[rows.baselines["int8"]])


def _excess(rows: Rows, process: GaussianProcess, precisions: Precisions) -> Floats:
    fp32 = rows.precisions[[rows.baselines["fp32"]]]
    return np.maximum(process.predict(precisions) - process.predict(fp32), 0.0)


def _loss(rows: Rows, process: GaussianProcess, precisions: Precisions) -> Floats:
    excess = _excess(rows, process, precisions)
    return excess if rows.trained else synthetic_loss(excess, _int8(rows))
