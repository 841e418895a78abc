"""What the final split says of evaluations, in words: for tables, summaries, reports and manifests."""

from __future__ import annotations

from studies.judging.rules.candidates import Aim
from studies.judging.rules.verdicts import Verdict
from studies.judging.standing import Standing
from studies.options.quantities import format_metric, format_ms

_MOST_NAMED = 3
_MOST_TIES = 2


def loss_text(now: Standing, loss: float, digits: int = 4) -> str:
    """A loss in the metric's own unit."""
    metric = now.study.metric
    return format_metric(loss, metric["unit"], metric["ratio"], digits)


def best_label(now: Standing) -> str:
    """What the recommended evaluation is called: the best by the limits, or the knee where they leave that open."""
    label = "best" if not now.limits else "best within the limits"
    return f"{label}, the knee of the front" if now.aim is Aim.KNEE else label


def best_numbers(now: Standing, row: int) -> str:
    """Latency, loss in the search and on the final split of one row, and what that says of the limits."""
    doubt = " (not sure)" if now.not_sure(row) else ""
    searched = f"{format_ms(float(now.latency_ms[row]))}, loss {loss_text(now, float(now.table.loss[row]))}{doubt}"
    final = final_text(now, row)
    return f"{searched}; on the final split {final}" if final else searched


def final_text(now: Standing, row: int) -> str:
    """Loss on the final split with its interval, and what it says of the limits; empty where it was not scored."""
    if now.fails_final[row]:
        return "NaN or infinity"
    final, interval, verdict = now.final_of(row), now.final_interval(row), now.verdict(row)
    if final is None or interval is None:
        return ""
    low, high = interval
    text = f"{loss_text(now, float(now.finals.loss[final]))} ± {loss_text(now, (high - low) / 2, 2)}"
    return text if verdict is Verdict.UNLIMITED else f"{text} ({verdict.value}{_tries_text(now, row)})"


def _tries_text(now: Standing, row: int) -> str:
    tries = now.tries(row)
    return f", {tries} tried" if row == now.picks.best and tries > 1 else ""


def ties_text(now: Standing, name: str) -> str:
    """What a pick beats by noise alone: `ties with trial 7`; empty where it beats all others clearly."""
    rows = now.ties(name)
    if not rows:
        return ""
    named = [_tie_name(now, row) for row in rows[:_MOST_TIES]]
    more = f" and {len(rows) - _MOST_TIES} more" if len(rows) > _MOST_TIES else ""
    return f"ties with {', '.join(named)}{more}"


def _tie_name(now: Standing, row: int) -> str:
    role = str(now.table.role[row])
    if role.startswith("baseline:"):
        return f"plain {role.partition(':')[2].upper()}"
    return f"trial {now.table.trial[row]}"


def final_notes(now: Standing) -> list[str]:
    """Sentences about the final split: what was recommended instead of what failed there, and what disagrees."""
    texts = [_instead_text(now), *_disagreements(now)]
    return [text for text in texts if text]


def _instead_text(now: Standing) -> str:
    """What is recommended where all that stood in line for the best fail on the final split; empty elsewhere."""
    line, best = now.picks.line, now.picks.best
    if best is None or not line or not all(now.verdict(row) is Verdict.FAILS for row in line):
        return ""
    many = f"none of the {len(line)} candidates keeps" if len(line) > 1 else "the only candidate does not keep"
    head = f"{many} the limits on the final split"
    trial = now.table.trial[best]
    if now.verdict(best) is Verdict.FAILS:
        return f"{head}; trial {trial}, the surest of them in the search, stands in for the best and fails too"
    return f"{head}; trial {trial} is recommended instead ({now.verdict(best).value})"


def _disagreements(now: Standing) -> list[str]:
    """`disagreement_text` of the rows that a table names, a few of them, picks first."""
    rows = list(dict.fromkeys([*now.picks.rows(), *now.told_rows()]))
    texts = [text for row in rows if (text := disagreement_text(now, row))]
    more = len(texts) - _MOST_NAMED
    return texts[:_MOST_NAMED] + ([f"so do {more} more of those shown"] if more > 0 else [])


def disagreement_text(now: Standing, row: int) -> str:
    """Two losses that differ by more than chance explains, and what both say together; empty where they do not."""
    found = now.disagreement(row)
    if found is None:
        return ""
    searched, final, pooled = (loss_text(now, loss, 3) for loss in (found.search, found.final, found.pooled))
    named = f"trial {now.table.trial[row]}" if now.table.trial[row] >= 0 else "the exported engine"
    return (
        f"{named}: the search saw a loss of {searched}, the final split {final}; they differ by more than chance "
        f"explains. Both together: {pooled} ± {loss_text(now, found.half, 2)}"
    )
