"""The error of a run whose study is deleted while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from search.errors import BitfrontError, RunError, StudyError

if TYPE_CHECKING:
    from studies.store.records import StudyRecord
    from studies.store.store import Store


@contextmanager
def reported_deletion(store: Store, study: StudyRecord) -> Iterator[None]:
    """Let whatever fails because the study is gone say that it is: Optuna and the database miss one row of many.

    Args:
        study: as it was read when the run began.

    Raises:
        RunError: it was deleted meanwhile.
    """
    try:
        yield
    except Exception as error:
        if _is_gone(store, study):
            raise RunError(
                f"working on study {study.name!r}: another process deleted it, with all its results. "
                "`bitfront search` makes a new study."
            ) from error
        raise


def _is_gone(store: Store, study: StudyRecord) -> bool:
    """Also where another one has its name now, and on SQLite its id."""
    try:
        now = store.studies.load(study.name)
    except StudyError:
        return True
    except BitfrontError:  # the database is away, which the first error says
        return False
    return (now.id, now.created_at) != (study.id, study.created_at)
