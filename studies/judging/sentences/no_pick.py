"""Sentences about studies in which no evaluation can be recommended."""

from __future__ import annotations

import numpy as np

from studies.judging.rules.feasibility import Near
from studies.judging.sentences.evaluations import kind_text, list_text
from studies.judging.standing import Standing
from studies.judging.status.early_end import early_end
from studies.options.limits import Limit, MetricScale
from studies.options.value_kinds import RATE
from studies.store import suggestions
from studies.store.records import FAILED


def all_failed_text(now: Standing) -> str:
    """How many evaluations failed, mostly with what, and the command that shows one; empty if not all did."""
    failures = now.details.failures
    if failures is None:
        return ""
    many = failures.evaluations > 1
    total = f"all {failures.evaluations} evaluations" if many else "the only evaluation"
    most = "" if failures.count == failures.evaluations else f"{failures.count} of them "
    text = f"{total} failed, {most}at {failures.stage} ({kind_text(failures.kind)}): {failures.message.rstrip('.')}"
    if failures.trial < 0:
        return text
    words = (str(failures.trial), *now.details.target_option)
    way = suggestions.command("show", now.study.name, *words, storage=now.details.storage)
    return f"{text}. One of them: {way}"


def nobody_text(now: Standing) -> str:
    """That there is nothing to pick: because of the limits, or where there are none, for another reason."""
    return "there is no evaluation to pick" if not now.limits else "no evaluation keeps the limits"


def only_fp32_text(now: Standing) -> str:
    """That nothing but FP32 was measured, and how to continue; empty where something else was."""
    if not now.only_fp32:
        return ""
    if early_end(now) is not None:  # which says how to continue
        return "Nothing but FP32 was measured yet"
    complete = now.measures.finished_count >= now.study.config["trials"]
    more = (*(("--trials", "20") if complete else ()), *now.details.target_option)
    way = suggestions.command("resume", now.study.name, *more, storage=now.details.storage)
    return f"Nothing but FP32 was measured yet; continue with `{way}`"


def nothing_text(now: Standing) -> str:
    """Why nothing keeps the limits or comes near; empty if there is no finished evaluation."""
    if now.details.failures is not None:
        return all_failed_text(now)
    ok = now.table.status == "ok"
    disobeyed, barred = ok & (now.table.not_obeyed > 0), ok & now.final.unscorable
    counts = {
        "did not run in the precisions asked for": disobeyed,
        "failed on the final data": barred & ~disobeyed,
        "stopped early": ok & ~disobeyed & ~barred,
        "failed": now.table.status == FAILED,
    }
    parts = [f"{int(rows.sum())} {name}" for name, rows in counts.items() if rows.any()]
    by_them = "" if not now.limits else " by them"
    return f"none can be judged{by_them}: {', '.join(parts)}" if parts else ""


def nearest_text(now: Standing, near: Near) -> str:
    """An evaluation that misses limits, and by how much: `trial 3: latency is 9.4 × the budget of 10 ms`."""
    limits = {limit.word: (limit, bound) for limit, bound in now.limits.rows()}
    batch = now.study.batch
    misses = ", ".join(_miss_text(*limits[name], share, now.metric, batch) for name, share in near.misses)
    early = " (stopped early)" if now.measures.stopped_rows[near.row] else ""
    return f"trial {now.table.trial[near.row]}: {misses}{early}"


def _miss_text(limit: Limit, bound: float, share: float, metric: MetricScale, batch: int) -> str:
    """By how much a limit is missed.

    Args:
        batch: samples in one inference.
        share: how far the measure is beyond the bound, relative to it; the plain difference where the bound is zero.
    """
    if limit.kind is RATE and bound > 0:
        rates = [f"{1000 * batch / ms:,.5g} samples a second" for ms in (bound * (1 + share), bound)]
        return f"{limit.word} is {rates[0]}, the limit is {rates[1]}"
    name, sign = "budget" if limit.unit == "ms" else "limit", limit.sign(metric.higher_is_better)
    if sign > 0 and bound > 0:
        return f"{limit.word} is {_times_text(1 + share)} × the {name} of {limit.format(bound, metric)}"
    measure = bound + sign * share * (abs(bound) or 1.0)
    return f"{limit.word} is {limit.format(measure, metric)}, the {name} is {limit.format(bound, metric)}"


def _times_text(ratio: float) -> str:
    """Two digits, three close to one: `9.4`, `1.03`, `1,250`."""
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.{2 if ratio < 1.95 else 1 if ratio < 10 else 0}f}"


def regained_text(now: Standing) -> str:
    """Which evaluations the limits may let stand although others stopped them early, and what to do; empty for none."""
    rows = np.flatnonzero(now.judgement.regainable)
    if not len(rows):
        return ""
    many, named = len(rows) > 1, list_text(now.table.trial[rows])
    way = suggestions.command("resume", now.study.name, *now.details.target_option, storage=now.details.storage)
    return (
        f"{len(rows)} evaluation{'s' * many} may keep these limits but {'were' if many else 'was'} stopped early "
        f"under other ones (trial{'s' * many} {named}); `{way}` "
        f"with these limits scores {'them' if many else 'it'} to the end"
    )
