"""The rescue table: what plain INT8 loses on the final samples, what each recovery step won back, and the mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from search.values import NOT_TRIED, LossEstimate, MixBias, RecoveryRecord, StepRecord
from studies.judging.rounding import (
    format_fixed,
    half_width,
    interval_text,
    latency_text,
    score_name,
    shown_score,
    shown_score_text,
    value_text,
)
from studies.options.limits import LOSS, Limits, MetricScale
from studies.options.quantities import format_elapsed_s

PLAIN = "plain INT8"
UNLIMITED = Limits()
_USUALLY_ALLOWED = 0.01
_NO_LOSS, _UNSURE = "no loss", "unsure"  # in the column `won back`: short, so that no terminal cuts them
_WORDS = {
    _NO_LOSS: "plain INT8 loses nothing that matters, so there is nothing to win back",
    _UNSURE: "these samples are too few to tell whether plain INT8 loses anything",
}


@dataclass(frozen=True)
class RescueRow:
    """One row.

    Attributes:
        step: name of a kept step, `PLAIN`, or what the last row is called.
        before, after: losses on the final samples; None if they are not known.
        won_back: share of plain INT8's loss that is gone; None if that shows no loss.
        latency_ms: of the engine; None if it was not measured.
        seconds: that the step took; None of what is no step.
    """

    step: str
    before: LossEstimate | None
    after: LossEstimate | None
    won_back: float | None = None
    latency_ms: float | None = None
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RescuedPick:
    """The last row of a search: a pick, on the same samples.

    Attributes:
        name: of the pick.
        loss: on the final samples.
    """

    name: str
    loss: LossEstimate | None
    latency_ms: float | None


def rescue_rows(
    record: RecoveryRecord,
    mix: RescuedPick | None = None,
    *,
    plain_ms: float | None = None,
    recovered_ms: float | None = None,
) -> list[RescueRow]:
    """Plain INT8, every step that was kept, and the mix of a search.

    Args:
        plain_ms, recovered_ms: latency of plain INT8 and of INT8 with all that was kept; None if not measured.
    """
    rows = [RescueRow(PLAIN, None, record.plain, latency_ms=plain_ms)]
    for place, step in enumerate(record.kept_steps):
        last_ms = recovered_ms if place == len(record.kept_steps) - 1 else None
        share = won_back(record.plain, step.final)
        rows.append(RescueRow(step.name, rows[-1].after, step.final, share, last_ms, step.seconds))
    if mix is not None:
        rows.append(RescueRow(mix.name, rows[-1].after, mix.loss, won_back(record.plain, mix.loss), mix.latency_ms))
    return rows


def won_back(plain: LossEstimate | None, after: LossEstimate | None) -> float | None:
    """Share of plain INT8's loss that is gone; None where plain INT8 shows no loss, or one of both is not known."""
    if plain is None or after is None or not plain.shows:
        return None
    return (plain.loss - after.loss) / plain.loss


def rescue_header(metric: MetricScale) -> tuple[str, ...]:
    """The columns; a metric that compares with FP32 has its own values, of which no share is won back."""
    share = () if metric.relative else ("won back",)
    return ("step", score_name(metric), "95 % interval", *share, "latency", "seconds")


def rescue_cells(rows: Sequence[RescueRow], metric: MetricScale, limits: Limits = UNLIMITED) -> list[tuple[str, ...]]:
    """The rows as texts, below `rescue_header`."""
    return [
        (
            row.step,
            *_score_cells(row.after, metric),
            *(() if metric.relative else (_won_back_text(row, rows[0].after, metric, limits),)),
            latency_text(row.latency_ms),
            seconds_text(row.seconds),
        )
        for row in rows
    ]


def _score_cells(estimate: LossEstimate | None, metric: MetricScale) -> tuple[str, str]:
    value, low, high = shown_score(estimate, metric)
    if value is None or low is None or high is None:
        return "", ""
    return value_text(value, half_width(low, high), metric), interval_text(low, high, metric)


def _won_back_text(row: RescueRow, plain: LossEstimate | None, metric: MetricScale, limits: Limits) -> str:
    """The share that a row won back, or a word of `rescue_legend` where plain INT8 loses nothing, or may do so."""
    if row.won_back is not None:
        return won_back_text(row.won_back)
    if row.step == PLAIN or plain is None or plain.shows:
        return ""
    return _UNSURE if may_matter(plain, metric, limits) else _NO_LOSS


