"""One judged evaluation: what reports, tables, JSON, CSV, Python, exports and gates show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from search.values import LossEstimate
from studies.judging.judged_target import FinalScore, JudgedTarget, estimate_of, known
from studies.judging.sentences.evaluations import mix_text
from studies.store.records import EvaluationRecord, FinalLevel

# Outputs that correlate less with FP32's share less than 4 % of their variance. An INT8 engine that loses ten points of
# top-1 still has 0.89. Of 64 samples of one value that have nothing to do with FP32's, 19 in 20 stay below this; larger
# outputs always do.
UNRELATED_BELOW = 0.2


class Point(EvaluationRecord):
    """One evaluation as it is stored, under the names of its columns, and how it is judged.

    Each fact is read or derived when it is asked for, and then stays. A number is None if its stage was not reached.

    Attributes:
        now: where the target's evaluations stand.
        row: its row in the table of evaluations.
    """

    now: JudgedTarget
    row: int

    def read(self, name: str) -> Any:
        """A column of the table of evaluations."""
        value = known(getattr(self.now.table, name)[self.row])
        if value is None and not self.__table__.c[name].nullable:
            value = 0
        vars(self)[name] = value
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.row == other.row and self.now is other.now

    def __hash__(self) -> int:
        return hash((id(self.now), self.row))

    @cached_property
    def trial(self) -> int:
        """The number of its trial, by which users know it; -1 if it has none."""
        return int(self.now.table.trial[self.row])

    @property
    def baseline(self) -> str:
        """The precision that it is a uniform baseline of; empty for a mix."""
        return self.role.partition(":")[2]

    @cached_property
    def mix(self) -> str:
        """How many groups run in which precision, in words."""
        return mix_text(self.now.details.assignments[self.id])

    # -- the latency -------------------------------------------------------------------------------------------------

    @cached_property
    def latency_ms(self) -> float | None:
        """The latest measurement of its latency."""
        return _number(self.now.measures.latency_ms[self.row])

    @cached_property
    def samples_per_s(self) -> float | None:
        """Samples in a second at that latency, where one batch runs after the other."""
        return None if self.latency_ms is None else 1000 * self.now.study.batch / self.latency_ms

    @cached_property
    def search_ms(self) -> float | None:
        """The measurement of the search itself."""
        return _number(self.now.table.latency_ms[self.row])

    @cached_property
    def speedup(self) -> float | None:
        """How many times as fast as uniform FP32; None if either was not measured."""
        return _number(self.now.measures.speedup(self.row))

    @cached_property
    def over_file(self) -> float | None:
        """How many times as fast as the user's own file; None where FP32 is that, or the file was not measured."""
        given_ms, own_ms = self.now.as_given_ms, self.latency_ms
        return None if given_ms is None or own_ms is None else given_ms / own_ms

    @cached_property
    def latency_doubtful(self) -> bool:
        """Whether something disturbed the measurement of its latency, or any two may differ by much by chance."""
        return bool(self.now.doubtful[self.row])

    @cached_property
    def speedup_doubtful(self) -> bool:
        """Whether its latency is doubtful, or that of uniform FP32."""
        return self.now.is_speedup_doubtful(self.row)

    @cached_property
    def doubt_texts(self) -> tuple[str, ...]:
        """The doubts about its latency in words."""
        return self.now.details.doubts.get(self.id, ())

    @cached_property
    def final_levels(self) -> tuple[FinalLevel, ...]:
        """Its newest export at each other optimization level, the lowest first."""
        return self.now.details.final_levels.get(self.id, ())

    # -- the engine --------------------------------------------------------------------------------------------------

    @cached_property
    def mismatch(self) -> str:
        """The groups that did not run in the requested precision, in words."""
        return self.now.details.mismatches.get(self.id, "")

    @cached_property
    def moves(self) -> int | None:
        """The number of layers of its engine that only change format or type."""
        moves = int(self.now.table.moves[self.row])
        return None if moves < 0 else moves

    # -- the loss ----------------------------------------------------------------------------------------------------

    @property
    def value(self) -> float | None:
        """The value of the metric on the search samples."""
        return self.metric_value

    @property
    def complete(self) -> bool:
        """Whether it was scored on all samples."""
        return self.samples == self.total_samples

    @cached_property
    def correlation(self) -> float | None:
        """Least correlation of its outputs with FP32's, on the search and the final split."""
        return _number(self.now.correlation(self.row))

    @property
    def loss_estimate(self) -> LossEstimate | None:
        """Its loss with the interval of the search; None if it was not scored on all samples."""
        return self.loss_interval if self.complete else None

    @property
    def loss_interval(self) -> LossEstimate | None:
        """The loss with its interval, also where scoring stopped early; None without a loss."""
        return estimate_of(self.loss, self.loss_low, self.loss_high, 0, self.value)

    @property
    def is_unrelated(self) -> bool:
        """Whether its outputs have nothing in common with FP32's: whatever the metric says, it is probably broken."""
        return self.correlation is not None and self.correlation < UNRELATED_BELOW

    @cached_property
    def final(self) -> FinalScore:
        """Its scores on the final split."""
        return self.now.final_score(self.row)

    @property
    def is_measured(self) -> bool:
        """Whether both its latency and its loss are known."""
        return self.latency_ms is not None and self.loss is not None

    # -- how it stands -----------------------------------------------------------------------------------------------

    @cached_property
    def feasible(self) -> bool:
        """Whether it keeps all limits in the search, ran as requested and can be scored on the final split."""
        return bool(self.now.judgement.feasible[self.row])

    @cached_property
    def on_front(self) -> bool:
        """Whether no other evaluation is better in latency and loss by more than noise."""
        return bool(self.now.judgement.front[self.row])

    @cached_property
    def not_sure(self) -> bool:
        """Whether only its estimate keeps the accuracy limits, but not the bound of its interval."""
        return self.now.is_not_sure(self.row)

    @cached_property
    def picks(self) -> tuple[str, ...]:
        """What it is recommended as: `best`, `accurate`, `fast`, `knee`."""
        return tuple(self.now.picks.names(self.row))

    @cached_property
    def ties(self) -> Mapping[str, tuple[int, ...]]:
        """For each of its picks, the rows that it beats only by noise."""
        return {name: self.now.ties(name) for name in self.picks}


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
