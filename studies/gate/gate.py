"""Running a gate: scoring and timing both engines in fresh processes on the same data, and judging them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, permutations
from pathlib import Path

import numpy as np

from evaluators.held_folders import held_folder
from evaluators.metrics.registry import get_metric
from evaluators.process.connection import ProcessDiedError, ProcessLimits
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.results import EngineScores
from search.errors import ConfigError, EvaluatorError
from search.values import Target
from studies.events import Events
from studies.gate.check import GateCheck, GateLimits, check_limits, divide_level
from studies.gate.latency import ProcessTimes, judge_latency
from studies.gate.loss import PairedScores, fail_loss, judge_loss
from studies.gate.report import GateReport
from studies.gate.side import Side
from studies.options.config import SearchConfig
from studies.options.limits import MAX_DROP, Limits, MetricScale
from studies.options.quantities import Amount
from studies.options.resolve_limits import resolve_limits
from studies.run.session.backend_values import backend_options, check_backend_options, device_of

ROUNDS = 40  # in which the engines of one process take turns
CANDIDATE, BASELINE, COPY, REFERENCE = "candidate", "baseline", "copy", "reference"


@dataclass(frozen=True)
class GateInputs:
    """What a gate compares, and how.

    Attributes:
        candidate, baseline: the two engines.
        reference: engine file that metrics which compare outputs compare with; None for the baseline.
        config: data, metric, backend, device, threads and batch; its model counts for nothing.
        limits: what the candidate may be worse by.
    """

    candidate: Side
    baseline: Side
    reference: Path | None
    config: SearchConfig
    limits: GateLimits


def run_gate(inputs: GateInputs, events: Events) -> GateReport:
    """Score and time both engines, and say whether the candidate keeps the limits.

    Raises:
        InputError: an engine, the data, the metric or a limit cannot be used, or a side is of another target.
        EvaluatorError: the evaluator process dies.
    """
    check_limits(inputs.limits)
    candidate, baseline = inputs.candidate, inputs.baseline
    named = inputs.config.threads if "threads" in inputs.config.given else None
    config = inputs.config.with_values(
        {
            "backend": common_backend(candidate, baseline, inputs.config.backend),
            "threads": threads_of(candidate, baseline, named),
            "timing_cache": "none",
        }
    )
    check_backend_options(config)
    limits = ProcessLimits(config.evaluation_timeout_s, config.evaluation_memory_bytes)
    with held_folder() as folder:
        job = _job(replace(inputs, config=config), folder)
        with EvaluatorProcess(job, folder / "log", limits) as keeper:
            here = keeper.description.target
            for side in (candidate, baseline):
                check_target(side, here)
            _check_drop(inputs)
            return _Gate(inputs, keeper, here, events).run()


class _Gate:
    """One run of a gate on engines that are of this target."""

    def __init__(self, inputs: GateInputs, keeper: EvaluatorProcess, target: Target, events: Events) -> None:
        self._inputs = inputs
        self._keeper = keeper
        self._target = target
        self._events = events
        self._level = divide_level(inputs.limits.checks)

    def run(self) -> GateReport:
        limits = self._inputs.limits
        checks: list[GateCheck] = []
        notes: list[str] = []
        doubts: list[str] = []
        metric: MetricScale | None = None
        values: dict[str, float] = {}
        data = ""
        if limits.max_drop is not None:
            scores = self._score()
            metric, data = _scale_of(scores), scores.data
            values = dict(scores.values)
            notes += scores.metric.notes
            allowed = _resolve_drop(self._inputs, limits.max_drop, metric).with_fp32(values[BASELINE])
            notes += filter(None, [allowed.share_text(metric, "the baseline's")])
            checks.append(self._judge_loss(scores, metric, allowed[MAX_DROP.name]))
        if limits.max_slowdown is not None:
            times, doubts = self._time()
            if doubts:
                notes.append(_doubts_text(doubts, len(times)))
            band = max(self._inputs.candidate.band, self._inputs.baseline.band)
            checks.append(judge_latency(times, limits.max_slowdown, self._level, band))
        return GateReport(
            candidate=self._inputs.candidate,
            baseline=self._inputs.baseline,
            target=self._target,
            metric=metric,
            values=values,
            data=data,
            checks=tuple(checks),
            notes=tuple(notes),
            doubts=tuple(doubts),
        )

    # -- loss ------------------------------------------------------------------------------------------------------

    def _score(self) -> EngineScores:
        self._events.note("scoring both engines on the data")
        labels = [CANDIDATE, BASELINE] + ([REFERENCE] if self._inputs.reference is not None else [])
        try:
            return self._keeper.ask("scoring the engines").engine_files.score(labels)
        except ProcessDiedError as death:
            raise EvaluatorError(f"scoring the engines: {death}") from death

    def _judge_loss(self, scores: EngineScores, metric: MetricScale, limit: float) -> GateCheck:
        if CANDIDATE in scores.failed:
            return fail_loss(limit, self._level, f"the candidate cannot be scored: {scores.failed[CANDIDATE]}")
        gathers = scores.metric.kind == "accumulating"
        sign = 1.0 if metric.higher_is_better else -1.0
        paired = PairedScores(
            candidate=scores.scores[CANDIDATE],
            baseline=scores.scores[BASELINE],
            ratio=metric.ratio,
            higher_is_better=metric.higher_is_better,
            clusters=scores.clusters,
            counts=np.asarray(scores.counts, dtype=np.int64) if gathers else None,
            whole_drop=sign * (scores.values[BASELINE] - scores.values[CANDIDATE]) if gathers else None,
        )
        return judge_loss(paired, limit, self._level, metric.text)

    # -- latency ---------------------------------------------------------------------------------------------------

    def _time(self) -> tuple[list[ProcessTimes], list[str]]:
        """Times of each process, and what was doubtful in them."""
        times: list[ProcessTimes] = []
        doubts: list[str] = []
        total = self._inputs.limits.processes
        for number, order in enumerate(_orders(total), start=1):
            self._events.step("timing the engines in turn, in fresh processes", number, total)
            self._keeper.close()
            try:
                timings = self._keeper.ask("timing the engines").engine_files.time(order, ROUNDS)
            except ProcessDiedError as death:
                raise EvaluatorError(f"timing the engines: {death}") from death
            times.append(ProcessTimes(*(timings[label].raw_ms for label in (CANDIDATE, BASELINE, COPY))))
            doubts += [f"process {number}: {label}: {text}" for label in order for text in timings[label].warnings]
        return times, doubts


def _check_drop(inputs: GateInputs) -> None:
    """Refuse a limit that does not fit the metric before anything is scored, where the metric is known by its name.

    Raises:
        ConfigError: the limit does not fit the metric, as `_resolve_drop` says it, or there is no such metric.
    """
    max_drop, name = inputs.limits.max_drop, inputs.config.metric
    if max_drop is None or name is None:
        return
    metric = get_metric(name, inputs.config.decode)
    if not metric.undeclared:  # of others the scores tell whether they are shares
        scale = MetricScale(name, metric.unit, metric.ratio, metric.higher_is_better, metric.needs_reference)
        _resolve_drop(inputs, max_drop, scale)


def _resolve_drop(inputs: GateInputs, max_drop: float | Amount, metric: MetricScale) -> Limits:
    """The limit in the unit of the metric, or as a percentage of the baseline's value.

    Raises:
        ConfigError: it means nothing for this metric, or the metric has nothing to compare the baseline with.
    """
    if metric.relative and not metric.ratio and inputs.reference is None:
        raise ConfigError(
            f"--max-drop with the metric {metric.name}: this metric measures how far outputs are from those of a "
            "float model, and no float model is given. Give --reference with an engine of the float model."
        )
    # The baseline is no float model, so the candidate may be better or worse by any amount.
    return resolve_limits({MAX_DROP.name: max_drop}, replace(metric, relative=False), 1)


def _doubts_text(doubts: Sequence[str], processes: int) -> str:
    doubtful = len({doubt.partition(":")[0] for doubt in doubts})
    return f"latencies are doubtful in {doubtful} of {processes} processes, {doubts[0]}; --json lists all doubts"


def _orders(count: int) -> Sequence[tuple[str, ...]]:
    """In which order the engines are loaded and run in each process: in six of them every order comes once."""
    return list(islice(cycle(permutations((CANDIDATE, BASELINE, COPY))), count))


def _scale_of(scores: EngineScores) -> MetricScale:
    metric = scores.metric
    return MetricScale(metric.name, metric.unit, metric.ratio, metric.higher_is_better, metric.relative)


def _job(inputs: GateInputs, folder: Path) -> Job:
    config, baseline = inputs.config, str(inputs.baseline.engine)
    files = {CANDIDATE: str(inputs.candidate.engine), BASELINE: baseline, COPY: baseline}
    if inputs.reference is not None:
        files[REFERENCE] = str(inputs.reference)
    return Job(
        model="",
        data=config.data,
        folder=str(folder / "evaluator"),
        batch=config.batch,
        backend=config.backend,
        device=device_of(config),
        options=backend_options(config),
        metric=config.metric,
        decode=config.decode,
        preprocess=config.preprocess,
        max_samples=config.max_samples,
        engine_files=files,
    )


def common_backend(candidate: Side, baseline: Side, named: str) -> str:
    """The backend of both sides.

    Args:
        named: the backend on the command line; `auto` for that of the sides.

    Raises:
        ConfigError: the sides are of different backends, or of another than the one on the command line.
    """
    backends = {candidate.backend, baseline.backend} | ({named} - {"auto"})
    if len(backends) > 1:
        option_text = f", and --backend {named}" if named != "auto" else ""
        raise ConfigError(
            f"gating {candidate.name} against {baseline.name}: expected engines of one backend, got "
            f"{candidate.backend} and {baseline.backend}{option_text}. Compare engines of one target."
        )
    return candidate.backend


def threads_of(candidate: Side, baseline: Side, named: int | None) -> int:
    """Processor threads of one inference: as named, else those of the target of a side, else one."""
    if named is not None:
        return named
    known = [side.target.options.get("threads") for side in (baseline, candidate) if side.target is not None]
    return next((int(threads) for threads in known if threads is not None), 1)


def check_target(side: Side, here: Target) -> None:
    """Refuse an engine that was made for another target than the one that it is to be measured on.

    Options of a builder, which the engine has behind it, may differ; threads may not.

    Raises:
        ConfigError: naming what differs.
    """
    if side.target is None:
        return
    differences = [text for text in side.target.differences(here) if _matters(text)]
    if differences:
        raise ConfigError(
            f"gating: {side.name} belongs to another target than this host: {'; '.join(differences)} here. Run the "
            "gate "
            f"where it was made, or export it here. To compare it here nevertheless, give its file: {side.engine}."
        )


def _matters(difference: str) -> bool:
    key = difference.partition(":")[0]
    return key in ("backend", "device", "options.threads") or key.startswith("versions.")
