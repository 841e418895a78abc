"""Evaluating one given mix beside uniform FP32, with bisection on request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from evaluators.process.connection import ProcessDiedError
from evaluators.process.job import StopLimits as EarlyLimits
from evaluators.process.keeper import EvaluatorProcess
from search.errors import ConfigError, EvaluatorError
from search.space.choices import Space, make_space
from search.values import REFERENCE, Accuracy, Assignment, Evaluation, FailureKind, Latency, Precision
from studies.events import Events
from studies.inspect.mix.bisection import Bisection, BisectionStep, bisect, kinds_of, most_trials
from studies.inspect.mix.read_mix import read_mix
from studies.inspect.mix.report import EngineResult, LossExplanation, MixReport
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.judging.search_events import SearchEvents
from studies.options.config import SearchConfig
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.limits import Limits, MetricScale
from studies.run.guidance import sensitivities
from studies.run.session.calibration import calibrate_recovered
from studies.run.session.setup import Checked, adopt_ranges, check_inputs

_ROUNDS = 20  # in which engines are timed in turn


@dataclass(frozen=True)
class MixRequest:
    """What is asked of a mix.

    Attributes:
        assign: the mix, as `read_mix` takes it.
        keep_sensitive: keep groups in float that are sensitive in what the mix gives them.
        bisect: find the groups that explain the loss.
    """

    assign: str
    keep_sensitive: bool = False
    bisect: bool = False


def evaluate_mix(config: SearchConfig, request: MixRequest, thresholds: Thresholds, events: SearchEvents) -> MixReport:
    """Build and measure a mix beside FP32, and say what each of its groups adds to the error.

    Raises:
        InputError: the model, the data, the mix, a rule or the target cannot be used.
        EvaluatorError: the FP32 baseline cannot be built, or the evaluator process dies.
    """
    if "timing-cache" not in config.given:
        config = config.with_values({"timing_cache": "none"})  # it would lie beside a study's database
    with check_inputs(config, events=events) as good:
        _check(good, request)
        ranges, record = calibrate_recovered(good, events)
        adopt_ranges(good.keeper, good.folder, ranges)
        space = make_space(good.model, good.capability, ranges, config.keep)
        return replace(_MixRun(good, space, thresholds, events).run(request), recovery=record)


def _check(good: Checked, request: MixRequest) -> None:
    """Refuse what can be refused before anything is calibrated; what ranges forbid is found later.

    Raises:
        ConfigError: the mix cannot be read, or by the metric any rounding is a loss and bisection is not told how much
            of it counts.
    """
    read_mix(request.assign, good.model.groups, make_space(good.model, good.capability, None, good.config.keep))
    metric = MetricScale.of(good.metric)
    if request.bisect and metric.relative and not metric.ratio and not good.limits.bound_accuracy:
        raise ConfigError(
            f"--bisect with the metric {metric.name}: every precision below FP32 loses in this metric. Define what "
            "counts as no loss with --accuracy-limit, for example --accuracy-limit 30dB with sqnr."
        )


class _MixRun:
    """One run over inputs that were found good and calibrated."""

    def __init__(self, good: Checked, space: Space, thresholds: Thresholds, events: SearchEvents) -> None:
        self._good = good
        self._space = space
        self._thresholds = thresholds
        self._events = events
        self._metric = MetricScale.of(good.metric)
        self._limits = good.limits
        self._engines = MeasuredEngines(good.keeper, good.folder, events)

    def run(self, request: MixRequest) -> MixReport:
        good, space = self._good, self._space
        target_mix = read_mix(request.assign, good.model.groups, space)
        errors = sensitivities.of_checked(good, space, self._thresholds, self._events)
        kept = keep_sensitive(target_mix.assignment, errors, space) if request.keep_sensitive else {}
        mix = target_mix.assignment.replace(kept)
        self._engines.measure("fp32", space.uniform(REFERENCE))
        self._resolve_limits()
        self._engines.measure("mix", mix)
        bisection = self._bisect(mix, errors) if request.bisect and self._engines.runs("mix") else None
        if bisection is not None and bisection.smallest is not None:
            self._engines.measure(
                "explained",
                mix.replace({group: choose_float(group, mix[group], self._space) for group in bisection.smallest.kept}),
            )
        measured = self._engines.score_final()
        return MixReport(
            model=good.config.model,
            target=good.target,
            metric=self._metric,
            limits=self._limits,
            groups=good.model.groups,
            fp32=measured["fp32"],
            mix=measured["mix"],
            kept=tuple(kept),
            sensitivities=errors,
            explanation=None
            if bisection is None
            else self._confirm(bisection, measured.get("explained"), measured["fp32"]),
            notes=(*target_mix.notes, *good.metric["notes"]),
        )

    def _resolve_limits(self) -> None:
        """Make percentages of FP32's value what they allow, and say so.

        Raises:
            ConfigError: that value is 0.
        """
        fp32 = self._engines.evaluation("fp32").accuracy
        self._limits = self._good.limits.with_fp32(math.nan if fp32 is None else fp32.value)
        if text := self._limits.share_text(self._metric):
            self._events.note(text)

    # -- bisection -------------------------------------------------------------------------------------------------

    def _bisect(self, mix: Assignment, errors: Sensitivities) -> Bisection:
        floats = {group: choose_float(group, mix[group], self._space) for group in mix}
        lowered = [group for group in self._good.model.groups if floats[group.id] is not mix[group.id]]
        kinds, ids = kinds_of(lowered), [group.id for group in lowered]
        most, count = most_trials(len(lowered), len(kinds)), 0

        def attempt(name: str, kept: tuple[str, ...]) -> BisectionStep:
            nonlocal count
            count += 1
            self._events.step("bisecting the loss", count, most)
            allowed = self._allowed_loss(self._engines.evaluation("fp32").accuracy)
            try:
                line = self._good.keeper.ask("scoring a mix without an engine")
                score = line.diagnoses.score_emulated(
                    mix.replace({group: floats[group] for group in kept}), 0.0 if allowed is None else allowed
                )
            except ProcessDiedError as death:
                raise EvaluatorError(
                    f"bisecting the loss: {death}. Take a smaller --batch, or leave --bisect out."
                ) from death
            undone = score.accuracy is not None and is_undone(score.accuracy, allowed)
            return BisectionStep(name, kept, score.accuracy, score.failure, undone)

        return bisect(ids, rank_groups(ids, mix, errors), kinds, attempt)

    def _confirm(self, bisection: Bisection, engine: EngineResult | None, fp32: EngineResult) -> LossExplanation:
        """What bisection showed, with the engine that it leads to, whose loss on the final split took no part in it."""
        final = None if engine is None else engine.final
        return LossExplanation(
            bisection, engine, final is not None and is_undone(final, self._allowed_loss(fp32.final))
        )

    def _allowed_loss(self, fp32: Accuracy | None) -> float | None:
        return allowed_loss(self._limits, self._metric, fp32)


def allowed_loss(limits: Limits, metric: MetricScale, fp32: Accuracy | None) -> float | None:
    """What loss the limits allow beside FP32 on the same samples; None if there are none.

    Of a bound on the metric itself FP32 on other samples would allow another loss.
    """
    value = None if fp32 is None else fp32.value
    return min(limits.allowed_losses(value, metric.higher_is_better), default=None)


def is_undone(accuracy: Accuracy, allowed: float | None) -> bool:
    """Whether a loss is within what is allowed; where nothing is said of that, whether it may be chance."""
    if not accuracy.complete:
        return False
    return accuracy.loss_low <= 0 if allowed is None else accuracy.loss <= allowed


def choose_float(group: str, precision: Precision, space: Space) -> Precision:
    """The coarsest precision without a scale that a group is offered, if it is finer than another; else that other."""
    offered = [choice.precision for choice in space.choices[group] if choice.offered and not choice.precision.quantized]
    return max((p for p in offered if p < precision), default=precision)


def rank_groups(groups: Sequence[str], mix: Assignment, errors: Sensitivities) -> list[str]:
    """Groups by the error that each alone adds in what a mix gives it, the largest first."""
    known = {(row.group, row.precision): math.inf if row.error is None else row.error for row in errors.rows}
    return sorted(groups, key=lambda group: -known.get((group, mix[group]), 0.0))


def keep_sensitive(mix: Assignment, errors: Sensitivities, space: Space) -> dict[str, Precision]:
    """Groups that are sensitive in what a mix gives them → the coarsest float precision in which they are not.

    FP32 where they are sensitive in each.
    """
    sensitive = {(row.group, row.precision) for row in errors.rows if errors.reasons(row)}
    kept = {}
    for group, precision in mix.items():
        finer = precision
        while (group, finer) in sensitive and (better := choose_float(group, finer, space)) is not finer:
            finer = better
        if finer is not precision:
            kept[group] = finer
    return kept


class MeasuredEngines:
    """Engines of one run, each built and measured once, and at the end all of them side by side."""

    def __init__(self, keeper: EvaluatorProcess, folder: Path, events: Events) -> None:
        self._keeper = keeper
        self._folder = folder
        self._events = events
        self._evaluations: dict[str, Evaluation] = {}

    def measure(self, label: str, assignment: Assignment) -> None:
        """Build, time and score an assignment; its own failure is stored as its result.

        Raises:
            EvaluatorError: it is the FP32 baseline that fails.
        """
        self._events.note(f"building and measuring {_NAMES.get(label, 'all ' + label)}")
        limits = EarlyLimits(reference_ms=self._reference_ms())
        evaluation = self._keeper.evaluate(assignment, self._path(label), limits)
        if label == "fp32" and evaluation.failure is not None:
            raise EvaluatorError(
                f"measuring the FP32 baseline: it failed at {evaluation.failure.stage.value}: "
                f"{evaluation.failure.message}"
            )
        self._evaluations[label] = evaluation

    def evaluation(self, label: str) -> Evaluation:
        return self._evaluations[label]

    def runs(self, label: str) -> bool:
        """Whether an engine was built, though its outputs may not be finite."""
        failure = self._evaluations[label].failure
        return failure is None or failure.kind is FailureKind.NON_FINITE

    def score_final(self) -> Mapping[str, EngineResult]:
        """Every engine timed in turn with the others and scored on the final split.

        Raises:
            EvaluatorError: the evaluator process dies over it.
        """
        engines = {label: self._path(label) for label, evaluation in self._evaluations.items() if evaluation.ok}
        self._events.note(f"measuring {len(engines)} engines side by side and scoring them on the final split")
        line = self._keeper.ask("measuring the engines", partial(self._events.step, "engines"))
        try:
            final = line.scores.score_finalists(engines, _ROUNDS, self._reference_ms())
        except ProcessDiedError as death:
            raise EvaluatorError(f"measuring the engines side by side: {death}") from death
        fp32 = final.latency["fp32"]
        return {
            label: EngineResult(
                evaluation,
                final.latency.get(label),
                final.accuracy.get(label),
                final.failed.get(label, ""),
                _speedup(final.latency.get(label), fp32),
            )
            for label, evaluation in self._evaluations.items()
        }

    def _path(self, label: str) -> Path:
        return self._folder / f"{label}.engine"

    def _reference_ms(self) -> float | None:
        """What the baseline takes, by which latencies become milliseconds on relative targets."""
        fp32 = self._evaluations.get("fp32")
        return None if fp32 is None or fp32.latency is None else fp32.latency.raw_ms


_NAMES = {
    "fp32": "uniform FP32",
    "mix": "the mix",
    "explained": "the mix with the layers that explain the loss in float",
}


def _speedup(latency: Latency | None, fp32: Latency) -> float | None:
    return None if latency is None else fp32.value_ms / latency.value_ms
