"""The interface of hooks, each of which knows when it is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from search.errors import DataError, EvaluatorError, ModelError, SolverError, SurrogateError
from studies.judging.standing import Standing
from studies.store.records import StoredEvaluation

T = TypeVar("T")
# What measuring or forecasting something may fail with. A metric that raises, a full disk or a study that is gone is no
# such failure: nothing could go on after it.
_FAILURES = (DataError, EvaluatorError, ModelError, SolverError, SurrogateError)


def go_without(what: str, note: Callable[[str], None], step: Callable[[], T], instead: T) -> T:
    """Do something that a search can do without: if it fails, that is told and the search goes on.

    Args:
        what: it is, in words, as the beginning of a sentence.
        note: told of the failure.
        step: does it.
        instead: what is returned where it failed.
    """
    try:
        return step()
    except _FAILURES as error:
        note(f"{what} failed, and the search goes on without it: {error}")
        return instead


class Hook:
    """Something that is done between evaluations. Whoever makes one overrides what it needs.

    Every method is called in the thread that runs the search, and may take as long as an evaluation.

    Attributes:
        optional: what it does, in words, where a search can do without that: a failure is told then, and the hook is
            closed and left out from then on. Empty: a failure ends the search.
    """

    optional = ""

    def notice(self, now: Standing) -> Standing:
        """Look at where the study stands, before it is decided how to go on; where it stands afterwards."""
        return now

    def prepare(self, now: Standing) -> None:
        """Do what new evaluations need; called only while some are wanted."""

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        """Do what an evaluation of this worker, just stored, gives reason for."""

    def conclude(self) -> None:
        """Say what the search has shown, once it is over."""

    def close(self) -> None:
        """Let go of tasks and processes, however the run ends; again changes nothing."""


class Hooks(Hook):
    """All hooks of a run, in their order.

    Args:
        note: told of hooks that failed.
    """

    def __init__(self, hooks: Sequence[Hook], note: Callable[[str], None] = lambda text: None) -> None:
        self._hooks = list(hooks)
        self._note = note

    def notice(self, now: Standing) -> Standing:
        for hook in tuple(self._hooks):
            now = self._call(hook, partial(hook.notice, now), now)
        return now

    def prepare(self, now: Standing) -> None:
        for hook in tuple(self._hooks):
            self._call(hook, partial(hook.prepare, now), None)

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        for hook in tuple(self._hooks):
            self._call(hook, partial(hook.follow, record, now), None)

    def conclude(self) -> None:
        for hook in tuple(self._hooks):
            self._call(hook, hook.conclude, None)

    def close(self) -> None:
        for hook in self._hooks:
            hook.close()

    def _call(self, hook: Hook, step: Callable[[], T], instead: T) -> T:
        if not hook.optional:
            return step()
        return go_without(hook.optional, lambda text: self._leave_out(hook, text), step, instead)

    def _leave_out(self, hook: Hook, why: str) -> None:
        self._hooks.remove(hook)
        hook.close()
        self._note(why)
