"""The table of all targets of a study: FP32, INT8 and the best mix on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from search.values import REFERENCE, Assignment, LossEstimate
from studies.judging.findings.rescue_table import won_back, won_back_text
from studies.judging.points import Point
from studies.judging.rounding import latency_text
from studies.judging.sentences.evaluations import mix_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.standing import Standing, best_point
from studies.options.limits import MetricScale

HEADER = ("target", "FP32", "INT8", "INT8 loses", "scheme", "latency", "final {metric}", "final loss", "won back")


@dataclass(frozen=True)
class DeviceRow:
    """One target.

    Attributes:
        number: place of the target in the study, from 1.
        name: of the target.
        fp32_ms, int8_ms: latencies of the uniform engines; None if they were not measured.
        int8_loss: of plain INT8 on the final samples where recovery measured it, otherwise of the uniform INT8 engine
            on the search samples; None if neither is known.
        trial: of the pick `best`, whose facts follow; None if nothing is picked.
        scheme: how many groups of it run in what; empty without a pick.
        latency_ms: of its engine.
        final_value, final_loss: its metric and loss on the final samples; None if it was not scored there.
        won_back: share of `int8_loss` that the pick does not lose, on the same split of the data; None where INT8 shows
            no loss beyond chance, or one of both losses is not known.
        doubtful: whether `latency_ms` is.
    """

    number: int
    name: str
    fp32_ms: float | None
    int8_ms: float | None
    int8_loss: float | None
    trial: int | None = None
    scheme: str = ""
    latency_ms: float | None = None
    final_value: float | None = None
    final_loss: float | None = None
    won_back: float | None = None
    doubtful: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def device_row(now: Standing, number: int, name: str, assignments: Mapping[int, Assignment]) -> DeviceRow:
    """The row of one target.

    Args:
        now: where the target stands, judged by its limits.
        assignments: evaluation id → assignment, of the pick `best` at least.
    """
    fp32, int8, best = (
        _uniform(now, now.measures.row_of(REFERENCE.role)),
        _uniform(now, now.measures.quantized_row),
        best_point(now),
    )
    before, after = _losses(now, int8, best)
    return DeviceRow(
        number,
        name,
        fp32_ms=None if fp32 is None else fp32.latency_ms,
        int8_ms=None if int8 is None else int8.latency_ms,
        int8_loss=None if before is None else before.loss,
        trial=None if best is None else best.trial,
        scheme="" if best is None else mix_text(assignments[best.id]),
        latency_ms=None if best is None else best.latency_ms,
        doubtful=best is not None and best.latency_doubtful,
        final_value=None if best is None else best.final.value,
        final_loss=None if best is None else best.final.loss,
        won_back=won_back(before, after),
    )


def device_cells(rows: Sequence[DeviceRow], metric: MetricScale) -> list[tuple[str, ...]]:
    """The rows as texts, below `HEADER`; three significant digits at most; what is not known is empty."""
    return [
        (
            f"{row.number}  {row.name}",
            latency_text(row.fp32_ms),
            latency_text(row.int8_ms),
            _loss(row.int8_loss, metric),
            row.scheme,
            latency_text(row.latency_ms) + (f" ({DOUBTFUL})" if row.doubtful else ""),
            _loss(row.final_value, metric),
            _loss(row.final_loss, metric),
            "" if metric.relative else won_back_text(row.won_back),
        )
        for row in rows
    ]


def device_header(metric: MetricScale) -> tuple[str, ...]:
    """`HEADER` with the name of the metric."""
    return tuple(text.format(metric=metric.name) for text in HEADER)


def _uniform(now: Standing, row: int | None) -> Point | None:
    return None if row is None else now.point(row)


def _losses(now: Standing, int8: Point | None, best: Point | None) -> tuple[LossEstimate | None, LossEstimate | None]:
    """What INT8 loses and what the pick loses, on the same split of the data."""
    record = now.target.recovery
    if record is not None and record.plain is not None:
        scored = best is not None and best.final.scored
        return record.plain, best.final.loss_estimate(int(now.study.data["final"])) if best and scored else None
    return (None if int8 is None else int8.loss_estimate), (None if best is None else best.loss_estimate)


def _loss(value: float | None, metric: MetricScale) -> str:
    return "" if value is None else metric.text(value, 3)
