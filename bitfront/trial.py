"""The class `Trial`: one evaluation of a study."""

from __future__ import annotations

import html
from functools import cached_property

from studies.judging.points import Point
from studies.judging.rounding import (
    bounded_text,
    latency_text,
    scores_text,
    speedup_text,
)
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.picks import DOUBTFUL
from studies.options.limits import MetricScale


class Trial(Point):
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

    @property
    def number(self) -> int:
        return self.trial

    @property
    def doubtful(self) -> bool:
        return self.speedup_doubtful

    @property
    def final_loss(self) -> float | None:
        return self.final.loss

    @property
    def final_bound(self) -> float | None:
        return self.final.bound

    @property
    def verdict(self) -> str:
        unseen = self.final.verdict is Verdict.UNCONFIRMED
        if self.loss is None or (unseen and self.mismatch):  # it is no candidate, whatever its numbers are
            return ""
        # In the words of the table: a limit that was missed in the search is missed.
        return (Verdict.FAILS if unseen and not self.feasible else self.final.verdict).value

    @property
    def not_as_asked(self) -> str:
        return self.mismatch

    @cached_property
    def precisions(self) -> dict[str, str]:
        names, assignment = self.now.details.layer_names, self.now.details.assignments[self.id]
        return {names.get(group, group): precision.label for group, precision in assignment.items()}

    @property
    def metric(self) -> MetricScale:
        return self.now.metric

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
            parts.append(scores_text(self.value, self.loss, self.loss_low, self.loss_high, self.metric))
        if self.final_loss is not None and self.metric.relative:
            worst = bounded_text(self.final.value, self.final.value_bound, self.metric)
            parts.append(f"final {self.metric.name} {worst}")
        elif self.final_loss is not None:
            parts.append(f"final loss {bounded_text(self.final_loss, self.final_bound, self.metric)}")
        if self.verdict and self.verdict != Verdict.UNLIMITED.value:
            parts.append(f"limits {self.verdict}")
        if self.not_as_asked:
            parts.append(self.not_as_asked)
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        picked = f" ({', '.join(self.picks)})" if self.picks else ""
        return f"<p><b>Trial {self.number}</b>{html.escape(picked)}: {html.escape(self._text())}</p>"
