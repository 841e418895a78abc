"""Optuna's trials as arrays, for the models of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from search.forecast import acquisition
from search.forecast.forecasts import MEASURED
from search.space.choices import codes_in, read_parameters
from search.space.layout import Layout, Precisions

# Most rows that the models are fitted to, since the time grows with their cube; and how many of the first, which are
# the uniform assignments, and of the last are among them in any case. The others are those nearest to the front.
_MOST_ROWS, _FIRST, _LAST = 200, 10, 40
# Latencies below and values above are refused: they measure nothing, and their products overflow.
_NANOSECOND_MS, _LARGEST = 1e-6, 1e100


@dataclass(frozen=True)
class MeasuredMixes:
    """Finished mixes whose engines run as requested, as arrays.

    Attributes:
        precisions: (n, groups) int8.
        ms, loss: (n,) measured latencies and losses.
        spread, loss_std: (n,) relative spread of the latency, and standard deviation of the loss.
    """

    precisions: Precisions
    ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    spread: NDArray[np.float64]
    loss_std: NDArray[np.float64]


@dataclass(frozen=True)
class History(MeasuredMixes):
    """Trials as arrays: those that are finished, and what is known of the others.

    Attributes:
        whole: (n,) bool, whether the loss was measured on all samples.
        pending: (m, groups) int8 precisions of trials that are not finished.
        tried: codes of all trials, a byte per decision.
    """

    whole: NDArray[np.bool_]
    pending: Precisions
    tried: frozenset[bytes]

    @cached_property
    def seen(self) -> frozenset[tuple[int, ...]]:
        """The codes that were tried, as tuples."""
        return frozenset(map(tuple, self.tried))

    def __len__(self) -> int:
        return len(self.ms)


class _Read(NamedTuple):
    """What the models learn from a trial.

    Attributes:
        codes: a byte per decision.
        built: the (groups,) int8 precisions of the codes, as bytes.
        measured: latency, loss, relative spread, standard deviation of the loss, and 1 if it was measured on all
            samples; None if the models learn nothing from the trial.
    """

    trial: FrozenTrial
    codes: bytes
    built: bytes
    measured: tuple[float, ...] | None


class Historian:
    """Reads histories of one layout. It keeps what it read of finished trials, which never change, to save time."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._kept: dict[int, tuple[FrozenTrial, _Read | None]] = {}

    def history(
        self,
        trials: Sequence[FrozenTrial],
        latencies: Mapping[int, float] | None = None,
    ) -> History:
        """Read trials as arrays. Those that failed or did not run as requested are only remembered as tried.

        Args:
            latencies: milliseconds by trial number, where a better value is known than the trial has.
        """
        # A trial that was asked for just now may not have all its parameters yet; one of others' may hold no codes.
        read = [record for trial in trials if (record := self._read(trial)) is not None]
        codes, built = [record.codes for record in read], [record.built for record in read]
        # What answered several trials counts once, by its latest word: it may be scored to the end by now.
        done = {codes[place]: place for place, record in enumerate(read) if record.measured is not None}
        rows, known_ms = list(done.values()), latencies or {}
        values = [read[place].measured for place in rows]
        ms, loss, spread, loss_std, whole = np.array(values, dtype=float).reshape(-1, 5).T
        numbers = [read[place].trial.number for place in rows]
        ms = np.array([known_ms.get(number, own) for number, own in zip(numbers, ms, strict=True)], dtype=float)
        pending = [place for place, record in enumerate(read) if record.trial.state is TrialState.RUNNING]
        return History(
            self._stack_precisions([built[place] for place in rows]),
            ms,
            loss,
            spread,
            loss_std,
            whole > 0,
            self._stack_precisions([built[place] for place in pending]),
            frozenset(codes),
        )

    def _stack_precisions(self, built: Sequence[bytes]) -> Precisions:
        return np.frombuffer(b"".join(built), np.int8).reshape(len(built), len(self.layout.groups))

    def _read(self, trial: FrozenTrial) -> _Read | None:
        """What a trial requested, or what was enqueued for it, and what was measured; None if codes are missing."""
        kept = self._kept.get(trial.number)
        if kept is not None and kept[0] is trial:
            return kept[1]
        named, record = codes_in(read_parameters(trial), self.layout.space), None
        if named is not None:
            row = np.array([list(named.values())], dtype=np.int64)
            record = _Read(trial, bytes(row[0].tolist()), self.layout.precisions(row).tobytes(), _read_values(trial))
        if trial.state.is_finished():
            self._kept[trial.number] = trial, record
        return record


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


def _read_values(trial: FrozenTrial) -> tuple[float, ...] | None:
    """A trial's values and what is known of their noise; None if it did not run as requested, or was not measured.

    Optuna accepts any values from a program that adds a trial.
    """
    constraints: Mapping[str, float] = getattr(trial, "constraints", None) or {}
    if trial.state is not TrialState.COMPLETE or constraints.get("obeyed", 0.0) > 0:
        return None
    ms, loss = trial.values
    if not (ms >= _NANOSECOND_MS and abs(ms) <= _LARGEST and abs(loss) <= _LARGEST):
        return None
    spread, loss_std, whole = trial.user_attrs.get(MEASURED, (0.01, 0.0, 1.0))
    return ms, loss, spread, loss_std, float(whole)
