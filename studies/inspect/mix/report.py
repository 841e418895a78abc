"""The result of evaluating a given mix: as JSON, as tables and as sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluators.measure.latency_scale import BUSY, is_busy
from search.graph.model import Group
from search.values import Accuracy, Answer, Evaluation, Failure, Latency, RecoveryRecord, Target
from studies.inspect.mix.bisection import Bisection, BisectionStep
from studies.judging.findings.rescue_table import rescue_cells, rescue_notes, rescue_rows
from studies.judging.findings.sensitivity_table import Sensitivities, text_of
from studies.judging.points import UNRELATED_BELOW
from studies.judging.rounding import bounded_text, estimate_text, score_name, score_verb, worst_text
from studies.judging.sentences.cautions import caution_text, format_resemblance
from studies.judging.sentences.evaluations import failure_text, mix_text
from studies.options.limits import Limits, MetricScale
from studies.options.quantities import format_ms

_ENGINE_COLUMNS = ("engine", "latency", "× fp32", "metric", "loss", "final_loss", "audit")
_RELATIVE_COLUMNS = (
    "engine",
    "latency",
    "× fp32",
    "metric",
    "final",
    "audit",
)  # its value says all
GROUP_COLUMNS = ("group", "node", "op", "asked", "got", "answer", "error", "flipped", "sqnr_db", "verdict")
_ACCURACY = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
_MOST_NAMED = 10
_ERRORS = ("error", "flipped", "sqnr_db", "sensitive", "reasons", "causes")


@dataclass(frozen=True)
class EngineResult:
    """One assignment, built and measured.

    Attributes:
        evaluation: as it was built, timed and scored on the search split.
        latency: in turn with the other engines; None if there is no engine.
        final: on the final split; None if it was not scored there.
        final_failure: why not; empty if it was, or where there is no engine.
        speedup: against uniform FP32.
    """

    evaluation: Evaluation
    latency: Latency | None
    final: Accuracy | None
    final_failure: str
    speedup: float | None

    def to_json(self) -> dict[str, Any]:
        evaluation = self.evaluation
        return {
            "mix": mix_text(evaluation.assignment),
            "assignment": evaluation.assignment.to_json(),
            "failure": _failure_json(evaluation.failure),
            "latency_ms": None if self.latency is None else self.latency.value_ms,
            "speedup": self.speedup,
            "latency_warnings": [] if self.latency is None else list(self.latency.warnings),
            "search": _accuracy_json(evaluation.accuracy),
            "final": _accuracy_json(self.final),
            "final_failure": self.final_failure or None,
            "size_bytes": evaluation.size_bytes,
            "memory_bytes": evaluation.memory_bytes,
            "build_s": evaluation.build_s,
            "audit": {answer.value: count for answer, count in self.answers().items()},
            "notes": list(evaluation.notes),
        }

    def answers(self) -> dict[Answer, int]:
        """How many groups the audit gives each answer."""
        return dict(Counter(row.answer for row in self.evaluation.audit))

    @property
    def is_unrelated(self) -> bool:
        """Whether its outputs have nothing in common with FP32's."""
        scores = (self.evaluation.accuracy, self.final)
        return any(a is not None and a.resemblance is not None and a.resemblance < UNRELATED_BELOW for a in scores)


@dataclass(frozen=True)
class LossExplanation:
    """What explains the loss of a mix, and the engine that confirms it.

    Attributes:
        engine: the mix with what explains its loss in float; None if nothing does.
        confirmed: whether the loss of that engine is gone on the final split.
    """

    bisection: Bisection
    engine: EngineResult | None
    confirmed: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "lossless": self.bisection.lossless,
            "evaluations": len(self.bisection.trials),
            "tried": [_trial_json(trial) for trial in self.bisection.trials],
            "explained_by": _kept_json(self.bisection.smallest),
            "smallest_kind": _kept_json(self.bisection.kind),
            "smallest_stretch": _kept_json(self.bisection.stretch),
            "engine": None if self.engine is None else self.engine.to_json(),
            "confirmed": self.confirmed,
        }


