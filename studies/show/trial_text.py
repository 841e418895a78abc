"""One evaluation as JSON, as sentences and as a table of its groups, as `bitfront show` prints it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evaluators.measure.latency_scale import BUSY, is_busy, share_text
from search.forecast.forecasts import Predicted
from search.forecast.quality import NINETY
from search.values import Accuracy, Answer, EngineSummary, Evaluation, Failure, Latency, LayerTime
from studies.judging.details import mismatch_text
from studies.judging.findings.optimization_levels import final_level_text, final_levels_json
from studies.judging.findings.rescue_table import mix_bias_text
from studies.judging.judged_target import FinalScore
from studies.judging.rounding import bounded_text, half_width, latency_text, scores_text, value_text
from studies.judging.sentences.cautions import format_resemblance, unrelated_text
from studies.judging.sentences.evaluations import death_text, failure_text, flip_texts, mix_text
from studies.judging.standing import Standing
from studies.options.limits import MetricScale
from studies.options.quantities import format_bytes, format_elapsed_s, format_metric
from studies.store.records import FinalLevel, GroupRecord, StoredEvaluation, StudyRecord

_LEAST_SPREAD = 0.01  # latencies that vary less are shown with the digits of this
_COLUMNS = ("group", "node", "op", "asked", "got", "answer", "kernel")
# Of what the engine tells of a group, what a table has room for; the rest is in the JSON.
_DETAILS = ("weights", "formats", "sparse", "beside")
_LAYOUTS = (  # how TensorRT 8.6 to 10.x word a tensor's type and layout
    (re.compile(r"Row major (?:linear )?(\S+)(?: format)?"), ""),
    (re.compile(r"(?P<wide>\S+) wide channel vectorized row major (\S+)(?: format)?"), " CHW"),
    (re.compile(r"Channel major (\S+) format where channel % (?P<wide>\d+) == 0"), " HWC"),
)
_NUMBERS = {"Two": "2", "Four": "4", "Eight": "8", "Sixteen": "16", "Thirty-two": "32"}


# -- JSON --------------------------------------------------------------------------------------------------------------


def trial_json(shown: TrialDetails) -> dict[str, Any]:
    """The whole answer of `bitfront show --json`."""
    record, evaluation, study = shown.record, shown.record.evaluation, shown.standing.study
    return {
        "trial": record.trial,
        "trials": list(record.trials),
        "status": record.status,
        "role": record.role,
        "digest": record.digest,
        "attempts": evaluation.attempts,
        "replaced": [_failure_json(death) for death in evaluation.deaths],
        "failure": None if evaluation.failure is None else _failure_json(evaluation.failure),
        "latency": None if evaluation.latency is None else _latency_json(evaluation.latency),
        "accuracy": _accuracy_json(evaluation.accuracy, study.clusters("search")),
        "final": _final_json(shown),
        "final_failure": record.final_failure or None,
        "mix_bias": None if record.mix_bias is None else record.mix_bias.to_json(),
        "warnings": [text] if (text := _warn_of_outputs(shown)) else [],
        "not_as_asked": _not_as_asked(shown) or None,
        "rounds": [{"round": again.number, **_latency_json(again.latency)} for again in record.rounds],
        **final_levels_json(shown.final_levels),
        "size_bytes": evaluation.size_bytes,
        "memory_bytes": evaluation.memory_bytes,
        "build_s": evaluation.build_s,
        "total_s": evaluation.total_s,
        "stage_s": dict(evaluation.stage_s),
        "engine": None if evaluation.engine is None else asdict(evaluation.engine),
        "profile": [asdict(layer) for layer in shown.profile],
        "forecast": None if shown.forecast is None else shown.forecast.to_json(),
        "groups": group_rows(shown),
        "notes": list(evaluation.notes),
    }


def _failure_json(failure: Failure) -> dict[str, Any]:
    return {
        "stage": failure.stage.value,
        "kind": failure.kind.value,
        "message": failure.message,
        "log": failure.log,
    }


def _latency_json(latency: Latency) -> dict[str, Any]:
    return {
        "value_ms": latency.value_ms,
        "raw_ms": latency.raw_ms,
        "baseline_ms": latency.baseline_ms,
        "spread": latency.spread,
        "wall_ms": latency.wall_ms,
        "samples": len(latency.samples_ms),
        "warnings": list(latency.warnings),
        "around_ms": dict(latency.around_ms),
        "conditions": dict(latency.conditions),
    }


def _accuracy_json(accuracy: Accuracy | None, clusters: int | None) -> dict[str, Any] | None:
    if accuracy is None:
        return None
    names = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
    flips = None if accuracy.flips is None else accuracy.flips.to_json()
    return {name: getattr(accuracy, name) for name in names} | {"flips": flips, "clusters": clusters}


def _final_json(shown: TrialDetails) -> dict[str, Any] | None:
    """With the bound that the loss is judged by; None where there are too few samples for one."""
    known, final = _accuracy_json(shown.record.final, shown.standing.study.clusters("final")), _final_of(shown)
    return None if known is None else {**known, "loss_bound": None if final is None else final.bound}


def group_rows(shown: TrialDetails) -> list[dict[str, Any]]:
    """Asked and got per group, and how it runs; of a failed build only what was asked."""
    audit = {row.group: row for row in shown.record.evaluation.audit}
    rows = []
    for group in shown.groups.values():
        row = audit.get(group.id)
        rows.append(
            {
                "group": group.id,
                "node": group.name,
                "op": group.op,
                "asked": shown.record.evaluation.assignment[group.id].label,
                "got": row.got.label if row is not None and row.got is not None else None,
                "answer": row.answer.value if row is not None else None,
                "kernel": row.kernel if row is not None else None,
                "details": dict(row.details) if row is not None else {},
            }
        )
    return rows


# -- the table of groups -----------------------------------------------------------------------------------------------


def group_table(shown: TrialDetails) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows for people; of the details those columns in which there is something."""
    rows = [{**row, **_details(row["details"])} for row in group_rows(shown)]
    return [*_COLUMNS, *(name for name in _DETAILS if any(row[name] for row in rows))], rows