def rescue_legend(cells: Sequence[tuple[str, ...]]) -> str:
    """What a word in the column `won back` means; empty if there is none."""
    used = {cell for row in cells for cell in row}
    return "; ".join(f"{word}: {meaning}" for word, meaning in _WORDS.items() if word in used)


def may_matter(loss: LossEstimate, metric: MetricScale, limits: Limits) -> bool:
    """Whether the interval of a loss holds one that matters: the one that is allowed, or what usually is.

    One in a hundred usually is of shares, and of metrics of other units nobody knows: any loss may matter there.
    """
    allowed = limits.most(LOSS)
    usual = _USUALLY_ALLOWED if metric.ratio else 0.0
    return loss.high > (usual if allowed is None else min(allowed, usual))


def won_back_text(share: float | None, *, missing: str = "") -> str:
    """The share in whole percents: `37 %`; negative where the loss became larger."""
    return missing if share is None else f"{format_fixed(100 * share, 0)} %"


def seconds_text(seconds: float | None, *, missing: str = "") -> str:
    """Seconds with one decimal: `7.6`, `< 0.1`."""
    return missing if seconds is None else "< 0.1" if seconds < 0.05 else f"{seconds:.1f}"


def rescue_notes(
    record: RecoveryRecord, metric: MetricScale, limits: Limits = UNLIMITED, final_samples: int | None = None
) -> list[str]:
    """What the table does not show: how it was scored, which steps were not kept, and notes; one sentence each.

    Args:
        limits: that say how large a loss matters.
        final_samples: of the whole split; None if that is not known.
    """
    notes = []
    if record.plain is not None:
        of_all = f" of {final_samples}" if final_samples not in (None, record.plain.samples) else ""
        why = ", because all of them take more time than recovery has" if of_all else ""
        notes.append(
            f"all INT8 is emulated by ONNX Runtime on {record.plain.samples}{of_all} final samples{why}, and compared "
            "with FP32"
        )
        if not record.plain.shows:
            notes.append(_no_loss_text(record.plain, metric, limits))
    notes += [step_text(step) for step in record.steps if not step.kept]
    notes += [f"{step.name}: {note}" for step in record.kept_steps for note in step.notes]
    notes += [step_text(step) for step in record.formats]
    return [*notes, *record.notes]


def _no_loss_text(plain: LossEstimate, metric: MetricScale, limits: Limits) -> str:
    score = shown_score_text(plain, metric)
    if may_matter(plain, metric, limits):
        head = f"{plain.samples} samples are too few to tell whether plain INT8 loses anything there"
        return f"{head}: its {score_name(metric)} is {score}"
    return f"plain INT8 loses nothing there that matters ({score}), so there is no loss to win back"


def step_text(step: StepRecord) -> str:
    """One step in a line: `equalize is kept: the error falls to 1 % (0.5 % to 2 %) of what it was, 2.1s`."""
    kept = "is kept" if step.kept else "is not kept"
    cut = "" if not step.cut or step.cut in step.reason or not step.error_after else f"; {step.cut}"
    return f"{step.name} {kept}: {step.reason}{cut}, {format_elapsed_s(step.seconds)}"


def mix_bias_text(bias: MixBias, metric: MetricScale) -> str:
    """What came of correcting biases for one mix: why, and the losses without and with it on the same samples."""
    head = "biases corrected for this mix are " + ("kept" if bias.kept else "not kept")
    losses = ""
    if bias.after is not None:
        scores = [metric.text(shown_score(estimate, metric)[0]) for estimate in (bias.before, bias.after)]
        losses = f"; {score_name(metric)} {' → '.join(scores)} on the same {bias.after.samples} search samples"
    return f"{head}: {bias.reason}{losses}, {format_elapsed_s(bias.step.seconds)}"


def recovery_text(record: RecoveryRecord) -> str:
    """All of it in a line, for `status`: `bias kept of 2 steps tried, 1 of which ran out of time, in 12s`."""
    kept = ", ".join(step.name for step in record.kept_steps) or "nothing"
    left = sum(step.cut == NOT_TRIED for step in record.steps)
    count, cut = len(record.steps) - left, len(record.cut) - left
    tried = f"{kept} kept of {count} step{'s' * (count != 1)} tried" + f", {cut} of which ran out of time" * (cut > 0)
    return f"{tried}{f'; {left} not tried for lack of time' * (left > 0)}, in {format_elapsed_s(record.seconds)}"
