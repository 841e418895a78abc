"""Repeated measurements of latencies, and the doubts about measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select, update

from evaluators.measure.latency_scale import baseline_doubt, is_busy
from search.values import Latency
from studies.store.columns import Columns
from studies.store.database import tables
from studies.store.database.retries import is_repeat, retry
from studies.store.database.transactions import Repository
from studies.store.reading.repeats import read_reference_ms, round_table, rounds_query
from studies.store.statements import results, table_rows


class Measurements(Repository):
    """Rounds of measurements, and what the baseline takes in them."""

    @retry
    def add_round(self, study_target_id: int, latencies: Mapping[int, Latency]) -> int:
        """Store measurements made again side by side, evaluation id → latency; the number of their round."""
        s, e = tables.SampleRecord, tables.EvaluationRecord
        with self._database.begin_write("store measurements") as connection:
            table_rows.lock(connection, tables.TargetRecord, study_target_id)
            of_target = e.study_target_id == study_target_id
            last = connection.scalar(select(func.max(s.round)).join(e, e.id == s.evaluation_id).where(of_target))
            if is_repeat() and last and results.is_round(connection, last, latencies):
                return int(last)
            number = max(last or 0, 0) + 1
            for evaluation_id, latency in latencies.items():
                results.insert_samples(connection, evaluation_id, number, latency)
            t = tables.TargetRecord
            connection.execute(update(t).where(t.id == study_target_id).values(revision=t.revision + 1))
            return number

    def rounds(self, study_target_id: int) -> Columns:
        """What was measured again on a target: all rounds but those of the search."""
        return round_table(self._database.rows(rounds_query(study_target_id)))

    def doubts(self, ids: Sequence[int], reference_ms: float | None) -> dict[int, tuple[str, ...]]:
        """Evaluation id → what is doubtful in the measurement that counts; those of which nothing is are absent.

        Args:
            reference_ms: what the baseline usually takes, which tells whether one beside a candidate ran as usual.
        """
        s, doubts = tables.SampleRecord, dict[int, tuple[str, ...]]()
        query = (
            select(s.evaluation_id, s.warnings, s.baseline_ms)
            .where(s.evaluation_id.in_(list(ids)), s.role == "candidate")
            .order_by(s.round)
        )
        for number, warnings, baseline_ms in self._database.rows(query):
            doubt = baseline_doubt(baseline_ms, reference_ms)
            texts = (*(warnings or ()), *([doubt] if doubt else []))
            if not texts or doubts.get(number) != ():  # a clean measurement yields to a later clean one alone
                doubts[number] = texts
        return {number: warnings for number, warnings in doubts.items() if warnings}

    def is_busy(self, ids: Sequence[int]) -> bool:
        """Whether most of these evaluations' inferences took clearly longer on the wall than processor time."""
        s = tables.SampleRecord
        query = select(s.raw_ms, s.wall_ms).where(
            s.evaluation_id.in_(list(ids)), s.raw_ms.is_not(None), s.wall_ms.is_not(None)
        )
        busy = [is_busy(raw_ms, wall_ms) for raw_ms, wall_ms in self._database.rows(query)]
        return 2 * sum(busy) > len(busy)

    @retry
    def reference_ms(self, study_target_id: int) -> float | None:
        """What the baseline usually takes on a target, from all clean measurements; None if it has no baseline."""
        with self._database.begin_read("read the baselines") as connection:
            return read_reference_ms(connection, study_target_id)
