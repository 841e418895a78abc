"""Measuring latencies of engines that were built before."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from evaluators.diagnose.compare_run import refusals
from evaluators.engine import Session
from evaluators.process.job import discard
from evaluators.process.results import LatencyComparison
from evaluators.process.tasks.latency_meter import LatencyMeter
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.values import Assignment, Latency, LayerTime


class Timings:
    """Implements `TimingRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData, meter: LatencyMeter) -> None:
        self._opened = opened
        self._data = data
        self._meter = meter
        self._loaded: tuple[Path, Session] | None = None

    def time_again(self, assignment: Assignment, out: Path, reference_ms: float | None = None) -> Latency:
        try:
            with refusals("building and timing an engine again", "its builder refuses it, or it cannot be run here"):
                self._opened.build_audited(assignment, out)
                with closing(self._opened.builder.load(out)) as session:
                    return self._meter.measure(session, reference_ms)
        finally:
            discard(out)

    def load_engine(self, engine: Path) -> None:
        with self._opened.alone(), refusals(f"loading the engine {engine.name}"):
            session = self._opened.builder.load(engine)
            session.run(self._data.first_batch())
        self._loaded = (engine, session)

    def time_engine(self, engine: Path, reference_ms: float | None = None) -> Latency:
        loaded, self._loaded = self._loaded, None
        with refusals(f"timing the engine {engine.name}"):
            known = loaded is not None and loaded[0] == engine
            session = loaded[1] if loaded is not None and known else self._opened.builder.load(engine)
            with closing(session):
                return self._meter.measure(session, reference_ms)

    def time_together(
        self, engines: Mapping[str, Path], rounds: int, reference_ms: float | None = None
    ) -> Mapping[str, Latency]:
        with refusals("measuring engines in turn"), ExitStack() as stack:
            sessions = {name: stack.enter_context(closing(self._opened.builder.load(e))) for name, e in engines.items()}
            return self._meter.measure_finalists(sessions, rounds, reference_ms)

    def compare_latency(self, engine: Path, measured: Path, rounds: int) -> LatencyComparison:
        builder = self._opened.builder
        with (
            refusals("timing two engines in turn"),
            closing(builder.load(engine)) as session,
            closing(builder.load(measured)) as other,
        ):
            latencies = self._meter.measure_once({"engine": session, "measured": other}, rounds)
        one = latencies["engine"]
        return LatencyComparison(one.raw_ms, latencies["measured"].raw_ms, one.baseline_ms, _all_warnings(latencies))

    def profile(self, engine: Path, count: int) -> tuple[LayerTime, ...]:
        with self._opened.alone(), refusals(f"profiling {engine.name}"):
            return self._opened.builder.profile(engine, self._data.first_batch(), count)


def _all_warnings(latencies: Mapping[str, Latency]) -> list[str]:
    """What is doubtful in measurements that were made together; what all of them have is said once."""
    named_warnings = [(name, warning) for name, latency in latencies.items() for warning in latency.warnings]
    common = {
        warning for _, warning in named_warnings if all(warning in latency.warnings for latency in latencies.values())
    }
    return list(
        dict.fromkeys(warning if warning in common else f"{name}: {warning}" for name, warning in named_warnings)
    )
