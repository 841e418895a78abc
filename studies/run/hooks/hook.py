"""The interface of hooks, each of which knows when it is due."""

from __future__ import annotations

from collections.abc import Sequence

from studies.judging.standing import Standing
from studies.store.records import EvaluationRecord


class Hook:
    """Something that is done between evaluations. Whoever makes one overrides what it needs.

    Every method is called in the thread that runs the search, and may take as long as an evaluation.
    """

    def notice(self, now: Standing) -> Standing:
        """Look at where the study stands, before it is decided how to go on; where it stands afterwards."""
        return now

    def prepare(self, now: Standing) -> None:
        """Do what new evaluations need; called only while some are wanted."""

    def follow(self, record: EvaluationRecord, now: Standing) -> None:
        """Do what an evaluation of this worker, just stored, gives reason for."""

    def conclude(self) -> None:
        """Say what the search has shown, once it is over."""

    def close(self) -> None:
        """Let go of tasks and processes, however the run ends; again changes nothing."""


class Hooks(Hook):
    """All hooks of a run, in their order."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = tuple(hooks)

    def notice(self, now: Standing) -> Standing:
        for hook in self._hooks:
            now = hook.notice(now)
        return now

    def prepare(self, now: Standing) -> None:
        for hook in self._hooks:
            hook.prepare(now)

    def follow(self, record: EvaluationRecord, now: Standing) -> None:
        for hook in self._hooks:
            hook.follow(record, now)

    def conclude(self) -> None:
        for hook in self._hooks:
            hook.conclude()

    def close(self) -> None:
        for hook in self._hooks:
            hook.close()
