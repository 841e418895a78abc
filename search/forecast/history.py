"""Optuna's trials as arrays, for the models of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from search.forecast import acquisition
from search.forecast.forecasts import MEASURED
from search.space.layout import Codes, Layout, Precisions
from search.space.trial_codes import codes_in, held
from search.values import Precision

_MOST_ROWS, _FIRST, _LAST = 200, 10, 40
_NANOSECOND_MS, _LARGEST = 1e-6, 1e100  # squares of more than this overflow in the models


@dataclass(frozen=True)
class History:
    """Trials as arrays.

    Attributes:
        precisions: (n, groups) int8 precisions of finished trials whose engines run as requested.
        ms, loss: (n,) measured latencies and losses.
        spread, loss_std: (n,) relative spread of the latency, and standard deviation of the loss.
        whole: (n,) bool, whether the loss was measured on all samples.
        pending: (m, groups) int8 precisions of trials that are not finished.
        seen: codes of all trials, and of the mixes that they were repaired to.
        repaired: numbers of the trials for which another mix was built than they requested.
    """

    precisions: Precisions
    ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    spread: NDArray[np.float64]
    loss_std: NDArray[np.float64]
    whole: NDArray[np.bool_]
    pending: Precisions
    seen: frozenset[tuple[int, ...]]
    repaired: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.ms)


class Historian:
    """Reads histories of one layout. It keeps the codes of finished trials, which never change, to save time."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._kept: dict[int, tuple[FrozenTrial, tuple[int, ...] | None]] = {}

    def history(
        self,
        trials: Sequence[FrozenTrial],
        unbuildable: Set[tuple[str, Precision]] = frozenset(),
        latencies: Mapping[int, float] | None = None,
    ) -> History:
        """Read trials as arrays. Those that failed or did not run as requested are only remembered as tried.

        Args:
            latencies: milliseconds by trial number, where a better value is known than the trial has.
        """
        # A trial that was asked for just now may not have all its parameters yet; one of others' may hold no codes.
        known = [(trial, row) for trial in trials if (row := self._asked(trial)) is not None]
        trials, rows_asked = [trial for trial, _ in known], [row for _, row in known]
        small = np.frombuffer(b"".join(map(bytes, rows_asked)), np.uint8)  # reading tuples of integers takes longer
        asked = small.astype(np.int64).reshape(len(trials), len(self.layout.space.variables))
        codes = self.repaired(asked, unbuildable)
        answered = list(rows_asked)
        changed: list[int] = np.flatnonzero((codes != asked).any(axis=1)).tolist()
        for place in changed:
            answered[place] = tuple(codes[place].tolist())
        done: dict[tuple[int, ...], int] = {}
        for place, trial in enumerate(trials):
            if trial.state is TrialState.COMPLETE and _obeyed(trial) and _measured(trial):
                # What answered several trials counts once, by its latest word: it may be scored to the end by now.
                done[answered[place]] = place
        rows = list(done.values())
        measured = [trials[place].user_attrs.get(MEASURED, (0.01, 0.0, 1.0)) for place in rows]
        spread, loss_std, whole = np.array(measured, dtype=float).reshape(-1, 3).T
        told = np.array([trials[place].values for place in rows], dtype=float).reshape(-1, 2)
        known_ms = latencies or {}
        ms = np.array([known_ms.get(trials[p].number, ms) for p, ms in zip(rows, told[:, 0], strict=True)], dtype=float)
        loss = told[:, 1]
        open_ = [place for place, trial in enumerate(trials) if trial.state is TrialState.RUNNING]
        built = self.layout.precisions(codes)
        seen = frozenset(answered).union(rows_asked if changed else ())
        repaired = frozenset(trials[place].number for place in changed)
        return History(built[rows], ms, loss, spread, loss_std, whole > 0, built[open_], seen, repaired)

    def _asked(self, trial: FrozenTrial) -> tuple[int, ...] | None:
        """The codes that a trial requested, or that were enqueued for it; None if some are missing."""
        kept = self._kept.get(trial.number)
        if kept is not None and kept[0] is trial:
            return kept[1]
        found = codes_in(held(trial), self.layout.space)
        codes = None if found is None else tuple(found.values())
        if trial.state.is_finished():
            self._kept[trial.number] = (trial, codes)
        return codes

    def repaired(self, codes: Codes, unbuildable: Set[tuple[str, Precision]]) -> Codes:
        """(n, decisions) codes after the repair of pairs that cannot be built; unchanged if there is no repair."""
        precisions, space = self.layout.precisions(codes), self.layout.space
        broken = np.zeros(len(codes), dtype=bool)
        for group, precision in unbuildable:
            broken |= precisions[:, self.layout.groups.index(group)] == self.layout.places.get(precision, -1)
        codes = codes.copy()
        for row in np.flatnonzero(broken):
            found = space.avoiding(self.layout.assignment(codes[row]), unbuildable)
            if found is not None:
                codes[row] = self.layout.codes_of(found)
        return codes


def relevant(history: History) -> NDArray[np.int64]:
    """Choose the rows that the models are fitted to: all, or the first, the last and those nearest the front.

    The time of a fit grows with the cube of the rows, and rows far from the front say little about those near it.
    """
    if len(history) <= _MOST_ROWS:
        return np.arange(len(history))
    log_ms = np.log(history.ms)
    kept = acquisition.front(log_ms, history.loss)
    scale = np.ptp(log_ms) or 1.0, np.ptp(history.loss) or 1.0
    best = np.minimum.reduce(
        [
            np.maximum(log_ms - log_ms[i], 0) / scale[0] + np.maximum(history.loss - history.loss[i], 0) / scale[1]
            for i in kept
        ]
    )
    best[kept] = -2.0
    best[:_FIRST] = np.minimum(best[:_FIRST], -1.0)  # the uniform assignments among them
    best[-_LAST:] = np.minimum(best[-_LAST:], -1.0)
    return np.sort(np.argsort(best, kind="stable")[:_MOST_ROWS])


def _obeyed(trial: FrozenTrial) -> bool:
    constraints: Mapping[str, float] = getattr(trial, "constraints", None) or {}
    return constraints.get("obeyed", 0.0) <= 0


def _measured(trial: FrozenTrial) -> bool:
    """Whether the values can be measurements; Optuna accepts any values from a program that adds a trial."""
    return trial.values[0] >= _NANOSECOND_MS and all(abs(value) <= _LARGEST for value in trial.values)
