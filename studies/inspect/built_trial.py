"""Finding a trial with an engine, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Container

from search.errors import StudyError
from search.values import Stage
from studies.judging.sentences.evaluations import failure_text
from studies.store import suggestions
from studies.store.records import FAILED, RUNNING, StoredEvaluation, StudyRecord, TargetRecord
from studies.store.store import Store


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
