"""Studies in which nothing can be picked and nothing comes near: what to say of their evaluations."""

from __future__ import annotations

from studies.judging.standing import Standing
from studies.store import suggestions
from studies.store.records import FAILED


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
    return "there is no evaluation to pick" if not now.limits else "no evaluation keeps the limits"


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
    by_them = "" if not now.limits else " by them"
    return f"none can be judged{by_them}: {', '.join(parts)}" if parts else ""