def _details(details: Mapping[str, str]) -> dict[str, str]:
    inputs, outputs = (short_formats(details.get(name, "")) for name in ("inputs", "outputs"))
    return {
        "weights": details.get("weights", ""),
        "formats": f"{inputs} → {outputs}" if inputs or outputs else "",
        "sparse": details.get("sparse", "").replace("no", ""),
        "beside": details.get("beside", ""),
    }


def short_formats(text: str) -> str:
    """Types and layouts of tensors, apart by `; `, in few letters: `int8 CHW32; fp16`. Unknown words stay as they are.

    `CHW32` is 32 channels wide, `HWC8` channels last in eights, as in TensorRT's `TensorFormat`; none is row major.
    """
    return "; ".join(_short_format(part) for part in text.split("; "))


def _short_format(text: str) -> str:
    for pattern, layout in _LAYOUTS:
        match = pattern.fullmatch(text)
        if match:
            wide = match.groupdict().get("wide", "")
            kind = next(part for part in match.groups() if part != wide)
            return f"{kind.lower()}{layout}{_NUMBERS.get(wide, wide)}"
    return text


# -- sentences ---------------------------------------------------------------------------------------------------------


def trial_lines(shown: TrialDetails, *, details: bool = True) -> list[str]:
    """One evaluation in sentences, above the table of its groups.

    Args:
        details: what was forecast and how many groups the audit found obeyed, too.
    """
    record, evaluation, metric = shown.record, shown.record.evaluation, shown.standing.metric
    lines = [f"trial {record.trial}: {mix_text(evaluation.assignment)}, {record.status}"]
    if len(record.trials) > 1:
        lines.append(f"proposed again as trials {', '.join(map(str, record.trials[1:]))}")
    lines += [f"{death_text(death)}; {_again(evaluation, place)}" for place, death in enumerate(evaluation.deaths)]
    if evaluation.failure is not None:
        lines += _failure_lines(evaluation.failure)
    if details and shown.forecast is not None:
        lines.append(_forecast_line(shown.forecast, metric))
    lines += _latency_lines(record)
    lines += [f"exported {final_level_text(each)}" for each in shown.final_levels]
    for name, accuracy in (("search", evaluation.accuracy), ("final", record.final)):
        if accuracy is not None:
            judged = _judged_text(shown) if name == "final" else ""
            lines.append(_accuracy_line(name, accuracy, shown.standing.study, judged))
            lines += flip_texts(accuracy.flips) if accuracy.flips is not None else []
    if text := _warn_of_outputs(shown):
        lines.insert(1, f"WARNING: {text}")
    if text := _not_as_asked(shown):
        lines.insert(1, f"{text}, so it is no pick")
    if record.final_failure:
        lines.append(f"final: fails, so it is no pick: {record.final_failure}")
    if record.mix_bias is not None:
        lines.append(mix_bias_text(record.mix_bias, metric))
    lines.append(", ".join(_facts(evaluation, details=details)))
    if evaluation.engine is not None:
        lines.append(f"made of {engine_text(evaluation.engine)}")
    return [*lines, *(f"note: {note}" for note in evaluation.notes)]


