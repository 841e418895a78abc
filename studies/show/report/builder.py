"""Reading the content of the report from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from search.values import RECOVERED_FIRST, REFERENCE, THREAD_CLOCK, Answer, AuditRow, EngineSummary, flatten
from studies.judging.findings.loss_resolution import coarse_text, find_resolutions, resolution_text
from studies.judging.findings.optimization_levels import level_texts
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.judging.findings.study_rescue import study_rescue, study_rescue_notes
from studies.judging.points import Point
from studies.judging.rounding import latency_text
from studies.judging.sentences.cautions import pick_warnings, unrelated_text
from studies.judging.sentences.evaluations import flip_texts, replaced_text
from studies.judging.sentences.final_split import final_notes, final_shown_text
from studies.judging.sentences.gains import (
    as_given_text,
    int8_everywhere_text,
    no_gain_text,
    other_runtime_text,
    slower_texts,
)
from studies.judging.sentences.no_pick import nearest_text, nobody_text, nothing_text, regained_text
from studies.judging.sentences.picks import band_text, best_label, best_text, faster_text, ties_text
from studies.judging.standing import Standing, best_point, front_points, pick_points
from studies.judging.status.early_end import early_end
from studies.judging.status.time_table import time_rows, time_table, times_text
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.quantities import format_ms, format_percent
from studies.show.report.layers import layer_reasons
from studies.show.report.rows import (
    FailureRow,
    LayerReason,
    Mismatch,
    PickRow,
    ReportData,
    ReportMetric,
    build_deployment,
)
from studies.show.report.story import build_story
from studies.show.report.target_figures import side_by_side
from studies.store.records import FAILED, OK, GroupRecord, StoredEvaluation
from studies.store.store import Store
from studies.trials import forecasts


def build_report(store: Store, now: Standing, others: Sequence[Standing] = ()) -> ReportData:
    """Everything the report shows of one target's evaluations, judged by the standing's limits.

    Args:
        others: other targets of the study, to lay beside it.
    """
    times = time_table(store, now.target.id)
    now.details.assignments.look_up(now.table.id.tolist())
    groups = store.studies.groups(now.study.id)
    names = {group.id: group.name for group in groups}
    trial_of = {int(number): int(trial) for number, trial in zip(now.table.id, now.table.trial, strict=True)}
    # What was built again for an export belongs to no trial.
    audits = [(number, row) for number, row in store.engines.audits(now.target.id) if number in trial_of]
    counts = Counter(row.answer for _, row in audits)
    shown = {point: store.evaluations.load(point.id) for point in front_points(now)}
    points, unbuildable = now.points(range(len(now.table))), store.spaces.unbuildable(now.target.id)
    diagnosis, coarsest = _diagnosis(store, now, groups), _coarsest(now)
    slower = _slower_sentence(now, coarsest)
    records = {point.trial: record for point, record in shown.items()}
    if coarsest is not None and coarsest.trial not in records:
        records[coarsest.trial] = store.evaluations.load(coarsest.id)
    return ReportData(
        study=now.study.name,
        target=_target_text(now),
        metric=ReportMetric.of(now.study.metric),
        limits=now.limits,
        model=Path(now.study.model_path).name,
        created=f"{now.study.created_at:%Y-%m-%d %H:%M} UTC",
        samples=now.study.samples_text,
        evaluations=points,
        remarks={point.trial: [*_remarks(now, point), *_notes_of(record)] for point, record in shown.items()},
        moves={point.trial: _moves_text(record.evaluation.engine) for point, record in shown.items()},
        picks=[_pick(store, now, name, point) for name, point in pick_points(now).items()],
        groups=groups,
        precisions={trial: _precisions(record, groups) for trial, record in records.items()},
        opaque={point.trial: _opaque(record) for point, record in shown.items()},
        unbuildable=[(group, names[group], precision.label) for group, precision in sorted(unbuildable)],
        mismatches=[_mismatch(trial_of[at], row, names[row.group]) for at, row in audits if _is_disobeyed(row)],
        audited=(counts[Answer.OBEYED], counts[Answer.NOT_OBEYED], counts[Answer.OPAQUE]),
        failures=_failures(store, now),
        hypervolume=_hypervolume(now),
        forecasts=forecasts.compare_forecasts(store, now),
        environment=_flatten_environment(now),
        notes=_notes(store, now),
        beside=side_by_side(store, [now, *others]) if others else None,
        diagnosis=diagnosis,
        story=build_story(now),
        ended_early=early_end(now),
        warnings=_warnings(store, now),
        reasons=_reasons(store, now, diagnosis, pays=not slower),
        slower=slower,
        deployment=None if now.picks.best is None else build_deployment(now, store.url, shared=store.is_shared),
        rescue=study_rescue(now),
        rescue_notes=[f"{_sentence(text)}." for text in study_rescue_notes(now)],
        time_spent=time_rows(times),
        time_text=times_text(times),
        seconds=dict(sorted(times.seconds.items(), key=lambda item: -item[1])),
    )


def _coarsest(now: Standing) -> Point | None:
    """The uniform baseline that stands for low precision, of those that a trial built beside FP32."""
    rows = [now.measures.row_of(precision.role) for precision in RECOVERED_FIRST if precision is not REFERENCE]
    built = (row for row in rows if row is not None and now.table.status[row] == OK and now.table.trial[row] >= 0)
    row = next(built, None)
    return None if row is None else now.point(row)


def _precisions(record: StoredEvaluation, groups: Sequence[GroupRecord]) -> list[str]:
    """The precision of every group, in the order of the graph."""
    return [record.evaluation.assignment[group.id].label for group in groups]


def _reasons(store: Store, now: Standing, diagnosis: Sensitivities | None, *, pays: bool) -> list[LayerReason]:
    """Why layers of the recommended mix stayed in a higher precision; empty if nothing is recommended."""
    best = best_point(now)
    if best is None:
        return []
    groups, choices = store.studies.groups(now.study.id), store.spaces.choices(now.target.id)
    return layer_reasons(now.details.assignments[best.id], groups, choices, diagnosis, pays=pays)


def _slower_sentence(now: Standing, coarsest: Point | None) -> str:
    """That this baseline is not faster than FP32 by more than the tie band; empty where it is, or one is missing."""
    base = now.measures.row_of(REFERENCE.role)
    if coarsest is None or base is None or coarsest.speedup is None or coarsest.speedup > 1 + now.target.band:
        return ""
    both = " in place of ".join(latency_text(float(now.measures.latency_ms[row])) for row in (coarsest.row, base))
    return f"All in {coarsest.baseline.upper()}, the network is not measurably faster than in FP32 here ({both})."


def _diagnosis(store: Store, now: Standing, groups: Sequence[GroupRecord]) -> Sensitivities | None:
    rows = store.spaces.sensitivity_rows(now.target.id)
    if not rows:
        return None
    by_id = {group.id: group for group in groups}
    return Sensitivities(now.study.name, rows, by_id, Thresholds(), recovery=now.target.recovery)


def _target_text(now: Standing) -> str:
    """Where it was measured and what counts as latency; versions and options are told with the environment."""
    target = now.target.target
    version = target.versions.get(target.backend, "")
    named = now.details.target_name or f"{target.backend} {version}".rstrip() + f" on {target.device}"
    percent = target.statistic.removeprefix("p")
    statistic = f"{percent}th percentile of many runs" if percent.isdigit() else target.statistic
    if target.clock == THREAD_CLOCK:
        statistic = f"{statistic} processor time of the thread that runs it"
    return f"{named}; latency is the {statistic}"


def _flatten_environment(now: Standing) -> dict[str, str]:
    """Versions and options of the target, and the machine that the study was made on."""
    target = now.target.target
    known = {"target": {**target.versions, **target.options}, **now.study.environment}
    return {key: _plain(value) for key, value in flatten(known).items()}


def _moves_text(engine: EngineSummary | None) -> str:
    if engine is None:
        return ""
    text = f"{engine.moves} of {engine.layers} layers"
    if engine.moves_ms is None or not engine.profiled_ms:
        return text
    return f"{text}, {format_ms(engine.moves_ms)} ({format_percent(engine.moves_ms / engine.profiled_ms)})"


def _remarks(now: Standing, point: Point) -> Iterator[str]:
    """What an evaluation that is shown and not on the front is there for, and whether it is broken."""
    if not point.on_front:
        yield f"picked: {', '.join(point.picks)}; not on the front"
    if point.mismatch:
        yield point.mismatch
    if text := unrelated_text(now, point):
        yield text


def _notes_of(record: StoredEvaluation) -> list[str]:
    """Doubts about the measurement that counts, the latest, and notes."""
    warnings = record.rounds[-1].latency.warnings if record.rounds else ()
    return [*warnings, *record.evaluation.notes]


def _opaque(record: StoredEvaluation) -> frozenset[str]:
    return frozenset(row.group for row in record.evaluation.audit if row.answer is Answer.OPAQUE)


def _is_disobeyed(row: AuditRow) -> bool:
    return row.answer is Answer.NOT_OBEYED


def _mismatch(trial: int, row: AuditRow, name: str) -> Mismatch:
    got = row.got.label if row.got is not None else ""
    return Mismatch(trial, row.group, name, row.asked.label, got, row.kernel)


def _pick(store: Store, now: Standing, name: str, point: Point) -> PickRow:
    stored = store.evaluations.load(point.id).final
    flips = flip_texts(stored.flips) if stored is not None and stored.flips is not None else ()
    return PickRow(name, point, final_shown_text(now, point), ties_text(now, point, name), flips)


def _failures(store: Store, now: Standing) -> list[FailureRow]:
    rows = []
    for row in range(len(now.table)):
        if now.final.unscorable[row]:
            point = now.point(row)
            rows.append(FailureRow(point.trial, "final", "non_finite", point.final.failure))
        if now.table.status[row] != FAILED:
            continue
        record: StoredEvaluation = store.evaluations.load(int(now.table.id[row]))
        failure = record.evaluation.failure
        if failure is not None:
            rows.append(FailureRow(int(now.table.trial[row]), failure.stage.value, failure.kind.value, failure.message))
    return rows


def _hypervolume(now: Standing) -> list[tuple[int, float]]:
    volumes = now.measures.hypervolumes()
    return [(int(now.table.trial[row]), float(volumes[row])) for row in range(len(now.table)) if _done(now, row)]


def _done(now: Standing, row: int) -> bool:
    """Whether a row is finished and has a place on the axis: what no trial shows, say a refused proposal, has none."""
    return str(now.table.status[row]) in (OK, FAILED) and now.table.trial[row] >= 0


def _warnings(store: Store, now: Standing) -> list[str]:
    """What is to be known before all else: that something is broken, or that there is nothing to pick, and why."""
    coarse = coarse_text(find_resolutions(now), now)
    texts = [f"WARNING: {_sentence(text)}" for text in (*pick_warnings(now), coarse) if text]
    texts += [_sentence(text) for text in final_notes(now)]
    if now.picks.best is None:
        near, nothing = [nearest_text(now, near) for near in now.judgement.nearest()], nothing_text(now)
        texts.append(f"{_sentence(nobody_text(now))}. " + ("; ".join(near) or _sentence(nothing)))
    texts += [
        as_given_text(now),
        int8_everywhere_text(now),
        _sentence(faster_text(now)),
        no_gain_text(now),
        other_runtime_text(now),
        _sentence(regained_text(now)),
    ]
    return [f"{text.rstrip('. ')}." for text in texts if text]


def _notes(store: Store, now: Standing) -> list[str]:
    """What else the study says of itself, one sentence each."""
    resolutions = find_resolutions(now)
    texts = list(now.study.metric.get("notes", ()))
    texts += [resolution_text(resolutions, now)] if resolutions else []
    texts += [band_text(now)] if len(now.table) else []
    texts += [*level_texts(now.target), *slower_texts(store, now)]
    texts += [f"{best_label(now)}: {best_text(now)}"] if now.picks.best is not None else []
    texts.append(replaced_text(store.statistics.deaths(now.target.id)))
    return [f"{_sentence(text)}." for text in texts if text]


def _sentence(text: str) -> str:
    """With a capital first, and without its full stop."""
    return text[:1].upper() + text[1:].removesuffix(".")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
