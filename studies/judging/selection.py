"""Finding the evaluation that a user means: a pick, or a trial."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from search.errors import StudyError
from search.values import Stage
from studies.judging.rules.picks import NAMES, read_pick
from studies.judging.sentences.evaluations import failure_text
from studies.judging.sentences.no_pick import nearest_text, nothing_text, regained_text
from studies.judging.standing import Standing
from studies.store import suggestions
from studies.store.records import FAILED, RUNNING, StoredEvaluation, StudyRecord, TargetRecord
from studies.store.store import Store


def find_row(now: Standing, pick: str | None, trial: int | None, *, option: str = "--trial") -> int:
    """The row that a pick or a trial means; StudyError when there is none.

    Args:
        pick: its name; None for `best`.
        option: by which the trial was given, for messages.
    """
    if pick is not None and trial is not None:
        raise StudyError("choosing an engine: --pick and --trial were both given. Give one of them.")
    if trial is not None:
        return _trial_row(now, trial, option)
    name = read_pick(pick or "best")
    row = replace(now, scored_picks=(name,)).picks.row(name)
    if row is None and name not in NAMES and now.picks.best is not None:
        raise StudyError(f"--pick {name}: a score compares with uniform FP32, which was not measured on this target.")
    if row is None:
        raise StudyError(f"--pick {name}: {_nobody(now)}. {_nearest(now)}")
    return row


def _trial_row(now: Standing, trial: int, option: str) -> int:
    rows = [row for row, number in enumerate(now.table.trial) if number == trial]
    if not rows:
        known = sorted(int(number) for number in now.table.trial if number >= 0)
        there = f"its trials are {known[0]} to {known[-1]}" if known else "it has no trial yet"
        raise StudyError(f"{option} {trial}: study {now.study.name!r} has no such evaluation; {there}.")
    if now.table.status[rows[0]] != "ok":
        raise StudyError(f"{option} {trial}: that evaluation is {now.table.status[rows[0]]}; it has no engine.")
    return rows[0]


def _nobody(now: Standing) -> str:
    named = f"of study {now.study.name!r}"
    return f"no evaluation {named} " + ("can be picked" if not now.limits else "keeps the limits")


def _nearest(now: Standing) -> str:
    lines = [nearest_text(now, near) for near in now.judgement.nearest()]
    nothing = nothing_text(now) or "it has no finished evaluation yet"
    nearest = "The nearest: " + "; ".join(lines) if lines else f"{nothing[0].upper()}{nothing[1:]}"
    regained = regained_text(now)
    return f"{nearest}. {regained}." if regained else nearest


def load_built(
    store: Store, study: StudyRecord, target: TargetRecord, trial: int, verb: str, *, but: Container[Stage] = ()
) -> StoredEvaluation:
    """The evaluation of a trial, if it has an engine.

    Args:
        verb: what the engine is wanted for, for example `profile`.
        but: stages at which the evaluation may have failed nevertheless.

    Raises:
        StudyError: no such trial, one that is under way, or one that failed.
    """
    record = store.trials.load(target.id, trial)
    failure = record.evaluation.failure
    doing = f"{verb.removesuffix('e')}ing trial {trial}"
    if record.status == RUNNING:
        raise StudyError(f"{doing}: its evaluation is not finished. Wait for it, or take another trial.")
    if record.status == FAILED and failure is not None and failure.stage not in but:
        way = suggestions.command("show", study.name, str(trial), storage=store.url)
        raise StudyError(
            f"{doing}: it {failure_text(failure.stage.value, failure.kind.value)}, so there is no engine to {verb}. "
            f"Take another trial; `{way}` says why it failed."
        )
    return record
