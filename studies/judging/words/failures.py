"""Studies in which nothing can be picked and nothing comes near: what to say of their evaluations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from studies.options.config import Limits
from studies.store import suggestions
from studies.store.records import FAILED, RUNNING, EvaluationTable

if TYPE_CHECKING:
    from studies.judging.standing import Standing
    from studies.store.reading.queries import Reader

_LONGEST = 300


@dataclass(frozen=True)
class AllFailed:
    """What the evaluations of a target failed with, where all that are finished did.

    Attributes:
        evaluations: how many.
        stage, kind: what most of them failed at and how.
        count: of those.
        message: of the first of those; its first line.
        trial: that one's number; -1 where it answers none.
        url: of the database, without its password.
    """

    evaluations: int
    stage: str
    kind: str
    count: int
    message: str
    trial: int
    url: str


def all_failed(reader: Reader, table: EvaluationTable) -> AllFailed | None:
    """What went wrong where nothing went right; None where any evaluation came through or none is finished."""
    failed = np.flatnonzero(table.status == FAILED)
    if not len(failed) or bool(np.isin(table.status, (FAILED, RUNNING), invert=True).any()):
        return None
    ways = [(str(table.stage[row]), str(table.kind[row])) for row in failed]
    way, count = Counter(ways).most_common(1)[0]
    first = int(failed[ways.index(way)])
    failure = reader.load(int(table.id[first])).evaluation.failure
    lines = failure.message.strip().splitlines() if failure is not None else []
    message = lines[0][:_LONGEST] if lines else "no message"
    return AllFailed(len(failed), *way, count, message, int(table.trial[first]), reader.url)


def all_failed_text(now: Standing) -> str:
    """How many evaluations failed, mostly with what, and the command that shows one; empty where not all did."""
    found = now.failed
    if found is None:
        return ""
    many = found.evaluations > 1
    total = f"all {found.evaluations} evaluations" if many else "the only evaluation"
    most = "" if found.count == found.evaluations else f"{found.count} of them "
    text = f"{total} failed, {most}at {found.stage} ({found.kind.replace('_', ' ')}): {found.message.rstrip('.')}"
    if found.trial < 0:
        return text
    which = ("--target", str(now.number)) if now.number > 1 else ()
    way = suggestions.command("show", now.study.name, str(found.trial), *which, storage=found.url)
    return f"{text}. One of them: {way}"


def nobody_text(now: Standing) -> str:
    """That there is nothing to pick: because of the limits, or where there are none, for another reason."""
    return "there is no evaluation to pick" if now.limits == Limits() else "no evaluation keeps the limits"


def nothing_text(now: Standing) -> str:
    """Why nothing keeps the limits or comes near; empty where there is no finished evaluation."""
    if now.failed is not None:
        return all_failed_text(now)
    ok = now.table.status == "ok"
    disobeyed, barred = ok & (now.table.not_obeyed > 0), ok & now.fails_final
    counts = {
        "did not run in the precisions asked for": disobeyed,
        "failed on the final data": barred & ~disobeyed,
        "stopped early": ok & ~disobeyed & ~barred,
        "failed": now.table.status == FAILED,
    }
    parts = [f"{int(rows.sum())} {name}" for name, rows in counts.items() if rows.any()]
    by_them = "" if now.limits == Limits() else " by them"
    return f"none can be judged{by_them}: {', '.join(parts)}" if parts else ""