@dataclass(frozen=True)
class MixReport:
    """What is known of one mix of a model on a target.

    Attributes:
        model: path of its file.
        groups: in the order of the graph.
        fp32, mix: both engines.
        kept: ids of the groups that are in float because they are sensitive, and not as the mix says.
        sensitivities: of all groups alone.
        explanation: None if it was not asked for, or the mix has no engine.
        notes: what is noteworthy, one sentence each.
        recovery: what was tried to make INT8 lose less; None if nothing was to be tried.
    """

    model: str
    target: Target
    metric: MetricScale
    limits: Limits
    groups: tuple[Group, ...]
    fp32: EngineResult
    mix: EngineResult
    kept: tuple[str, ...]
    sensitivities: Sensitivities
    explanation: LossExplanation | None
    notes: tuple[str, ...]
    recovery: RecoveryRecord | None = None

    @property
    def failure(self) -> Failure | None:
        """Why the mix could not be built or measured."""
        return self.mix.evaluation.failure

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "target": self.target.to_json(),
            "metric": {"name": self.metric.name, "unit": self.metric.unit, "ratio": self.metric.ratio},
            "limits": self.limits.to_json(),
            "fp32": self.fp32.to_json(),
            "mix": self.mix.to_json(),
            "groups": self.group_rows(),
            "kept_sensitive": list(self.kept),
            "recovery": None if self.recovery is None else self.recovery.to_json(),
            "bisection": None if self.explanation is None else self.explanation.to_json(),
            "warnings": list(self.warnings()),
            "notes": list(self.notes),
        }

    # -- groups ----------------------------------------------------------------------------------------------------

    def group_rows(self) -> list[dict[str, Any]]:
        """Asked and got of every group, with what it alone adds to the error; the largest error first."""
        audit = {row.group: row for row in self.mix.evaluation.audit}
        errors = {(row.group, row.precision): self.sensitivities.row(row) for row in self.sensitivities.rows}
        rows = []
        for group in self.groups:
            precision, seen = self.mix.evaluation.assignment[group.id], audit.get(group.id)
            error = errors.get((group.id, precision), {})
            rows.append(
                {
                    "group": group.id,
                    "node": group.name,
                    "op": group.op,
                    "asked": precision.label,
                    "got": None if seen is None or seen.got is None else seen.got.label,
                    "answer": None if seen is None else seen.answer.value,
                    "kernel": None if seen is None else seen.kernel,
                    **{name: error.get(name) for name in _ERRORS},
                    "measured_alone": bool(error.get("samples")),
                }
            )
        return sorted(rows, key=lambda row: -(row["error"] or 0.0))

    def group_texts(self) -> list[dict[str, Any]]:
        """`group_rows` for people."""
        errors = {(row.group, row.precision.label): row for row in self.sensitivities.rows}
        texts = []
        for row in self.group_rows():
            known = errors.get((row["group"], row["asked"]))
            cells = dict.fromkeys(GROUP_COLUMNS, "") if known is None else text_of(self.sensitivities.row(known))
            texts.append({**cells, **{name: row[name] for name in GROUP_COLUMNS[:6]}})
        return texts

    # -- engines ---------------------------------------------------------------------------------------------------

    @property
    def engine_columns(self) -> tuple[str, ...]:
        """The columns of `engine_texts`; a metric that compares with FP32 is shown as it is, without a loss."""
        return _RELATIVE_COLUMNS if self.metric.relative else _ENGINE_COLUMNS

    def engine_texts(self) -> list[dict[str, str]]:
        """A row per engine, for people."""
        engines = {"fp32": self.fp32, mix_text(self.mix.evaluation.assignment): self.mix}
        if self.explanation is not None and self.explanation.engine is not None:
            engines["the layers that explain the loss in float"] = self.explanation.engine
        return [self._engine_text(name, engine) for name, engine in engines.items()]

    def rescue_cells(self) -> list[tuple[str, ...]]:
        """The rescue table below `rescue_header`; empty if no recovery was tried."""
        return [] if self.recovery is None else rescue_cells(rescue_rows(self.recovery), self.metric, self.limits)

    def _engine_text(self, name: str, engine: EngineResult) -> dict[str, str]:
        accuracy, failure = engine.evaluation.accuracy, engine.evaluation.failure
        answers = (f"{count} {answer.value}" for answer, count in engine.answers().items())
        return {
            "engine": name,
            "latency": "" if engine.latency is None else format_ms(engine.latency.value_ms),
            "× fp32": "" if engine.speedup is None else f"{engine.speedup:.2f}",
            **self._scores(accuracy, "fails" if engine.final_failure else self._final_text(engine.final)),
            "audit": failure_text(failure.stage.value, failure.kind.value) if failure else ", ".join(answers),
        }

    def _scores(self, accuracy: Accuracy | None, final: str) -> dict[str, str]:
        """The cells of the metric, of its loss where that is shown, and of the final split, by column."""
        if self.metric.relative:
            return {"metric": self._score_text(accuracy), "final": final}
        value = "" if accuracy is None else self.metric.text(accuracy.value)
        return {"metric": value, "loss": self._score_text(accuracy), "final_loss": final}

    def _score_text(self, accuracy: Accuracy | None) -> str:
        """A loss with half of its interval; of a metric that compares with FP32 its value with that."""
        if accuracy is None:
            return ""
        middle = accuracy.value if self.metric.relative else accuracy.loss
        half = (accuracy.loss_high - accuracy.loss_low) / 2
        early = "" if accuracy.complete else " (stopped early)"
        return f"{estimate_text(middle, middle - half, middle + half, self.metric)}{early}"

    def _final_text(self, accuracy: Accuracy | None) -> str:
        """A loss on the final split, or the value that stands for it, with the bound that limits are judged by."""
        if accuracy is None:
            return ""
        if self.metric.relative:
            return bounded_text(accuracy.value, next(iter(accuracy.value_bounds), None), self.metric)
        return bounded_text(accuracy.loss, _bound_of(accuracy), self.metric)

    # -- sentences -------------------------------------------------------------------------------------------------

    def headline(self) -> str:
        mix = mix_text(self.mix.evaluation.assignment)
        return f"{self.model} on {self.target.backend} ({self.target.device}): {mix}"

    def verdicts(self) -> Iterator[str]:
        """What follows, one sentence each: failures, limits, what was kept, what explains the loss."""
        if self.failure is not None:
            yield f"the mix {failure_text(self.failure.stage.value, self.failure.kind.value)}: {self.failure.message}"
        if self.mix.final_failure:
            yield f"the mix fails on the final split: {self.mix.final_failure}"
        yield from self._limit_texts()
        if self.kept:
            yield f"kept in float because they are sensitive: {', '.join(self._names(self.kept))}"
        if self.explanation is not None:
            yield from self._bisection_texts(self.explanation)
        notes = [] if self.recovery is None else rescue_notes(self.recovery, self.metric, self.limits)
        yield from (f"recovery: {note}" for note in notes)
        yield from (f"note: {note}" for note in self.notes)

    def warnings(self) -> Iterator[str]:
        """What must not be missed."""
        if text := caution_text(self.target):
            yield text
        latencies = (engine.latency for engine in (self.fp32, self.mix))
        if any(latency is not None and is_busy(latency.raw_ms, latency.wall_ms) for latency in latencies):
            yield BUSY
        if self.mix.is_unrelated:
            accuracy = self.mix.final or self.mix.evaluation.accuracy
            likeness = format_resemblance(accuracy.resemblance or 0.0) if accuracy is not None else "–"
            yield (
                f"the mix is probably broken: its outputs have nothing in common with FP32's (correlation {likeness}; "
                f"1 is equal, below {UNRELATED_BELOW} is unrelated), whatever the metric {self.metric.name} says."
            )

    def _limit_texts(self) -> Iterator[str]:
        accuracy = self.mix.final or self.mix.evaluation.accuracy
        known = replace(self.mix.evaluation, accuracy=accuracy)
        for limit, bound in self.limits.rows():
            value = limit.measure(known)
            if value is not None:
                sign, worst = limit.sign(self.metric.higher_is_better), value
                measured, word = limit.format(value, self.metric), "missed"
                if limit.bounds_accuracy and accuracy is not None:
                    bounds = accuracy.loss_bounds if limit.difference else accuracy.value_bounds
                    worst = next(iter(bounds), sign * math.inf)
                    measured += f", {worst_text(value, worst, self.metric)}" if math.isfinite(worst) else ""
                if sign * (value - bound) <= 0:
                    word = "kept" if sign * (worst - bound) <= 0 else "likely kept, not with 95 % certainty"
                yield f"{limit.text(bound, self.metric)}: {word}, it is {measured}"

    def trial_texts(self) -> list[dict[str, Any]]:
        """A row per mix that bisection tried, for people."""
        return [
            {
                "kept_in_float": trial.name,
                "groups": len(trial.kept),
                score_name(self.metric): trial.failure or self._score_text(trial.accuracy),
                "undone": "yes" if trial.undone else "no",
            }
            for trial in (self.explanation.bisection.trials if self.explanation is not None else ())
        ]

    def _bisection_texts(self, explanation: LossExplanation) -> Iterator[str]:
        bisection, engine = explanation.bisection, explanation.engine
        count = f"{len(bisection.trials)} mixes were tried, without building engines"
        if bisection.lossless:
            score = self._score_text(bisection.trials[0].accuracy)
            does = score_verb(self.metric)
            yield f"there is no loss to explain: in emulation the mix {does} {score}, which may be chance"
        elif bisection.smallest is None or engine is None:
            yield f"no groups explain the loss: it remains even if all of them run in float; {count}"
        else:
            names = ", ".join(self._names(bisection.smallest.kept))
            many = f"{len(bisection.smallest.kept)} of {len(self.groups)} groups explain"
            yield f"{many} the loss ({bisection.smallest.name}): {names}; {count}"
            others = {"ops of one kind": bisection.kind, "a stretch": bisection.stretch}
            for sort, trial in others.items():
                if trial is not None and trial.kept != bisection.smallest.kept:
                    yield f"chosen as {sort}, {len(trial.kept)} groups are needed: {trial.name}"
            yield self._confirmation_text(engine, confirmed=explanation.confirmed)

    def _confirmation_text(self, engine: EngineResult, *, confirmed: bool) -> str:
        """What the engine with the found groups in float says."""
        if engine.final is not None:
            said = "confirmed" if confirmed else "NOT CONFIRMED"
            does, score = score_verb(self.metric), self._final_text(engine.final)
            return f"{said} by an engine with these groups in float, which {does} {score} on the final split"
        failure = engine.evaluation.failure
        why = engine.final_failure if failure is None else failure.message
        return f"NOT CONFIRMED: the engine with these groups in float fails: {why}"

    def _names(self, ids: tuple[str, ...]) -> list[str]:
        names = {group.id: group.name for group in self.groups}
        shown = [f"{group} ({names[group]})" for group in ids[:_MOST_NAMED]]
        return shown + ["…"] * (len(ids) > _MOST_NAMED)


def _failure_json(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    named = {"stage": failure.stage.value, "kind": failure.kind.value}
    return {**named, "message": failure.message, "log": failure.log, "group": failure.group}


def _accuracy_json(accuracy: Accuracy | None) -> dict[str, Any] | None:
    if accuracy is None:
        return None
    return {name: getattr(accuracy, name) for name in _ACCURACY} | {"loss_bound": _bound_of(accuracy)}


def _bound_of(accuracy: Accuracy) -> float | None:
    """What the loss of the only candidate is at most; None where there are too few samples for a bound."""
    return next(iter(accuracy.loss_bounds), None)


def _kept_json(trial: BisectionStep | None) -> list[str] | None:
    return None if trial is None else list(trial.kept)


def _trial_json(trial: BisectionStep) -> dict[str, Any]:
    fields: Mapping[str, Any] = {"kept_in_float": trial.name, "groups": list(trial.kept), "undone": trial.undone}
    return {**fields, "accuracy": _accuracy_json(trial.accuracy), "failure": trial.failure or None}
