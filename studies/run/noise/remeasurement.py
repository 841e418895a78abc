"""Measuring doubtful latencies again, beside the baseline and each other, until they are clean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluators.stopwatch import time_spent
from search.errors import StudyError
from search.values import Latency
from studies.judging.rounding import latency_text
from studies.judging.standing import Standing, front_and_picks, read_standing
from studies.options.limits import LATENCY_MS
from studies.options.quantities import format_duration_s
from studies.options.read_options import change_config
from studies.run.finalists import engine_of, trial_text
from studies.store.records import FAILED, RUNNING
from studies.store.store import Store

if TYPE_CHECKING:
    from studies.judging.search_events import SearchEvents
    from studies.run.pace import Pace
    from studies.run.work import Work

TRIES = 3  # measurements at most of what stays doubtful
_ROUNDS = 20  # visits of each engine
_TOGETHER = 6  # engines at most that are loaded at a time
_MOST_REASONS = 2  # that a line names of what is doubtful
_DOUBTFUL_BAND = 0.05  # a doubtful latency has the digits of one that is known to so much
_REACH = 0.1  # a latency that misses the budget by less may keep it once it is measured cleanly


@dataclass(frozen=True)
class Remeasured:
    """What measuring again changed of one evaluation.

    Attributes:
        trial: lowest Optuna trial that it answers; None if no trial asked for it.
        before_ms, after_ms: the latency that counted before and counts now.
        tries: how often it was measured now.
        doubts_before, doubts: what was doubtful in the one and is in the other; empty if nothing is.
    """

    trial: int | None
    before_ms: float
    after_ms: float
    tries: int
    doubts_before: tuple[str, ...]
    doubts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, latencies in milliseconds."""
        return {**vars(self), "doubts_before": list(self.doubts_before), "doubts": list(self.doubts)}


def rows_that_matter(now: Standing) -> list[int]:
    """Rows whose latency decides something: uniform baselines, front and picks, and what may yet keep the budget."""
    mask = front_and_picks(now)
    if now.limits.most(LATENCY_MS) is not None:
        mask |= front_and_picks(replace(now, limits=now.limits.widen(LATENCY_MS, 1 + _REACH)))
    mask[now.measures.baselines] = True
    return [int(row) for row in np.flatnonzero(mask & _find_timed(now))]


