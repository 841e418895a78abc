"""The rescue table of a study on a target, with its best mix as the last row."""

from __future__ import annotations

import numpy as np

from studies.judging.findings.rescue_table import RescuedPick, RescueRow, mix_bias_text, rescue_notes, rescue_rows
from studies.judging.points import Point
from studies.judging.rounding import half_width, score_verb, shown_score, shown_score_text, value_text
from studies.judging.standing import Standing, best_point


def study_rescue(now: Standing) -> list[RescueRow]:
    """What INT8 lost and won back, and the best mix where it runs something in INT8.

    Empty if nothing was tried on the target, or nothing came of it: no step was kept and no INT8 was measured.
    """
    record, best, int8_ms = now.target.recovery, _best_with_int8(now), _int8_ms(now)
    if record is None or not record.steps:
        return []
    if not record.kept_steps and best is None and int8_ms is None:
        return []
    return rescue_rows(record, None if best is None else _mix(now, best), recovered_ms=int8_ms)


def study_rescue_notes(now: Standing) -> list[str]:
    """What goes with the table, one sentence each."""
    record = now.target.recovery
    if record is None:
        return []
    notes = rescue_notes(record, now.metric, now.limits, now.study.data.get("final"))
    if _best_with_int8(now) is not None and record.steps:
        notes.append(
            "the last row is that of the engine on all final samples; its interval accounts for all candidates that "
            "were tried"
        )
    return [*notes, *emulation_gap_notes(now), *_mix_bias_notes(now)]


def emulation_gap_notes(now: Standing) -> list[str]:
    """Where the engine in all INT8 loses another amount than its emulation in the table, by more than chance."""
    record, row = now.target.recovery, _int8_row(now)
    if record is None or row is None:
        return []
    emulated, engine = record.kept_steps[-1].final if record.kept_steps else record.plain, now.point(row)
    if emulated is None or engine.loss is None:
        return []
    half = half_width(engine.loss_low, engine.loss_high)
    if not abs(engine.loss - emulated.loss) > np.hypot(half, half_width(emulated.low, emulated.high)):
        return []
    lost, score = shown_score_text(engine.loss_interval, now.metric), shown_score(emulated, now.metric)[0]
    return [
        f"the engine in all INT8 {score_verb(now.metric)} {lost} on the search samples, and "
        f"{value_text(score, half, now.metric)} by the table, which emulates it on final "
        "samples: it rounds differently, or these samples are others. The losses of mixes are those of their engines"
    ]


def _mix_bias_notes(now: Standing) -> list[str]:
    """What came of correcting the biases of each pick for its own mix."""
    corrections = [(now.point(row), now.details.mix_biases.get(int(now.table.id[row]))) for row in now.picks.rows()]
    return [
        f"trial {point.trial}: {mix_bias_text(bias, now.metric)}" for point, bias in corrections if bias is not None
    ]


def _best_with_int8(now: Standing) -> Point | None:
    """The recommended evaluation where some of its groups run in INT8: recovery changes no other."""
    best = best_point(now)
    return best if best is not None and now.details.runs_int8(best.id) else None


def _mix(now: Standing, best: Point) -> RescuedPick:
    loss = best.final.loss_estimate(int(now.study.data["final"])) if best.final.scored else None
    return RescuedPick(f"best: trial {best.trial}", loss, best.latency_ms)


def _int8_row(now: Standing) -> int | None:
    """The row of uniform INT8, which has all kept corrections; None if it was not evaluated."""
    return next(iter(now.measures.quantized_rows), None)


def _int8_ms(now: Standing) -> float | None:
    """Latency of uniform INT8; None if it was not measured."""
    row = _int8_row(now)
    return None if row is None else now.point(row).latency_ms