def _again(evaluation: Evaluation, place: int) -> str:
    """What followed the death of the evaluator process at a place among `deaths`."""
    return "tried again in a fresh process" if place + 1 < evaluation.attempts else "not tried again"


def _failure_lines(failure: Failure) -> list[str]:
    head = f"{failure_text(failure.stage.value, failure.kind.value)}: {failure.message}"
    return [head, *(f"  | {line}" for line in failure.log.splitlines()[-20:])]


def _latency_lines(record: StoredEvaluation) -> Iterator[str]:
    latency = record.evaluation.latency
    if latency is None:
        return
    band = max(latency.spread, _LEAST_SPREAD)
    compared, timed = latency_text(latency.value_ms, band), latency_text(latency.raw_ms, band)
    scaled = f", {timed} as timed" if latency.baseline_ms is not None and timed != compared else ""
    yield f"latency {compared}{scaled}; spread {share_text(latency.spread)} over {len(latency.samples_ms)} samples"
    yield from _surroundings(latency)
    for again in record.rounds:
        if again.number > 0:
            yield f"measured again: {latency_text(again.latency.value_ms)} (round {again.number})"
            yield from _surroundings(again.latency)


def _forecast_line(forecast: Predicted, metric: MetricScale) -> str:
    """What was predicted, each with half of its 90 % interval."""
    latency = f"{latency_text(forecast.ms)} ± {format_metric(NINETY * forecast.ms_std, 'ms', False, 2)}"
    loss, half = metric.text(forecast.loss, 3), metric.text(NINETY * forecast.loss_std, 2)
    return f"forecast: {latency}, loss {loss} ± {half}"


def _surroundings(latency: Latency) -> Iterator[str]:
    if latency.wall_ms is not None and is_busy(latency.raw_ms, latency.wall_ms):
        yield f"  {BUSY}: on the wall clock an inference took {latency_text(latency.wall_ms)}"
    yield from (f"  warning: {warning}" for warning in latency.warnings)
    if latency.around_ms:
        times = (f"{name.replace('_', ' ')} {latency_text(ms)}" for name, ms in latency.around_ms.items())
        yield f"  not in it: {', '.join(times)}"
    if latency.conditions:
        yield f"  device: {conditions_text(latency.conditions)}"


def conditions_text(conditions: Mapping[str, Any]) -> str:
    """State of the device before and after: `SM 1980 → 1830 MHz, 41 → 44 °C, slowed down by power brake`."""
    before, after = conditions.get("before", {}), conditions.get("after", {})
    units = {
        "sm_clock_mhz": ("SM ", " MHz"),
        "memory_clock_mhz": ("memory ", " MHz"),
        "temperature_c": ("", " °C"),
        "power_w": ("", " W"),
    }
    parts = []
    for key, (name, unit) in units.items():
        values = dict.fromkeys(f"{state[key]:.0f}" for state in (before, after) if key in state)
        parts += [f"{name}{' → '.join(values)}{unit}"] if values else []
    if conditions.get("throttled"):
        parts.append(f"slowed down by {', '.join(conditions['throttled'])}")
    if openings_ms := conditions.get("openings_ms"):
        parts.append(f"opened {len(openings_ms)} times: {', '.join(f'{ms:.4g}' for ms in openings_ms)} ms")
    others = max((state.get("other_processes", 0) for state in (before, after)), default=0)
    return ", ".join([*parts, *([f"other processes: {others}"] if others else [])])


def _judged_text(shown: TrialDetails) -> str:
    """The score on the final split with the bound that it is judged by; empty where it is not judged, as yet."""
    final = _final_of(shown)
    if final is None or not final.scored:
        return ""
    metric = shown.standing.metric
    value_and_bound = (final.value, final.value_bound) if metric.relative else (final.loss, final.bound)
    return bounded_text(*value_and_bound, metric)


