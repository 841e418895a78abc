"""The result of `drift`, as values and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.calibration.sample_statistics import STATISTICS
from studies.inspect.drift.shifts import LEVEL, DriftVerdict, Judged, LossShift, Shift
from studies.options.limits import MetricScale

MOST_SHOWN = 10
COLUMNS = ("tensor", "statistic", "calibration", "fresh", "distance", "moved", "verdict")


@dataclass(frozen=True)
class DriftReport:
    """Fresh data beside those that a study was calibrated on.

    Attributes:
        metric: of the loss.
        samples: how many of each were compared; `before` are those of the calibration.
        clusters: whether each of them stands for a cluster.
        notes: what was not compared and why, one sentence each.
    """

    study: str
    data: str
    judged: Judged
    metric: MetricScale
    samples: Mapping[str, int]
    clusters: bool
    notes: tuple[str, ...]

    @property
    def verdict(self) -> DriftVerdict:
        return self.judged.verdict

    def rows(self) -> list[Shift]:
        """The most shifted statistic of each tensor, the least likely by chance first."""
        first: dict[str, Shift] = {}
        for shift in self.judged.shifts:
            first.setdefault(shift.tensor, shift)
        return list(first.values())

    def cells(self) -> list[dict[str, Any]]:
        """The rows of the table as texts."""
        return [_texts(shift) for shift in self.rows()[:MOST_SHOWN]]

    def lines(self) -> list[str]:
        """What the table does not say."""
        lines = [self._headline()]
        if self.judged.loss is not None:
            lines.append(loss_text(self.judged.loss, self.metric))
        left_out = len(self.rows()) - MOST_SHOWN
        if left_out > 0:
            lines.insert(0, f"… and {left_out} more tensors; --json lists all.")
        return [*lines, *self.notes]

    def to_json(self) -> dict[str, Any]:
        loss = self.judged.loss
        return {
            "study": self.study,
            "data": self.data,
            "verdict": self.verdict.value,
            "level": LEVEL,
            "samples": dict(self.samples),
            "clusters": self.clusters,
            "smallest_distance": self.judged.smallest,
            "shifts": [shift.to_json() for shift in self.judged.shifts],
            "loss": None if loss is None else loss.to_json(),
            "notes": list(self.notes),
        }

    def _headline(self) -> str:
        drifted = sum(any(s.drifted for s in self.judged.shifts if s.tensor == row.tensor) for row in self.rows())
        count, comparisons = len(self.rows()), len(self.judged.shifts) + (self.judged.loss is not None)
        units = "clusters" if self.clusters else "samples"
        compared = (
            f"{self.samples['now']} fresh {units} against {self.samples['before']} calibration {units}, {comparisons} "
            f"comparisons, with a chance of at most {LEVEL:.1%} for any false alarm"
        )
        if self.verdict is DriftVerdict.DRIFT:
            return f"drift: {drifted} of {count} tensors differ beyond chance ({compared})."
        power = f"distances above {self.judged.smallest:.2f} would be recognized as beyond chance"
        if self.verdict is DriftVerdict.NO_DRIFT:
            return f"no drift: no tensor differs beyond chance ({compared}; {power})."
        return (
            f"not judged: there are too few {units} ({compared}; only {power}). Give more fresh data, or calibrate on "
            "more."
        )


def loss_text(loss: LossShift, metric: MetricScale) -> str:
    """The loss before and now in a sentence."""
    if loss.failure:
        return f"trial {loss.trial} cannot be scored on the fresh data: {loss.failure}."
    shown = (_values(loss, interval, metric) if metric.relative else interval for interval in (loss.before, loss.now))
    before, now = (f"{metric.text(x[0])} [{metric.text(x[1])}, {metric.text(x[2])}]" for x in shown)
    if metric.relative:  # FP32 has the best value there is
        verdict = "worse than before, beyond chance" if loss.drifted else "not worse than before, beyond chance"
        return (
            f"trial {loss.trial} has {metric.name} {now} on {loss.samples} fresh samples, and had {before} on the "
            f"study's final split: {verdict}."
        )
    verdict = "more than before, beyond chance" if loss.drifted else "not more than before, beyond chance"
    return (
        f"trial {loss.trial} loses {now} of {metric.name} against FP32 on {loss.samples} fresh samples, and lost "
        f"{before} on the study's final split: {verdict}. FP32 itself has {metric.text(loss.fp32_value)}."
    )


def _values(loss: LossShift, interval: Sequence[float], metric: MetricScale) -> tuple[float, float, float]:
    """The values of the metric for a loss and its interval, the lower end of the values first."""
    sign = -1 if metric.higher_is_better else 1
    middle, *ends = (loss.fp32_value + sign * each for each in interval)
    return middle, min(ends), max(ends)


def _texts(shift: Shift) -> dict[str, Any]:
    share = shift.statistic == STATISTICS[-1]
    numbers = [f"{value:.2%}" if share else f"{value:.4g}" for value in (shift.before, shift.now)]
    return {
        "tensor": shift.tensor,
        "statistic": shift.statistic,
        "calibration": numbers[0],
        "fresh": numbers[1],
        "distance": f"{shift.distance:.2f}",
        "moved": f"{shift.moved:.3f}",
        "verdict": "drift" if shift.drifted else "",
    }
