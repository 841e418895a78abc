"""The status of a study, and the studies of a database, as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from studies.judging.findings.rescue_table import recovery_text
from studies.judging.judged_target import FinalScore
from studies.judging.points import Point
from studies.judging.rounding import (
    bounded_text,
    latency_text,
    score_name,
    scores_text,
    speedup_text,
)
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.evaluations import failures_text, finished_text, replaced_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.status.study_status import StudyStatus, TargetStatus
from studies.judging.status.time_table import time_rows, times_text
from studies.options.limits import MetricScale
from studies.options.quantities import format_duration_s
from studies.show.terminal.text_table import Column, TextTable, plain_table, wrap_text
from studies.store import suggestions, target_names
from studies.store.records import (
    NO_PROSPECT,
    REQUEST,
    TIME_LIMIT,
    FinishedEvaluation,
    RunningRecord,
    StudySummary,
    TargetRecord,
    WorkerRecord,
)

# By what ended a search: how it is said, and what `resume` needs to go on to the end.
_STOPPED: dict[str, tuple[str, tuple[str, ...]]] = {
    TIME_LIMIT: ("stopped by the time limit", ()),
    REQUEST: ("stopped on request", ()),
    NO_PROSPECT: ("stopped because no better mix is expected", ("--patience", "none")),
}
TIME_COLUMNS = ("seconds", "share", "spent on")
WORKER_COLUMNS = ("worker", "state", "host", "device", "heartbeat", "evaluations", "now")


@dataclass(frozen=True)
class Block:
    """Facts, or rows below a header."""

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()


def blocks(now: StudyStatus) -> Iterator[str | Block]:
    """Lines and tables, from top to bottom."""
    renewal = "" if now.renews is None else f"; renews {now.renews}"
    yield f"study {now.study.name!r} in {now.url}: {state_text(now)}{renewal}"
    if not now.targets:
        yield "nothing has begun yet"
    for target in now.targets:
        described = target.target.target
        yield f"target {described.fingerprint[:12]}: {described.backend} on {described.device}"
        yield Block(list(facts(target, MetricScale.of(now.study.metric))))
        shown = (*target.alive, *target.lost)
        if shown:
            yield Block([_worker_cells(target, worker) for worker in shown], WORKER_COLUMNS)
        yield from _others(target)
        if rows := time_rows(target.times):
            yield times_text(target.times)
            yield Block(rows, TIME_COLUMNS)


def state_text(now: StudyStatus) -> str:
    """The state of a study; of one that ended early what ended it, and how to continue."""
    if now.stopped_by not in _STOPPED and now.study.state != "interrupted":
        return now.study.state
    why, words = _STOPPED.get(now.stopped_by, (now.study.state, ()))
    return f"{why}; continue with `{suggestions.command('resume', now.study.name, *words, storage=now.url)}`"


def facts(target: TargetStatus, metric: MetricScale) -> Iterator[tuple[str, str]]:
    """Names and values of what is known of a target."""
    running = f"; {len(target.running)} running" if target.running else ""
    yield "evaluations", f"{target.tally.finished} of {target.wanted}{running}"
    yield "rate", rate_text(target)
    if target.closing_step is not None:
        yield (
            "at the end",
            f"{target.closing_step[0]}; about {format_duration_s(round(target.closing_step[1]))} left in all",
        )
    yield "failures", failures_text(target.tally.failures)
    if text := replaced_text(target.deaths):
        yield "evaluator", text.removeprefix("the evaluator process was ")
    if target.target.recovery is not None:
        yield "recovery", recovery_text(target.target.recovery)
    yield "front", f"{target.front} point{'s' * (target.front != 1)} within the limits"
    if target.only_fp32:
        yield "best", "nothing but FP32 was measured yet"
        return
    for names, point in _group_picks(target.picks):
        yield names, point_text(point, metric, target.target.band)


def _group_picks(picks: Mapping[str, Point]) -> Iterator[tuple[str, Point]]:
    """Each picked point once, with all names that it is picked as: `best, fast`."""
    names: dict[int, list[str]] = {}
    for name, point in picks.items():
        names.setdefault(point.id, []).append(name)
    for same in names.values():
        yield ", ".join(same), picks[same[0]]


def rate_text(target: TargetStatus) -> str:
    """How many evaluations an hour, and how long it takes to the last."""
    overall = target.rate_overall
    if overall is None:
        return "nothing is finished yet"
    since = "the last hour" if target.window_s >= 3600 else f"the last {format_duration_s(target.window_s)}"
    recent = f"{target.rate_recent:.0f} an hour in {since}, " if target.alive else ""
    how = "at most" if target.may_end else "about"
    left = "" if target.left_s is None else f"; {how} {format_duration_s(target.left_s)} left"
    return f"{recent}{overall:.0f} an hour overall{left}"


def point_text(point: Point, metric: MetricScale, band: float = 0.0) -> str:
    """One pick: its latency, speed-up, metric and loss in the search, and what the final split says of it.

    Args:
        band: the tie band of latency, which decides how many digits are shown; 0 if it is not known.
    """
    speedup = "" if point.speedup is None else f", {speedup_text(point.speedup)} × FP32"
    if point.speedup_doubtful:
        speedup = f" ({DOUBTFUL})"
    broken = f", {MARK}" if point.is_unrelated else ""
    scored, final = scores_text(point.value, point.loss, point.loss_low, point.loss_high, metric), point.final
    judged = f", final {score_name(metric)} {_final_text(final, metric)}" if final.scored else ""
    scores = f"{latency_text(point.latency_ms, band)}{speedup}, {scored}{judged}"
    return f"trial {point.trial}: {scores}, {final.verdict.value}{broken}"


def _final_text(final: FinalScore, metric: MetricScale) -> str:
    if not metric.relative:
        return bounded_text(final.loss, final.bound, metric)
    return bounded_text(final.value, final.value_bound, metric)


def finished_lines(now: StudyStatus, finished: Sequence[FinishedEvaluation]) -> Iterator[str]:
    """A line for each, with how many there were then."""
    done = sum(target.tally.finished for target in now.targets) - len(finished)
    wanted, metric = sum(target.wanted for target in now.targets), MetricScale.of(now.study.metric)
    for number, row in enumerate(finished, done + 1):
        yield f"{number}/{wanted} trial {row.trial} by {row.worker}: {finished_text(row, metric)}"


def draw_status(now: StudyStatus, width: int) -> Text:
    """The status of a study for a terminal that redraws it."""
    return Text("\n").join(styled_lines(now, width))


def styled_lines(now: StudyStatus, width: int | None) -> Iterator[Text]:
    """All lines, within so many characters; None if any width will do."""
    for block in blocks(now):
        if isinstance(block, str):
            yield from (Text(line) for line in wrap_text(block, width))
        elif block.header:
            fitted = plain_table(block.rows, block.header).fit(width)
            yield from (Text(line, style=style) for line, style in fitted.lines())
            yield from (Text(line, style="dim") for text in fitted.sentences() for line in wrap_text(text, width))
        else:
            yield from _fact_lines(block.rows, width)


def _fact_lines(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[Text]:
    """Names and values; a value that needs more lines has them below its own."""
    room = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        for place, line in enumerate(wrap_text(value, None if width is None else width - room)):
            yield Text.assemble(((name if place == 0 else "").ljust(room), "dim"), line)


def _worker_cells(target: TargetStatus, worker: WorkerRecord) -> tuple[str, ...]:
    stage = target.stage(worker)
    state = stage if worker.live(target.lease_s) else f"lost ({stage})"
    age = f"{age_text(worker.heartbeat_age_s)} ago"
    return worker.name, state, worker.host, worker.device, age, str(worker.evaluations), _work_text(target, worker)


def _work_text(target: TargetStatus, worker: WorkerRecord) -> str:
    leases = [_lease_text(row) for row in target.running if row.worker == worker.name]
    return ", ".join([*(task.name for task in target.tasks if task.worker == worker.name), *leases])


def _lease_text(row: RunningRecord) -> str:
    trial = "an export" if row.trial is None else f"trial {row.trial}"
    age = "no lease" if row.heartbeat_age_s is None else f"lease {age_text(row.heartbeat_age_s)} old"
    again = f", taken over {row.takeovers} time{'s' * (row.takeovers != 1)}" if row.takeovers else ""
    return f"{trial} ({age}{again})"


def _others(target: TargetStatus) -> Iterator[str]:
    shown = {worker.name for worker in (*target.alive, *target.lost)}
    for row in target.running:
        if row.worker not in shown:
            yield f"left behind by {row.worker}: {_lease_text(row)}; the next worker takes it over"
    if not target.alive:
        yield "nobody works on it now"
    if target.ended_workers:
        made = sum(worker.evaluations for worker in target.ended_workers)
        count = len(target.ended_workers)
        yield f"{count} worker{'s' * (count != 1)} ended, after {made} evaluation{'s' * (made != 1)}"


def age_text(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 120 else format_duration_s(seconds)


STUDY_COLUMNS = ("name", "state", "ok", "failed", "running", "targets", "created_at", "model_path")


def study_values(study: StudySummary, targets: Sequence[TargetRecord]) -> dict[str, Any]:
    """One study as plain values."""
    row = vars(study) | {"targets": target_names.rows(targets), "created_at": study.created_at.isoformat()}
    return {name: row[name] for name in STUDY_COLUMNS}


def studies_table(rows: Sequence[tuple[StudySummary, Sequence[TargetRecord]]]) -> TextTable:
    """The studies of a database for people. Names are whole at every width, as commands take them."""
    columns = [
        Column("name"),
        Column("state"),
        *(Column(name, right=True, drop=1) for name in ("ok", "failed", "running")),
        Column("targets", drop=3, least=14),
        Column("created at", drop=2),
        Column("model path", drop=4, least=14),
    ]
    return TextTable(columns, [_cells(*row) for row in rows])


def _cells(study: StudySummary, targets: Sequence[TargetRecord]) -> list[str]:
    counts = [str(count) for count in (study.ok, study.failed, study.running)]
    return [
        study.name,
        study.state,
        *counts,
        _names_text(targets),
        f"{study.created_at:%Y-%m-%d %H:%M}",
        study.model_path,
    ]


def _names_text(targets: Sequence[TargetRecord]) -> str:
    """By name, each but the only one with its number."""
    names = target_names.names([record.target for record in targets])
    return "; ".join(names if len(names) < 2 else [f"{number}: {name}" for number, name in enumerate(names, 1)])