def _final_of(shown: TrialDetails) -> FinalScore | None:
    rows = np.flatnonzero(shown.standing.table.id == shown.record.id)
    return shown.standing.final_score(int(rows[0])) if len(rows) else None


def _accuracy_line(name: str, accuracy: Accuracy, study: StudyRecord, judged: str = "") -> str:
    metric, clusters = MetricScale.of(study.metric), study.clusters(name)
    scores = scores_text(accuracy.value, accuracy.loss, accuracy.loss_low, accuracy.loss_high, metric)
    if judged and metric.relative:
        scores = f"{metric.name} {judged}"
    elif judged:
        half = half_width(accuracy.loss_low, accuracy.loss_high)
        scores = f"{metric.name} {value_text(accuracy.value, half, metric)}, loss {judged}"
    early = "" if accuracy.complete else " (stopped early)"
    likeness = "–" if accuracy.resemblance is None else format_resemblance(accuracy.resemblance)
    samples = f"{accuracy.samples} of {accuracy.total} samples{'' if clusters is None else f' ({clusters} clusters)'}"
    return f"{name}: {scores} on {samples}{early}; correlation with FP32's outputs {likeness}"


def _warn_of_outputs(shown: TrialDetails) -> str:
    """What is wrong with its outputs as a whole; empty if nothing is known to be."""
    now = shown.standing
    return "".join(unrelated_text(now, now.point(int(row))) for row in np.flatnonzero(now.table.id == shown.record.id))


def _not_as_asked(shown: TrialDetails) -> str:
    """Which groups did not run in the requested precision; empty if all did."""
    rows = [row for row in shown.record.evaluation.audit if row.answer is Answer.NOT_OBEYED]
    return mismatch_text([(row.group, row.got) for row in rows if row.got is not None]) if rows else ""


def _facts(evaluation: Evaluation, *, details: bool) -> Iterator[str]:
    for name, size in (("engine", evaluation.size_bytes), ("memory", evaluation.memory_bytes)):
        if size is not None:
            yield f"{name} {format_bytes(size)}"
    for name, value in (("built in", evaluation.build_s), ("took", evaluation.total_s)):
        if value is not None:
            yield f"{name} {format_elapsed_s(value)}"
    answers = Counter(row.answer for row in evaluation.audit)
    shown = [answer for answer in Answer if details or answer is not Answer.OBEYED]
    yield from (f"{n} group{'s' * (n != 1)} {answer.value}" for answer in shown if (n := answers[answer]))


def engine_text(engine: EngineSummary) -> str:
    """`42 layers, 5 of them moves that take 0.02 ms of 0.4 ms (5 %)`, then opaque regions and sparse layers."""
    parts = [f"{engine.layers} layers, {moves_text(engine)}"]
    parts += [f"{engine.opaque} opaque region{'s' * (engine.opaque > 1)}"] if engine.opaque else []
    parts += [f"{engine.sparse} layer{'s' * (engine.sparse > 1)} on sparse weights"] if engine.sparse else []
    threads = engine.build_threads
    parts += [f"built on {threads} thread{'s' * (threads > 1)}"] if threads else []
    parts += [f"at optimization level {engine.optimization_level}"] if engine.optimization_level is not None else []
    return ", ".join(parts)


def moves_text(engine: EngineSummary) -> str:
    """How many layers only change format or type, or copy, and what they take where that was timed."""
    text = f"{engine.moves} of them moves"
    if engine.moves_ms is None or not engine.profiled_ms:
        return text
    share = 100 * engine.moves_ms / engine.profiled_ms
    took = latency_text(engine.moves_ms, missing="0 ms")
    return f"{text} that take {took} of {latency_text(engine.profiled_ms)} ({share:.0f} %)"


@dataclass(frozen=True)
class TrialDetails:
    """One evaluation with what is needed to name its groups.

    Attributes:
        forecast: what was predicted of it; None if nothing was.
        final_levels: the newest exports of it at other optimization levels.
    """

    record: StoredEvaluation
    groups: Mapping[str, GroupRecord]
    standing: Standing
    profile: tuple[LayerTime, ...] = ()
    forecast: Predicted | None = None
    final_levels: tuple[FinalLevel, ...] = ()
