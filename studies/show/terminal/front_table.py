"""The front with its picks and baselines, and all trials, as tables for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from search.values import Precision
from studies.judging.findings.optimization_levels import final_level_cells, levels_of
from studies.judging.points import Point
from studies.judging.rounding import (
    estimate_text,
    half_width,
    latency_text,
    least_half,
    rate_text,
    speedup_text,
    value_text,
)
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.evaluations import failure_text
from studies.judging.sentences.final_split import final_shown_text
from studies.judging.sentences.picks import ties_text
from studies.judging.standing import Standing
from studies.options.limits import Limit
from studies.show.front_rows import ordered_points
from studies.show.terminal.text_table import Column, FittedTable, TextTable
from studies.store.records import FAILED, OK

BEST_STYLE, BASELINE_STYLE, MISSED_STYLE = "bold green", "cyan", "yellow"
_DOUBTFUL = "latency doubtful"
# What the column `limits` says, with its explanation below the table.
LIMIT_WORDS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.SURELY: (Verdict.SURELY.value, "on the final samples with 95 % certainty"),
    Verdict.HOLDS: (Verdict.HOLDS.value, "kept on the final samples by the estimate, but not with 95 % certainty"),
    Verdict.FAILS: (Verdict.FAILS.value, "on the search samples or on the final samples"),
    Verdict.UNCONFIRMED: (Verdict.UNCONFIRMED.value, "kept on the search samples, not scored on the final samples"),
}

_LABELS = [each.label.upper() for each in sorted(Precision, key=lambda each: -each.rank)]

_MIX_LABEL = re.compile("|".join(each.label for each in sorted(Precision, key=lambda each: -len(each.label))))


def front_table(now: Standing, mixes: Mapping[int, str]) -> TextTable:
    """The best, then front, other picks, what the final split ruled out, and baselines, fastest first.

    Args:
        mixes: evaluation id → mix in words.
    """
    return points_table(now, ordered_points(now), mixes, _front_notes)


def points_table(
    now: Standing, points: Sequence[Point], mixes: Mapping[int, str], notes: Callable[[Standing, Point], Iterator[str]]
) -> TextTable:
    """Some evaluations, in this order.

    Args:
        notes: what is to be said of each.
    """
    levels = levels_of(point.final_levels for point in points)
    columns = [
        Column("pick", shorten=_shorten_picks, full_text_below=True),
        Column("trial", right=True),
        Column("latency", right=True),
        Column("× FP32", right=True),
        Column("× file", right=True),
        Column("samples/s", right=True, drop=6),
        *(Column(name, right=True, drop=5) for level in levels for name in (f"level {level}", "built in")),
        *_score_columns(now),
        *(Column(limit.word, right=True, drop=5) for limit in _limits_shown(now)),
        Column("limits", drop=2),
        Column("mix", drop=3, shorten=_shorten_mixes),
        Column("notes", note=True),
    ]
    doubtful = _doubtful_text(points)
    said = [[text for text in notes(now, point) if not doubtful or text != _DOUBTFUL] for point in points]
    shared = least_half(half_width(point.loss_low, point.loss_high) for point in points)
    rows = [
        [*_cells(now, point, levels, mixes[point.id], shared), "; ".join(texts)]
        for point, texts in zip(points, said, strict=True)
    ]
    styles = {place: style for place, point in enumerate(points) if (style := _style(now, point))}
    below = (doubtful,) if doubtful else ()
    table = TextTable(columns, rows, key=1, styles=styles, below=below)
    return table.without_empty("× file", _score_columns(now)[-1].header, "limits", "notes")


def _score_columns(now: Standing) -> list[Column]:
    """The metric and the loss; of a metric that compares with FP32 the metric alone, whose loss says nothing more."""
    name = now.metric.name
    if now.metric.relative:
        return [Column(name, right=True), Column(f"final {name}", right=True, drop=1)]
    return [
        Column(name, right=True, least=8),
        Column("loss", right=True, drop=4),
        Column("final loss", right=True, drop=1),
    ]


def limits_legend(table: FittedTable) -> str:
    """What the words in the column `limits` mean; empty if that is not shown."""
    if "limits" not in table.headers:
        return ""
    place = table.headers.index("limits")
    used = {row[place] for row in table.rows}
    parts = [f"{word} = {meaning}" for word, meaning in LIMIT_WORDS.values() if word in used]
    return f"limits: {'; '.join(parts)}." if parts else ""


def limits_word(now: Standing, point: Point) -> str:
    """Whether an evaluation keeps the limits, in one word; empty if nothing is known or asked."""
    if not now.limits or point.status != OK:
        return ""
    verdict = point.final.verdict
    if point.mismatch:  # it is no candidate, whatever its numbers are, which a note says
        return LIMIT_WORDS[verdict][0] if point.final.scored else ""
    if not point.feasible:
        verdict = Verdict.FAILS
    return LIMIT_WORDS[verdict][0] if verdict in LIMIT_WORDS else ""


def _cells(now: Standing, point: Point, levels: Sequence[int], mix: str, shared: float) -> list[str]:
    """The cells of one evaluation.

    Args:
        shared: half of an interval, by which a value is rounded that has none of its own.
    """
    timed = point.latency_ms is not None
    return [
        ", ".join(_names(now, point)),
        str(point.trial),
        latency_text(point.latency_ms, now.target.band) if timed else point.status,
        speedup_text(point.speedup, doubtful=point.speedup_doubtful) if timed else "",
        speedup_text(point.over_file, doubtful=point.latency_doubtful) if timed else "",
        rate_text(point.samples_per_s),
        *(cell for level in levels for cell in final_level_cells(point.final_levels, level)),
        *_score_cells(now, point, shared),
        *(_limited_text(now, limit, point) for limit in _limits_shown(now)),
        limits_word(now, point),
        _MIX_LABEL.sub(lambda label: label[0].upper(), mix),
    ]


def _limits_shown(now: Standing) -> list[Limit]:
    """The limits that are set of what has no column anyway: their measures are columns only where they decide."""
    return [limit for limit, _ in now.limits.rows() if limit.unit not in ("ms", "metric")]


def _limited_text(now: Standing, limit: Limit, point: Point) -> str:
    measure = now.table.known(limit.column, point.row)
    return "" if measure is None else limit.format(measure, now.metric)


def _names(now: Standing, point: Point) -> Iterator[str]:
    """What an evaluation is picked as, with scores, and which baseline it is."""
    for name in () if now.only_fp32 else point.picks:
        score = now.score(point.row, name)
        yield name if score is None else f"{name} is {score:.3g}"
    if point.role:
        yield point.baseline.upper()


def _score_cells(now: Standing, point: Point, shared: float) -> list[str]:
    """Below `_score_columns`."""
    metric, half = now.metric, half_width(point.loss_low, point.loss_high)
    final = "NaN or infinity" if now.final.unscorable[point.row] else final_shown_text(now, point)
    if metric.relative:
        low, high = (None, None) if point.value is None else (point.value - half, point.value + half)
        return [estimate_text(point.value, low, high, metric), final]
    loss = estimate_text(point.loss, point.loss_low, point.loss_high, metric)
    return [value_text(point.value, half or shared, metric), loss, final]


def _front_notes(now: Standing, point: Point) -> Iterator[str]:
    """What is noteworthy of an evaluation in the table of the front; of a baseline nobody asks why it is not on it."""
    yield from point_notes(now, point)
    if point.status == OK and point.feasible and not (point.on_front or point.picks or point.role):
        yield "beaten"


def point_notes(now: Standing, point: Point) -> Iterator[str]:
    """What is noteworthy of an evaluation."""
    if point.is_unrelated:
        yield MARK
    yield from _ties(now, point)
    if point.picks and point.not_sure:
        yield "not certain to keep the limits"
    if "best" in point.picks and point.final.tries > 1:
        yield f"{point.final.tries} were tried on the final samples"
    if point.mismatch:
        yield point.mismatch
    elif not point.on_front and (why := _why_off(now, point)):
        yield why
    if point.opaque > 0:
        yield f"the precision of {point.opaque} groups cannot be read from the engine"
    if point.latency_doubtful:
        yield _DOUBTFUL


def _doubtful_text(points: Sequence[Point]) -> str:
    """Which latencies are doubtful, said once where most of several are; empty elsewhere: then rows say it."""
    sound = [str(point.trial) for point in points if not point.latency_doubtful]
    if len(points) < 2 or 2 * len(sound) >= len(points):
        return ""
    if not sound:
        return "All latencies in this table are doubtful."
    many = f"trial{'s' * (len(sound) > 1)} {', '.join(sound)}"
    return f"Only the latenc{'ies' if len(sound) > 1 else 'y'} of {many} {'are' if len(sound) > 1 else 'is'} certain."


def _ties(now: Standing, point: Point) -> Iterator[str]:
    """What its picks tie with; picks that tie with the same are named together."""
    names: dict[str, list[str]] = {}
    for name in point.picks:
        if text := ties_text(now, point, name):
            names.setdefault(text, []).append(name)
    for text, same in names.items():
        yield f"as {' and '.join(same)} it {text}"


def _why_off(now: Standing, point: Point) -> str:
    """Why an evaluation is not on the front, where its latency, its loss and the column `limits` do not show it."""
    if point.status != OK:
        return ""
    if point.picks:  # ties say it where they are told
        return "" if any(point.ties.values()) else "a faster or more accurate one ties with it"
    if point.final.failure:
        return "fails on the final data"
    return "" if point.feasible or limits_word(now, point) == Verdict.FAILS.value else "misses the limits"


def _style(now: Standing, point: Point) -> str:
    if "best" in point.picks and not now.only_fp32:
        return BEST_STYLE
    if point.role:
        return BASELINE_STYLE
    return MISSED_STYLE if limits_word(now, point) == Verdict.FAILS.value or point.status != OK else ""


def _shorten_picks(header: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """`best, fast, knee` as `best +2`, `accurate, FP32` as `FP32 +1`: a baseline keeps its name, as `best` does."""
    return header, [_short_names(cell.split(", ")) for cell in cells]


def _short_names(names: Sequence[str]) -> str:
    ahead = [name for name in names if name in ("best", *_LABELS)] or [names[0].partition(":")[0]]
    left = len(names) - len(ahead)
    return f"{' '.join(ahead)} +{left}" if left else " ".join(ahead)


def _shorten_mixes(header: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """`20 INT8, 4 FP32` as `20/4` below `INT8/FP32`."""
    counts = [_mix_counts(cell) for cell in cells]
    groups = max((sum(each.values()) for each in counts), default=0)
    used_labels = {label for each in counts for label in each}
    labels = [label for label in _LABELS if label in used_labels]
    if not groups or not all(counts) or used_labels - {*_LABELS}:
        return header, list(cells)
    whole = [{label: n or groups for label, n in each.items()} for each in counts]
    return "/".join(labels), ["/".join(str(each.get(label, 0)) for label in labels) for each in whole]


def _mix_counts(text: str) -> dict[str, int]:
    """Label → groups, 0 for all of them; empty if the text is no mix."""
    counts = {}
    for part in text.split(", "):
        count, _, label = part.partition(" ")
        if not label or not (count.isdigit() or count == "all"):
            return {}
        counts[label] = 0 if count == "all" else int(count)
    return counts


def sorted_points(now: Standing, by: str) -> list[Point]:
    """Every evaluation, by `trial`, `latency` or `loss`; those without one last."""
    keys = {
        "trial": now.table.trial[np.arange(len(now.table))],
        "latency": now.measures.latency_ms,
        "loss": now.table.loss,
    }
    return now.points([int(row) for row in np.argsort(keys[by], kind="stable")])


def trials_table(now: Standing, points: Sequence[Point], mixes: Mapping[int, str]) -> TextTable:
    """Evaluations as in the table of the front; of one that failed, at which stage and how is in the notes."""
    return points_table(now, points, mixes, _trial_notes)


def _trial_notes(now: Standing, point: Point) -> Iterator[str]:
    if point.status == FAILED:
        yield failure_text(str(now.table.stage[point.row]), str(now.table.kind[point.row]))
    else:
        yield from point_notes(now, point)
