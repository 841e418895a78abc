"""Comparing the forecasts of the guided sampler with measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.forecast.forecasts import RECENT, ForecastAccuracy, Predicted
from search.forecast.quality import NINETY, Quality, quality
from studies.judging.standing import Standing
from studies.options.quantities import format_percent
from studies.store.records import OK
from studies.store.store import Store

_SOME_SCALE = 1e6  # errors that are larger are relative to nothing


@dataclass(frozen=True)
class Compared:
    """One quantity of several trials, predicted and measured.

    Attributes:
        trial: (n,) int64, ascending.
        predicted, std, measured: (n,) float64, all in the same unit.
        scale: what errors are relative to, 0 if there is nothing; None for each measurement itself.
        band: what two measurements that count as a tie may differ by, relative as errors are.
    """

    trial: NDArray[np.int64]
    predicted: NDArray[np.float64]
    std: NDArray[np.float64]
    measured: NDArray[np.float64]
    scale: float | None = None
    band: float = 0.0

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def reach(self) -> NDArray[np.float64]:
        """(n,) half-widths of the 90 % intervals."""
        return NINETY * self.std

    def quality(self, last: int | None = None) -> Quality:
        """How good all the forecasts are, or the last ones only."""
        kept = slice(None if last is None else -last, None)
        figures = quality(self.predicted[kept], self.std[kept], self.measured[kept], self.scale)
        return replace(figures, error=math.nan) if self.scale == 0 else figures


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of latency (ms) and of loss (the metric's unit; only where all samples were seen)."""

    latency: Compared
    loss: Compared

    def qualities(self) -> Iterator[tuple[str, str, Quality]]:
        """What was predicted, over which trials, how well."""
        for name, part in (("latency", self.latency), ("loss", self.loss)):
            yield name, "all", part.quality()
            if len(part) > RECENT:
                yield name, f"the last {RECENT}", part.quality(RECENT)

    def verdict(self) -> str:
        """What is predicted poorly, judged by the last trials, as sentences; empty if nothing is."""
        latency, loss = self.latency.quality(RECENT), self.loss.quality(RECENT)
        judged = ForecastAccuracy(latency, loss, self.latency.band, self.loss.band)
        names = poor_names(judged)
        if not names:
            return ""
        return f"The {names} predicted poorly here. Until that improves, half of the proposals come from TPE."


def compare_forecasts(store: Store, now: Standing) -> Forecasts | None:
    """Every forecast of the standing's target with what the search measured; None if there is none.

    Latencies are those of the search, which the sampler was told, also where they were measured again later.
    """
    forecasts = store.trials.forecasts(now.target)
    t = now.table
    known = np.array([int(number) in forecasts for number in t.id], dtype=bool)
    timed = known & (t.status == OK) & np.isfinite(t.latency_ms)
    scored = timed & np.isfinite(t.loss) & (t.samples == t.total_samples)
    if not timed.any():
        return None
    latency = replace(_compare_one(now, forecasts, timed, "ms", t.latency_ms), band=now.target.band)
    # The losses of the uniform baselines are the scale; where all are as good as FP32, their tie band is.
    rows = [row for row in now.measures.baselines if now.measures.complete[row]]
    scale = max((max(float(now.table.loss[row]), float(now.measures.loss_band[row])) for row in rows), default=0.0)
    band = float(np.median(now.measures.loss_band[scored])) / scale if scale > 0 and scored.any() else 0.0
    return Forecasts(latency, replace(_compare_one(now, forecasts, scored, "loss", t.loss), scale=scale, band=band))


def _compare_one(
    now: Standing, forecasts: dict[int, Predicted], rows: NDArray[np.bool_], name: str, measured: NDArray[np.float64]
) -> Compared:
    places = np.flatnonzero(rows)
    places = places[np.argsort(now.table.trial[places], kind="stable")]
    each = [forecasts[int(number)] for number in now.table.id[places]]
    mean, std = (np.array([getattr(one, field) for one in each], dtype=float) for field in (name, f"{name}_std"))
    return Compared(now.table.trial[places], mean, std, measured[places])


def poor_text(accuracy: ForecastAccuracy) -> str:
    """A line for when forecasts turn poor."""
    parts = [
        f"{name}: {quality_text(each)}"
        for name, each, poor in (
            ("latency", accuracy.latency, accuracy.poor_latency),
            ("loss", accuracy.loss, accuracy.poor_loss),
        )
        if poor and each is not None
    ]
    return f"forecasts are poor here ({'; '.join(parts)}): half of the proposals come from TPE until they are better"


def poor_names(accuracy: ForecastAccuracy) -> str:
    """`latency is`, `loss is`, `latency and the loss are`, or nothing."""
    names = [name for name, poor in (("latency", accuracy.poor_latency), ("loss", accuracy.poor_loss)) if poor]
    return f"{' and the '.join(names)} {'are' if len(names) > 1 else 'is'}" if names else ""


def quality_text(figures: Quality) -> str:
    """`rank correlation 0.93, median error 2.1 %, 88 % inside the 90 % interval (over 25)`."""
    inside = f"{figures.coverage:.0%}".replace("%", " %")
    return (
        f"rank correlation {ranks_text(figures)}, median error {error_text(figures)}, {inside} inside the "
        f"90 % interval (over {figures.n})"
    )


def ranks_text(figures: Quality) -> str:
    return "–" if math.isnan(figures.rank_correlation) else f"{figures.rank_correlation:.2f}"


def error_text(figures: Quality) -> str:
    """A dash where there is nothing that an error could be relative to, as where a metric is always the same."""
    return format_percent(figures.error) if figures.error < _SOME_SCALE else "–"
