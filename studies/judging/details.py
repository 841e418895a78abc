"""Facts about a target and its evaluations that few readers ask for, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from search.values import REFERENCE, UNLIKE_FLOAT, MixBias, Precision, is_quantized
from studies.judging.findings.optimization_levels import find_final_levels
from studies.store.columns import MOST_ROWS, EvaluationTable
from studies.store.records import FAILED, OK, RUNNING, TargetRecord
from studies.store.store import Store
from studies.store.target_names import names

_LONGEST = 300


@dataclass(frozen=True)
class FailureSummary:
    """What the evaluations of a target failed with, where all that are finished did.

    Attributes:
        evaluations: how many.
        stage, kind: what most of them failed at and how.
        count: of those.
        message: of the first of those; its first line.
        trial: that one's number; -1 where it answers none.
    """

    evaluations: int
    stage: str
    kind: str
    count: int
    message: str
    trial: int


def summarize_failures(store: Store, table: EvaluationTable) -> FailureSummary | None:
    """What went wrong where nothing went right; None if any evaluation came through or none is finished."""
    failed = np.flatnonzero(table.status == FAILED)
    if not len(failed) or bool(np.isin(table.status, (FAILED, RUNNING), invert=True).any()):
        return None
    way, count = count_failures(table).most_common(1)[0]
    first = next(int(row) for row in failed if (table.stage[row], table.kind[row]) == way)
    failure = store.evaluations.load(int(table.id[first])).evaluation.failure
    lines = failure.message.strip().splitlines() if failure is not None else []
    message = lines[0][:_LONGEST] if lines else "no message"
    return FailureSummary(len(failed), *way, count, message, int(table.trial[first]))


def count_failures(table: EvaluationTable) -> Counter[tuple[str, str]]:
    """(stage, kind) → how many evaluations failed so."""
    failed = table.status == FAILED
    return Counter((str(stage), str(kind)) for stage, kind in zip(table.stage[failed], table.kind[failed], strict=True))


Fact = TypeVar("Fact")


class FactsById(Mapping[int, Fact]):
    """A fact about each evaluation of a target, by its id; evaluations of which there is nothing to tell are absent.

    Whatever is asked for is read first, so that what is absent was read and found to be nothing. A fact stays as it was
    when it was read.

    Args:
        ids: of all evaluations.
        read: ids of some of them → the fact, where there is one.
    """

    def __init__(self, ids: Sequence[int], read: Callable[[Sequence[int]], Mapping[int, Fact]]) -> None:
        self._ids, self._read = frozenset(ids), read
        self._known: dict[int, Fact | None] = {}

    def look_up(self, ids: Sequence[int]) -> None:
        """Read several facts at once, as far as that has not been done yet."""
        missing = sorted(self._ids.intersection(ids).difference(self._known))
        for start in range(0, len(missing), MOST_ROWS):
            some = missing[start : start + MOST_ROWS]
            facts = self._read(some)
            self._known.update({number: facts.get(number) for number in some})

    def __getitem__(self, evaluation_id: int) -> Fact:
        self.look_up([evaluation_id])
        fact = self._known.get(evaluation_id)
        if fact is None:
            raise KeyError(evaluation_id)
        return fact

    def __iter__(self) -> Iterator[int]:
        self.look_up(sorted(self._ids))
        return iter([number for number, fact in self._known.items() if fact is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class TargetDetails:
    """Further facts about a target and its evaluations.

    Attributes:
        doubts: the doubts about latencies by evaluation id.
        mismatches: the groups that did not run in the requested precision, in words, by evaluation id.
        final_levels: the newest export at each other optimization level, the lowest first, by evaluation id.
        assignments: what was evaluated, by evaluation id.
    """

    def __init__(self, store: Store, target: TargetRecord, table: EvaluationTable) -> None:
        self._store, self._target, self._table = store, target, table
        ids, reference_ms = table.id.tolist(), table.reference_ms
        self.doubts = FactsById(ids, lambda some: store.measurements.doubts(some, reference_ms))
        self.mismatches = FactsById(ids, self._mismatches)
        self.final_levels = FactsById(ids, lambda some: find_final_levels(store, target, reference_ms, some))
        self.assignments = FactsById(ids, lambda some: store.evaluations.assignments(target.id, some))

    @property
    def storage(self) -> str:
        """URL of the study's database, without its password."""
        return self._store.url

    @cached_property
    def number(self) -> int:
        """The number of the target in the study, from 1."""
        return [record.id for record in self._targets].index(self._target.id) + 1

    @cached_property
    def target_name(self) -> str:
        """A name that distinguishes the target from the study's others; empty if there is no other."""
        return names([record.target for record in self._targets])[self.number - 1] if len(self._targets) > 1 else ""

    @property
    def target_option(self) -> tuple[str, ...]:
        """What names the target in a suggested command; nothing for the first, which is the default."""
        return ("--target", str(self.number)) if self.number > 1 else ()

    @cached_property
    def failures(self) -> FailureSummary | None:
        """A summary of the failures, if all finished evaluations failed."""
        return summarize_failures(self._store, self._table)

    @cached_property
    def mix_biases(self) -> Mapping[int, MixBias]:
        """The result of correcting biases for the own mix, by evaluation id."""
        records = self._store.evaluations.mix_biases(self._target.id)
        return {record.id: record.mix_bias for record in records if record.mix_bias is not None}

    @cached_property
    def busy(self) -> bool:
        """Whether other processes had the processors while most latencies were measured."""
        return self._store.measurements.is_busy(self._table.id.tolist())

    @cached_property
    def fp32_doubts(self) -> list[str]:
        """Why uniform FP32 on this target, against which losses are measured, is probably another function."""
        rows = np.flatnonzero((self._table.role == REFERENCE.role) & (self._table.status == OK))
        notes = self._store.evaluations.notes(int(self._table.id[rows[0]])) if len(rows) else ()
        return [note.removeprefix(UNLIKE_FLOAT) for note in notes if note.startswith(UNLIKE_FLOAT)]

    @cached_property
    def layer_names(self) -> Mapping[str, str]:
        """The name of the first layer of each group, by group id."""
        return {group.id: group.name for group in self._store.studies.groups(self._target.study_id)}

    def runs_int8(self, evaluation_id: int) -> bool:
        """Whether an evaluation runs some group in INT8."""
        return is_quantized(self.assignments[evaluation_id])

    def look_up(self, ids: Sequence[int]) -> None:
        """Read what a table tells of several evaluations at once."""
        for facts in (self.doubts, self.mismatches, self.final_levels):
            facts.look_up(ids)

    @cached_property
    def _targets(self) -> tuple[TargetRecord, ...]:
        return tuple(self._store.targets.of_study(self._target.study_id))

    def _mismatches(self, ids: Sequence[int]) -> dict[int, str]:
        rows = (self._table.not_obeyed > 0) & np.isin(self._table.id, ids)
        disobeyed: list[int] = self._table.id[rows].tolist()
        mismatches = self._store.engines.mismatches(disobeyed)
        return {number: mismatch_text(mismatches.get(number, ())) for number in disobeyed}


def mismatch_text(mismatches: Sequence[tuple[str, Precision]]) -> str:
    """Groups that did not run in the requested precision: `not in the requested precision: g012 ran in FP32`."""
    if not mismatches:
        return "not in the requested precision"
    group, got = mismatches[0]
    more = f" and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
    return f"not in the requested precision: {group} ran in {got.label.upper()}{more}"
