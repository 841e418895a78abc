"""Fill the report from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from search.values import Answer, Assignment, flatten
from studies.records import FAILED, OK, EvaluationRecord
from studies.report import EvaluationRow, FailureRow, GroupRow, Metric, Mismatch, PickRow, ReportData
from studies.standing import Standing
from studies.store import Store
from studies.units import format_bytes, format_duration_s
from studies.words import holds, mix_text, nearest_text


def report_data(store: Store, now: Standing) -> ReportData:
    """Everything the report shows of one target's evaluations, judged by the standing's limits."""
    metric = now.study.metric
    assignments = store.assignments(now.target.id)
    groups = store.groups(now.study.id)
    audits = store.audits(now.target.id)
    names = {group.id: group.name for group in groups}
    trial_of = {int(number): int(trial) for number, trial in zip(now.table.id, now.table.trial, strict=True)}
    counts = Counter(row.answer for _, row in audits)
    return ReportData(
        study=now.study.name,
        target=_target_text(now),
        metric=Metric(metric["name"], metric["unit"], metric["ratio"], metric["higher_is_better"]),
        limits=now.limits,
        model=now.study.model_path,
        created=f"{now.study.created_at:%Y-%m-%d %H:%M} UTC",
        evaluations=[_evaluation(now, row, assignments[int(now.table.id[row])]) for row in range(len(now.table))],
        picks=_picks(now),
        groups=[GroupRow(group.id, group.name, group.op) for group in groups],
        precisions={
            int(now.table.trial[row]): [assignments[int(now.table.id[row])][group.id].label for group in groups]
            for row in now.front_rows()
        },
        mismatches=[
            Mismatch(
                trial_of[number],
                row.group,
                names[row.group],
                row.asked.label,
                row.got.label if row.got is not None else "",
                row.kernel,
            )
            for number, row in audits
            if row.answer is Answer.NOT_OBEYED
        ],
        audited=(counts[Answer.OBEYED], counts[Answer.NOT_OBEYED], counts[Answer.OPAQUE]),
        failures=_failures(store, now),
        hypervolume=_hypervolume(now),
        environment={key: _plain(value) for key, value in flatten(now.study.environment).items()},
        notes=_notes(now),
    )


def _target_text(now: Standing) -> str:
    target = now.target.target
    options = ", ".join(f"{key} {value}" for key, value in target.options.items())
    versions = ", ".join(f"{key} {value}" for key, value in target.versions.items())
    return f"{target.backend} on {target.device} ({versions}; {options}); latency is the {target.statistic}"


def _evaluation(now: Standing, row: int, assignment: Assignment) -> EvaluationRow:
    t = now.table
    complete = bool(t.samples[row] == t.total_samples[row])
    return EvaluationRow(
        trial=int(t.trial[row]),
        status=str(t.status[row]),
        latency_ms=float(now.latency_ms[row]),
        value=float(t.metric_value[row]),
        loss=float(t.loss[row]),
        loss_low=float(t.loss_low[row]),
        loss_high=float(t.loss_high[row]),
        role=str(t.role[row]),
        feasible=bool(now.feasible[row]),
        on_front=bool(now.front[row]),
        not_obeyed=max(0, int(t.not_obeyed[row])),
        opaque=max(0, int(t.opaque[row])),
        spread=float(t.spread[row]),
        label=mix_text(assignment),
        complete=complete,
        text=_detail(now, row),
    )


def _detail(now: Standing, row: int) -> str:
    t = now.table
    lines = []
    if t.build_s[row] == t.build_s[row]:
        lines.append(f"built in {format_duration_s(float(t.build_s[row]))}")
    if t.size_bytes[row] >= 0:
        lines.append(f"size {format_bytes(int(t.size_bytes[row]))}")
    if t.memory_bytes[row] >= 0:
        lines.append(f"memory {format_bytes(int(t.memory_bytes[row]))}")
    return "\n".join(lines)


def _picks(now: Standing) -> list[PickRow]:
    found = []
    for name in ("accurate", "fast", "knee"):
        row = getattr(now.picks, name)
        if row is not None:
            found.append(_pick(now, name, row))
    return found


def _pick(now: Standing, name: str, row: int) -> PickRow:
    final = now.final_of(row)
    scores: dict[str, Any] = {}
    if final is not None:
        f = now.finals
        scores = {
            "final_value": float(f.value[final]),
            "final_loss": float(f.loss[final]),
            "final_low": float(f.loss_low[final]),
            "final_high": float(f.loss_high[final]),
            "holds": holds(now, row),
        }
    return PickRow(
        name=name,
        trial=int(now.table.trial[row]),
        latency_ms=float(now.latency_ms[row]),
        search_loss=float(now.table.loss[row]),
        speedup=now.speedup(row),
        opaque=max(0, int(now.table.opaque[row])),
        **scores,
    )


def _failures(store: Store, now: Standing) -> list[FailureRow]:
    rows = []
    for row in range(len(now.table)):
        if now.table.status[row] != FAILED:
            continue
        record: EvaluationRecord = store.load(int(now.table.id[row]))
        failure = record.evaluation.failure
        if failure is not None:
            rows.append(FailureRow(int(now.table.trial[row]), failure.stage.value, failure.kind.value, failure.message))
    return rows


def _hypervolume(now: Standing) -> list[tuple[int, float]]:
    volumes = now.hypervolumes()
    return [(int(now.table.trial[row]), float(volumes[row])) for row in range(len(now.table)) if _done(now, row)]


def _done(now: Standing, row: int) -> bool:
    return str(now.table.status[row]) in (OK, FAILED)


def _notes(now: Standing) -> Sequence[str]:
    notes = []
    if now.target.latency_band is not None:
        notes.append(f"Latencies within {now.target.latency_band:.1%} of each other count as a tie.")
    if now.picks.accurate is None:
        notes.append("No evaluation keeps the limits. " + "; ".join(nearest_text(now, near) for near in now.nearest()))
    return notes


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
