"""Bounds as they were written, in the unit of a study's metric, or why they mean nothing for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studies.options import quantities
from studies.options.limits import LIMITS, Bound, Limit, Limits, MetricScale, check_names
from studies.options.option import raise_mistakes
from studies.options.quantities import Amount


def resolve_limits(bounds: Mapping[str, Bound], metric: MetricScale, batch: int) -> Limits:
    """Bounds as they were written, in the unit of a metric and for a batch of so many samples.

    Percentages stay what they are where values are no shares: of FP32's value.

    Raises:
        ConfigError: naming every limit that means nothing for this metric.
    """
    check_names(bounds)
    problems = []
    for name, bound in bounds.items():
        limit = LIMITS[name]
        if limit.unit == "metric" and (problem := _misfit(limit, _amount(bound), metric)):
            problems.append(f"--{limit.option} {bound} for the metric {metric.name}: {problem}")
    raise_mistakes(problems)
    return Limits(**{name: _resolve_bound(LIMITS[name], _amount(b), metric, batch) for name, b in bounds.items()})


def _resolve_bound(limit: Limit, amount: Amount, metric: MetricScale, batch: int) -> Bound:
    of_fp32 = amount.percent and not metric.ratio and amount.value != 0
    return amount if of_fp32 else amount.value * (batch if limit.per_sample else 1)


def _amount(bound: Bound) -> Amount:
    return bound if isinstance(bound, Amount) else Amount(bound)


def _misfit(limit: Limit, amount: Amount, metric: MetricScale) -> str:
    """Why an amount is no bound for this metric; empty if it is one."""
    ratio = metric.ratio
    if amount.percent and not ratio and (metric.relative or not limit.difference):
        values = metric.unit or "plain numbers"
        return f"a percentage has no meaning for values in {values}; {_plain_advice(limit, metric)}"
    if amount.unit and amount.unit != metric.unit:
        advice = f"write it in {metric.unit}" if metric.unit else "leave the unit out or change the metric"
        return f"its values are {metric.values_text}, not in {amount.unit}; {advice}"
    if metric.relative and metric.unit and not (ratio or amount.unit) and 0 < amount.value < 1:
        return f"a number below 1 may mean a share; {_plain_advice(limit, metric)} or write {amount}{metric.unit}"
    if ratio and limit.difference and amount.value >= 1:
        share = quantities.format_percent(amount.value / (1 if amount.percent else 100)).replace(" ", "")
        return "a drop of the whole range limits nothing; " + ("give less" if amount.percent else f"write {share}")
    if ratio and not 0 <= amount.value <= 1:
        hint = "" if amount.percent or amount.value < 0 else f", for example {amount.value:g}%"
        return f"its values lie from 0 to 1; write a share or a percentage of that range{hint}"
    return ""


def _plain_advice(limit: Limit, metric: MetricScale) -> str:
    """What to write in place of a percentage."""
    if metric.relative:  # FP32 has the best value there is, so the value itself says how far outputs may be apart
        return f"use --accuracy-limit {30 if metric.unit else 0.5}{metric.unit}"
    plain = f"in {metric.unit}" if metric.unit else "as a plain number"
    advice = f"write --{limit.option} VALUE with the value {plain}"
    if metric.unit or not re.search("[:@]", metric.name):
        return advice
    return f"{advice}, or declare `ratio = True` on the metric if its scores are shares of one"
