"""Measuring the best candidates again, side by side, and scoring them on the final samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.process.connection import ProcessDiedError
from evaluators.stopwatch import time_spent
from search.errors import ArtifactError, EvaluatorError
from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s
from studies.run.pace import Pace
from studies.store.records import AS_GIVEN

if TYPE_CHECKING:
    from studies.run.work import Work

DAMAGED = "its kept engine is damaged"
_FEWEST = 6  # the front fills them up to this: a confirmed latency may make another of its points the best
_ROUNDS = 20


def finalist_rows(now: Standing) -> list[int]:
    """Rows worth confirming, the first first: `best` and its line, other picks, the front while they are few.

    Uniform INT8 is among them if it keeps the limits or might: whether it is good enough is what most users ask. Where
    no limit is kept, the nearest rows.
    """
    front = sorted(now.measures.fastest_first(now.judgement.front), key=lambda row: float(now.table.loss[row]))
    plain = [] if now.near_int8 is None else [now.near_int8]
    wanted = list(dict.fromkeys([*now.picks.rows()[:1], *now.picks.line, *now.picks.rows()]))
    rows = list(dict.fromkeys([*wanted, *(plain if wanted else []), *front]))[: max(len({*wanted, *plain}), _FEWEST)]
    return rows or list(dict.fromkeys([*(near.row for near in now.judgement.nearest(early=False)), *plain]))


@time_spent("finalists")
def confirm(work: Work, now: Standing, rows: Sequence[int], *, timed: bool = True) -> int:
    """Measure rows again, interleaved with each other and the baseline, score them on *final*, and store both.

    Args:
        timed: whether the latencies are stored too. What is only exported keeps those of the study.

    Returns:
        How many of them cannot be scored there, which is stored too.

    Raises:
        EvaluatorError: the evaluator process dies over it.
    """
    if not rows:
        return 0
    many = f"{len(rows)} finalists again, side by side, and scoring them"
    what = many if len(rows) > 1 else "one finalist again, beside the baseline, and scoring it"
    pace = work.pace if work.pace.has_learnt else Pace(splits=work.ledger.study.data)
    about_s = max(1, round(pace.finalists_s(now, len(rows))))
    work.events.note(f"measuring {what} on the final samples, which takes about {format_duration_s(about_s)}")
    engines = {str(now.table.id[row]): engine_of(work, now, row) for row in rows}
    line = work.bench.keeper.ask("measuring the finalists", partial(work.events.step, "measuring finalists"))
    finalists = line.scores.score_finalists(engines, _ROUNDS, now.table.reference_ms)
    if timed:
        work.ledger.store.measurements.add_round(
            work.ledger.target.id, {int(label): finalists.latency[label] for label in engines}
        )
    for label, accuracy in finalists.accuracy.items():
        work.ledger.store.evaluations.set_final(int(label), accuracy)
    for row in rows:
        if message := finalists.failed.get(str(now.table.id[row])):
            work.ledger.store.evaluations.set_final_failure(
                int(now.table.id[row]), work.ledger.study.metric["name"], message
            )
            work.events.note(f"{trial_text(now, row)} fails on the final split, so it is not recommended: {message}")
    work.ledger.store.targets.add_details(work.ledger.target.id, final_reference=finalists.reference)
    return len(finalists.failed)


@time_spent("finalists")
def measure_as_given(work: Work, now: Standing) -> None:
    """Measure the user's own file beside the baseline and score it on *final*, once, unless FP32 is that file.

    What its builder refuses is stored as that. Where the time limit leaves no time for it a later run does it.
    """
    model = work.problem.model
    if not (model.origin or model.folded) or AS_GIVEN in work.ledger.store.targets.details(work.ledger.target.id):
        return
    if work.pace.left_s < work.pace.as_given_s(now):
        work.events.note(
            "the time limit leaves no time to measure the file as it was given; to resume the study measures it"
        )
        return
    work.events.note("measuring the file as it was given, beside the baseline, and scoring it on the final samples")
    out = work.bench.folder / "as_given.engine"
    line = work.bench.keeper.ask("measuring the file as it was given")
    try:
        line.builds.build_given(out)
        finalists = line.scores.score_finalists({AS_GIVEN: out}, _ROUNDS, now.table.reference_ms)
    except EvaluatorError as error:
        details: dict[str, Any] = {"failure": str(error)}
    else:
        details = {"failure": finalists.failed.get(AS_GIVEN, ""), "latency_ms": finalists.latency[AS_GIVEN].value_ms}
        if score := finalists.accuracy.get(AS_GIVEN):
            details |= {"loss": score.loss, "loss_low": score.loss_low, "loss_high": score.loss_high}
    work.ledger.store.targets.add_details(work.ledger.target.id, **{AS_GIVEN: details})


def trial_text(now: Standing, row: int) -> str:
    """The name of the trial that a row answers, or a description of the row if no trial asked for it."""
    trial = int(now.table.trial[row])
    return f"trial {trial}" if trial >= 0 else "the engine built again for this export"


def why_lacking(artifacts: Artifacts, digest: str | None) -> str:
    """Why an engine has to be built again; empty if it is kept as it was built. A damaged one is let go of."""
    if not digest or digest not in artifacts:
        return "its engine was not kept"
    return "" if artifacts.is_whole(digest) else DAMAGED


def engine_of(work: Work, now: Standing, row: int) -> Path:
    """The kept engine of a row, or the same engine built again where it was not kept, or is damaged.

    Raises:
        ArtifactError: it can neither be read nor be built.
    """
    digest = str(now.table.artifact[row])
    lacking = why_lacking(work.ledger.artifacts, digest)
    if not lacking:
        return work.ledger.artifacts.path(digest)
    if lacking == DAMAGED:
        work.events.note(f"trial {now.table.trial[row]}: {lacking}, so it is built again")
    out = work.bench.folder / f"{now.table.id[row]}.engine"
    if not out.exists():
        assignment = work.ledger.store.evaluations.assignments(work.ledger.target.id)[int(now.table.id[row])]
        try:
            doing = f"building the engine of trial {now.table.trial[row]} again"
            work.bench.builder_of(assignment).ask(doing).builds.rebuild(assignment, out)
        except ProcessDiedError as death:
            raise ArtifactError(str(death)) from death
    return out
