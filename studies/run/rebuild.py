"""Building the engine of an evaluation again, as a new evaluation that belongs to no trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.process.job import StopLimits as EarlyLimits
from search.errors import ArtifactError
from search.values import Answer, Assignment, Evaluation, Recovery, digest_of
from studies.artifacts.leftovers import kept_engine
from studies.judging.standing import Standing
from studies.run.finalists import why_lacking
from studies.run.work import Work
from studies.store.records import EXPORT, OK, RUNNING

_LEVEL = "optimization_level"


def at_final_level(work: Work, options: Mapping[str, Any]) -> Work:
    """The work with an evaluator process that builds at the final optimization level."""
    if options.get(_LEVEL) == work.bench.keeper.job.options.get(_LEVEL):
        return work
    work.bench.keeper.reopen(options=dict(options))
    line = work.bench.keeper.ask("opening the backend at another optimization level")
    return replace(work, ledger=replace(work.ledger, knobs=line.setup.knobs()))


def find_or_rebuild(work: Work, now: Standing, row: int, *, other_level: bool) -> tuple[int, str]:
    """The evaluation of a row's assignment whose plan is kept and built as `work` builds: its own, or a new one.

    Args:
        other_level: whether `work` builds at another optimization level than the search did.

    Returns:
        Its id, and what to tell the user; empty if it is the row's own.

    Raises:
        ArtifactError: building, auditing or measuring it again failed.
    """
    record = work.ledger.store.evaluations.load(int(now.table.id[row]))
    assignment = record.evaluation.assignment
    plain = work.ledger.digest(assignment)
    wanted = record.digest == plain or not other_level
    lacking = why_lacking(work.ledger.artifacts, record.artifact if record.status == OK else None)
    if wanted and not lacking:
        return record.id, ""
    why = lacking if wanted else f"its engine was not built at optimization level {work.ledger.knobs[_LEVEL]}"
    earlier_id, digest = _place(work, {"rebuild_of": plain, **_own_biases(work, assignment)})
    trial = int(now.table.trial[row])
    if earlier_id is not None:
        return (
            earlier_id,
            f"trial {trial}: {why}; evaluation {earlier_id}, built for an earlier export, takes its place",
        )
    work.events.note(f"trial {trial}: {why}; building, auditing and measuring it again")
    number, evaluation = _evaluate(work, assignment, digest, trial)
    return number, f"trial {trial}: {why}; it was built again as evaluation {number}{_disobeying_text(evaluation)}"


def _own_biases(work: Work, assignment: Assignment) -> dict[str, str]:
    """What tells rebuilds with biases of the mix's own from those that were made before it had any."""
    own = work.ledger.ranges().recovery.mixes.get(assignment.digest)
    return {} if own is None else {"biases": Recovery(corrections=own).digest}


def _place(work: Work, what: Mapping[str, str]) -> tuple[int | None, str]:
    """An earlier rebuild whose plan is kept, else the first digest that is free.

    Args:
        what: is built again, which the digest names.
    """
    number = 1
    while True:
        digest = digest_of({**what, "number": number})
        record = work.ledger.store.evaluations.find(work.ledger.target.id, digest)
        if record is not None and record.status == RUNNING and _is_left_behind(work, record.id):
            work.ledger.store.claims.abandon(record.id)
            record = None
        if record is None:
            return None, digest
        if record.status == OK and not why_lacking(work.ledger.artifacts, record.artifact):
            return record.id, digest
        number += 1


def _is_left_behind(work: Work, number: int) -> bool:
    """Whether the process that built it was killed: on SQLite only one at a time works on a study."""
    ages_s = {
        running.id: running.heartbeat_age_s for running in work.ledger.store.claims.find_running(work.ledger.target.id)
    }
    age_s = ages_s.get(number)
    return work.crew.alone or age_s is None or age_s > work.crew.lease_s


def _evaluate(work: Work, assignment: Assignment, digest: str, trial: int) -> tuple[int, Evaluation]:
    with _abandoned_when_interrupted(work):
        number = work.ledger.store.claims.begin(work.ledger.target.id, assignment, digest, work.crew.name, None, EXPORT)
        out = work.bench.folder / f"{number}.engine"
        evaluation = work.bench.keeper.evaluate(
            assignment,
            out,
            EarlyLimits(reference_ms=work.ledger.store.measurements.reference_ms(work.ledger.target.id)),
        )
        engine = Path(evaluation.artifact) if evaluation.artifact else None
        with kept_engine(work.ledger.store, work.ledger.artifacts, engine) as artifact:
            work.ledger.store.claims.record(number, evaluation, artifact, worker=work.crew.name)
    failure = evaluation.failure
    if failure is not None:
        raise ArtifactError(
            f"exporting trial {trial}: building it again failed, {failure.stage.value} ({failure.kind.value}): "
            f"{failure.message}. It is stored as evaluation {number}; choose another with --trial."
        )
    return number, evaluation


def _disobeying_text(evaluation: Evaluation) -> str:
    groups = [row.group for row in evaluation.audit if row.answer is Answer.NOT_OBEYED]
    return (
        f", in which {len(groups)} groups do NOT run in the requested precision ({', '.join(groups[:4])})"
        if groups
        else ""
    )


@contextmanager
def _abandoned_when_interrupted(work: Work) -> Iterator[None]:
    """What Ctrl-C or an error cuts off leaves no row, also just after it was begun."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error that brought us here says more
            for running in work.ledger.store.claims.find_running(work.ledger.target.id, work.crew.name):
                work.ledger.store.claims.abandon(running.id, work.crew.name)
        raise