def doubtful_rows(store: Store, now: Standing, rows: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The rows whose latency is doubtful, each with what is doubtful."""
    ids = {int(now.table.id[row]): row for row in rows}
    doubts_by_id = store.measurements.doubts(list(ids), now.table.reference_ms)
    return {ids[number]: doubts for number, doubts in sorted(doubts_by_id.items())}


def rows_of_trials(store: Store, now: Standing, trials: Sequence[int]) -> list[int]:
    """The rows of these trials, each once.

    Raises:
        StudyError: there is no such trial, or its evaluation has no latency.
    """
    rows, timed = [], _find_timed(now)
    for trial in trials:
        record = store.trials.load(now.target.id, trial)
        row = int(np.flatnonzero(now.table.id == record.id)[0])
        if not timed[row]:
            why = {RUNNING: "is under way", FAILED: "failed"}.get(record.status, "has no latency")
            raise StudyError(f"measuring trial {trial} again: its evaluation {why}. Take another trial.")
        rows.append(row)
    return list(dict.fromkeys(rows))


def _find_timed(now: Standing) -> Any:
    """(n,) bool, whether the evaluation went well and has a latency."""
    return np.isfinite(now.measures.latency_ms) & (now.table.status != FAILED) & (now.table.status != RUNNING)


# -- measuring ---------------------------------------------------------------------------------------------------------


def settle_doubts(work: Work) -> None:
    """Measure again what matters and is doubtful, before a study ends; within its time limit.

    Under a time limit that is done once, and not while nothing but FP32 was measured: on a busy machine it would take
    the time that the next run needs for new evaluations.
    """
    now, limited = work.ledger.read_standing(), work.pace.limit_s is not None
    if limited and now.only_fp32:
        return
    rows = list(doubtful_rows(work.ledger.store, now, rows_that_matter(now)))
    if not rows or not TRIES:
        return
    many = "one doubtful latency" if len(rows) == 1 else f"{len(rows)} doubtful latencies"
    about_s = max(1, round(work.pace.timing_s(now, len(rows))))
    work.events.note(f"measuring {many} again, which takes about {format_duration_s(about_s)} each time")
    for row, change in zip(rows, measure_again(work, now, rows, 1 if limited else TRIES), strict=True):
        if change.tries:
            work.events.note(change_text(trial_text(now, row), change))
            if len(change.doubts) > _MOST_REASONS:
                work.events.detail(f"{trial_text(now, row)} is still doubtful: {', '.join(change.doubts)}")


@time_spent("measuring again")
def measure_again(work: Work, now: Standing, rows: Sequence[int], most: int | None = None) -> list[Remeasured]:
    """Measure rows again, each at least once and then while it is doubtful; older measurements stay stored.

    Nothing is begun that the time limit leaves no time for.

    Args:
        most: measurements of each at most; None for `TRIES`.

    Returns:
        What changed, in the order of the rows.

    Raises:
        EvaluatorError: the evaluator process dies over it.
        ArtifactError: an engine that was not kept cannot be built again.
    """
    numbers = [int(now.table.id[row]) for row in rows]
    before = work.ledger.store.measurements.doubts(numbers, now.table.reference_ms)
    tries = dict.fromkeys(numbers, 0)
    later, after, left = now, before, numbers
    for _ in range(max(TRIES if most is None else most, 1)):
        for batch in _batches(left):
            if _in_time(work.pace, later, len(batch)):
                work.ledger.store.measurements.add_round(work.ledger.target.id, _latencies(work, later, batch))
                tries |= {number: tries[number] + 1 for number in batch}
        later = read_standing(work.ledger.store, work.ledger.study, work.ledger.target, now.limits)
        after = work.ledger.store.measurements.doubts(numbers, later.table.reference_ms)
        left = [number for number in numbers if number in after and tries[number]]
        if not left:
            break
    latencies = _by_number(now), _by_number(later)
    return [
        Remeasured(*latencies[0][n], latencies[1][n][1], tries[n], before.get(n, ()), after.get(n, ())) for n in numbers
    ]


def _by_number(now: Standing) -> dict[int, tuple[int | None, float]]:
    """Evaluation id → its trial and the latency that counts."""
    columns = zip(now.table.id.tolist(), now.table.trial[:].tolist(), now.measures.latency_ms.tolist(), strict=True)
    return {number: (trial if trial >= 0 else None, ms) for number, trial, ms in columns}


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _TOGETHER] for start in range(0, len(numbers), _TOGETHER))


def _in_time(pace: Pace, now: Standing, count: int) -> bool:
    """Whether measuring so many engines leaves enough time for the finalists."""
    return pace.limit_s is None or pace.left_s >= pace.timing_s(now, count) + pace.reserve_s(now)


def _latencies(work: Work, now: Standing, numbers: Sequence[int]) -> dict[int, Latency]:
    """Evaluation id → its latency, measured in turn with the others and the baseline."""
    engines: dict[str, Path] = {}
    for done, number in enumerate(numbers, start=1):
        work.events.step("engines to measure again", done, len(numbers))
        engines[str(number)] = engine_of(work, now, int(np.flatnonzero(now.table.id == number)[0]))
    line = work.bench.keeper.ask("measuring latencies again")
    latencies = line.timings.time_together(engines, _ROUNDS, now.table.reference_ms)
    return {int(label): latency for label, latency in latencies.items()}


# -- on request --------------------------------------------------------------------------------------------------------


def remeasure_study(
    url: str,
    now: Standing,
    trials: Sequence[int],
    *,
    every: bool,
    changes: Mapping[str, Any],
    progress: SearchEvents,
) -> tuple[Remeasured, ...]:
    """Measure latencies of a study again; see `bitfront.verbs.resume`.

    Raises:
        StudyError: no such trial, or model, data or target are not the study's, or another process works on it.
    """
    from studies.artifacts.shipping import here
    from studies.run.session.data_caches import check_artifacts, study_cache
    from studies.run.session.join import join_study
    from studies.run.session.setup import check_inputs
    from studies.run.session.study_rows import check_unchanged
    from studies.store.target_options import config_of

    with Store.open(url, write=False) as store:
        rows = _choose_rows(store, now, trials, every=every)
    if not rows:
        return ()
    config = change_config(config_of(now.study, now.target, url), changes)
    check_artifacts(config)
    with Store.open(url) as store, ExitStack() as stack:
        config = here(store, now.study, config, progress)
        good = stack.enter_context(check_inputs(config, events=progress, cache=study_cache(config)))
        check_unchanged(good, now.study, now.target)
        # No worker may throw away an engine meanwhile.
        with join_study(store, good, now.study, progress) as work, work.crew.hold("prune"):
            return tuple(measure_again(work, now, rows))


def _choose_rows(store: Store, now: Standing, trials: Sequence[int], *, every: bool) -> list[int]:
    if trials:
        return rows_of_trials(store, now, trials)
    rows = [int(row) for row in np.flatnonzero(_find_timed(now))] if every else rows_that_matter(now)
    return list(doubtful_rows(store, now, rows))


def change_text(name: str, change: Remeasured) -> str:
    """`trial 7: 1.21 ms before, 1.18 ms now`, and what is still doubtful."""
    if not change.tries:
        return f"{name}: not measured again, because the time limit leaves no time"
    before = _latency_text(change.before_ms, change.doubts_before)
    return f"{name}: {before} before, {_latency_text(change.after_ms, change.doubts)} now{_doubts_text(change.doubts)}"


def _latency_text(latency_ms: float, doubts: Sequence[str]) -> str:
    return latency_text(latency_ms, _DOUBTFUL_BAND if doubts else 0.0)


def _doubts_text(doubts: Sequence[str]) -> str:
    """What is still doubtful, two reasons at most; `show` has all of them."""
    if not doubts:
        return ""
    more = len(doubts) - _MOST_REASONS
    rest = f", and {more} more reason{'s' * (more > 1)}" if more > 0 else ""
    return f"; still doubtful: {', '.join(doubts[:_MOST_REASONS])}{rest}"
