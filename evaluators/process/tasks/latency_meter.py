"""Measuring latencies of loaded engines, with exclusive use of the device where that matters."""

from __future__ import annotations

from collections.abc import Mapping

from evaluators.engine import Session
from evaluators.measure import latency
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.values import Latency


class LatencyMeter:
    """Measures with what the target needs: the statistic, the spread that counts as doubtful, and the baseline."""

    def __init__(self, opened: OpenModel, data: OpenData, baseline: FloatBaseline) -> None:
        self._opened = opened
        self._data = data
        self._baseline = baseline

    def measure(self, session: Session, reference_ms: float | None, tries: int = 2) -> Latency:
        """Measure one engine, in turn with the baseline on relative targets.

        Args:
            reference_ms: what the baseline usually takes, on relative targets.
            tries: measurements at most where they are doubtful.
        """
        opened = self._opened
        inputs = self._data.first_batch()
        session.bind(inputs)
        session.run(inputs)
        baseline = self._baseline_beside()
        with opened.alone():
            return latency.measure(
                session,
                statistic=opened.target.statistic,
                clock=opened.target.clock,
                baseline=baseline,
                reference_ms=reference_ms,
                spread_limit=self._spread_limit,
                state=opened.backend.device_state,
                tries=tries,
            )

    def measure_finalists(
        self, sessions: Mapping[str, Session], rounds: int, reference_ms: float | None
    ) -> dict[str, Latency]:
        """Measure several engines in turn with each other and the baseline; again where that is doubtful.

        Args:
            sessions: any label → engine.
            rounds: how often each is visited; twice that where it is repeated.
            reference_ms: what the baseline usually takes, on relative targets.
        """
        return self._in_turn(sessions, rounds, self._baseline.session, reference_ms, again=True)

    def measure_once(self, sessions: Mapping[str, Session], rounds: int) -> dict[str, Latency]:
        """Measure several engines in turn with each other and, on relative targets, the baseline."""
        return self._in_turn(sessions, rounds, self._baseline_beside(), None, again=False)

    def _in_turn(
        self,
        sessions: Mapping[str, Session],
        rounds: int,
        baseline: Session | None,
        reference_ms: float | None,
        *,
        again: bool,
    ) -> dict[str, Latency]:
        opened, inputs = self._opened, self._data.first_batch()
        for session in (*sessions.values(), *([baseline] if baseline is not None else [])):
            session.bind(inputs)
            session.run(inputs)
        with opened.alone():
            return latency.measure_together(
                sessions,
                rounds,
                statistic=opened.target.statistic,
                clock=opened.target.clock,
                baseline=baseline,
                relative=opened.target.relative,
                reference_ms=reference_ms,
                spread_limit=self._spread_limit,
                state=opened.backend.device_state,
                again=again,
                alive=opened.tell_alive,
            )

    def _baseline_beside(self) -> Session | None:
        """What engines are timed beside: on relative targets the baseline, on others nothing."""
        return self._baseline.session if self._opened.target.relative else None

    @property
    def _spread_limit(self) -> float:
        return latency.CPU_SPREAD_LIMIT if self._opened.target.relative else latency.GPU_SPREAD_LIMIT
