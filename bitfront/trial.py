"""The class `Trial`: one evaluation of a study."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass

from search.values import Assignment
from studies.judging.points import Point
from studies.judging.rounding import bounded_text, estimate_text, half_width, latency_text, speedup_text, value_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.evaluations import mix_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.options.limits import MetricScale


@dataclass(frozen=True, repr=False)
class Trial:
    """One evaluation of a study. A number is None if its stage was not reached.

    Attributes:
        number: the number of the trial, as the command line shows it.
        status: `ok`, `failed` or `running`.
        latency_ms: the latest measurement of the latency.
        samples_per_s: samples in a second at that latency, where one batch runs after the other.
        speedup: how many times as fast as uniform FP32.
        doubtful: whether something disturbed the measurement of the latency, or of that of FP32.
        value: the value of the metric on the search samples.
        loss: how much worse than uniform FP32 it is, in the metric's unit; 0.01 is 1 % if the metric is a share of one.
        loss_low, loss_high: the 95 % interval of the loss.
        final_loss: the loss on the final samples, which the search never saw; None if it was not scored there.
        final_bound: what that loss is at most, with 95 % certainty: the verdict is given by it. None if there is no
            bound, because the samples are too few.
        verdict: what the final samples say of the limits: `kept`, `likely` (by the estimate, but not by its
            bound), `missed`, `unseen` (not scored there), `no limits`; empty if the trial has no loss, and if it was
            not scored there because it did not run as asked.
        not_as_asked: the layers that did not run in the requested precision, in words; empty if all did. Such a trial
            is on no front and is not recommended, whatever its numbers are.
        picks: what it is recommended as: `best`, `accurate`, `fast`, `knee`.
        on_front: whether no other trial is better in latency and loss by more than noise.
        feasible: whether it keeps all limits.
        baseline: `fp32`, `fp16` or `int8` for a uniform baseline; empty for a mix.
        mix: how many groups of layers run in which precision, in words.
        precisions: a mapping from the name of a layer in the model to `fp32`, `fp16` or `int8`.
        metric: the metric of value and loss.
    """

    number: int
    status: str
    latency_ms: float | None
    samples_per_s: float | None
    speedup: float | None
    doubtful: bool
    value: float | None
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    final_loss: float | None
    final_bound: float | None
    verdict: str
    picks: tuple[str, ...]
    on_front: bool
    feasible: bool
    baseline: str
    mix: str
    precisions: Mapping[str, str]
    metric: MetricScale
    not_as_asked: str = ""

    @classmethod
    def of(cls, point: Point, assignment: Assignment, names: Mapping[str, str], metric: MetricScale) -> Trial:
        """Make the trial of an evaluation that was judged.

        Args:
            names: the name of the first layer of each group, by group id.
        """
        return cls(
            number=point.trial,
            status=point.status,
            latency_ms=_known(point.latency_ms),
            samples_per_s=_known(point.samples_per_s),
            speedup=point.speedup if _known(point.latency_ms) is not None else None,
            doubtful=point.speedup_doubtful,
            value=_known(point.value),
            loss=_known(point.loss),
            loss_low=_known(point.loss_low),
            loss_high=_known(point.loss_high),
            final_loss=_known(point.final.loss),
            final_bound=_known(point.final.bound),
            verdict="" if _known(point.loss) is None else _verdict(point),
            picks=point.picks,
            on_front=point.on_front,
            feasible=point.feasible,
            baseline=point.baseline,
            mix=mix_text(assignment),
            precisions={names.get(group, group): precision.label for group, precision in assignment.items()},
            metric=metric,
            not_as_asked=point.mismatch,
        )

    def __repr__(self) -> str:
        return f"<Trial {self.number}: {self._text()}>"

    def _text(self) -> str:
        if self.latency_ms is None:
            return f"{self.mix}, {self.status}"
        parts = [self.mix, latency_text(self.latency_ms)]
        if self.doubtful:
            parts[-1] += f" ({DOUBTFUL})"
        elif self.speedup is not None:
            parts.append(f"{speedup_text(self.speedup)} × FP32")
        if self.loss is not None:
            half = half_width(self.loss_low, self.loss_high)
            parts.append(f"{self.metric.name} {value_text(self.value, half, self.metric)}")
            parts.append(f"loss {estimate_text(self.loss, self.loss_low, self.loss_high, self.metric)}")
        if self.final_loss is not None:
            parts.append(f"final loss {bounded_text(self.final_loss, self.final_bound, self.metric)}")
        if self.verdict and self.verdict != Verdict.UNLIMITED.value:
            parts.append(f"limits {self.verdict}")
        if self.not_as_asked:
            parts.append(self.not_as_asked)
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        picked = f" ({', '.join(self.picks)})" if self.picks else ""
        return f"<p><b>Trial {self.number}</b>{html.escape(picked)}: {html.escape(self._text())}</p>"


def _verdict(point: Point) -> str:
    """In the words of the table: a limit that was missed in the search is missed."""
    unseen = point.final.verdict is Verdict.UNCONFIRMED
    if unseen and point.mismatch:  # it is no candidate, whatever its numbers are
        return ""
    return (Verdict.FAILS if unseen and not point.feasible else point.final.verdict).value


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
