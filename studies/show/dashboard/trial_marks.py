"""The current marks of trials of one target: on the front, picked, feasible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from studies.judging.point_lists import front_points
from studies.judging.standing import Standing
from studies.store.records import OK
from studies.store.store import Store


class TrialMarks:
    """Marks for the trials of one target.

    Attributes:
        front: number of the trial → what is said of it, of the front and the picks, the fastest first.
    """

    KEY: ClassVar[str] = "bitfront"

    def __init__(self, store: Store, now: Standing) -> None:
        self._store = store
        self._now = now
        self.front: Mapping[int, str] = {
            point.trial: ", ".join([*(["front"] if point.on_front else []), *point.picks])
            for point in front_points(now)
            if point.trial >= 0
        }
        self._rows = {int(number): row for row, number in enumerate(now.table.id)}
        self._links: Mapping[int, tuple[int, str]] = {}

    def link(self, trials: Sequence[int]) -> None:
        """Find the evaluations that answer trials, of which several may have the same."""
        self._links = self._store.trials.links(self._now.target.id, *trials)

    def complete(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        """A trial as optuna-dashboard gives it, with its mark and with whether it keeps the limits.

        optuna-dashboard draws a trial in grey where one of its `constraints` is above 0.
        """
        number, status = self._links.get(trial["number"], (0, ""))
        mark = self.front.get(trial["number"], "")
        attributes = [*trial["user_attrs"], {"key": self.KEY, "value": mark}] if mark else trial["user_attrs"]
        row = self._rows.get(number) if status == OK else None
        constraints = trial["constraints"] if row is None else [0.0 if self._now.judgement.feasible[row] else 1.0]
        return {**trial, "user_attrs": attributes, "constraints": constraints}
