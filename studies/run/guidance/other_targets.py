"""Results of a study's other targets that are useful on this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from search.forecast.priors import Baseline, latency_prior
from search.forecast.transfer import Elsewhere
from search.values import Precision, Target
from studies.judging.standing import read_standing
from studies.store.target_names import PREFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evaluators.diagnose.group_error import GroupError
    from search.space.layout import Layout
    from studies.run.work import Work
    from studies.store.records import TargetRecord
    from studies.trials.ledger import Ledger

_LEAST_ROWS = 4
_NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


def rounding_key(target: Target) -> tuple[str, ...]:
    """What decides, beside ranges, which numbers a precision makes of a tensor: the same where INT8 is written alike.

    Device, threads and versions do not: they change how fast it is computed, not what is.
    """
    of_weights = (target.options.get(name, "") for name in ("weight_bits", "weight_pairs"))
    return target.backend, target.versions.get("provider", ""), *of_weights


def known_sensitivities(work: Work, others: Sequence[TargetRecord]) -> tuple[GroupError, ...]:
    """Sensitivities that another target of the study has and that hold here; empty if they have to be measured.

    They hold where ranges and rounding are the same and the other target was offered all that this one is.
    """
    wanted = set(work.problem.space.lower_pairs())
    for other in others:
        if (
            rounding_key(other.target) != rounding_key(work.ledger.target.target)
            or other.ranges_digest != work.ledger.target.ranges_digest
        ):
            continue
        offered = {
            (choice.group, choice.precision) for choice in work.ledger.store.spaces.choices(other.id) if choice.offered
        }
        rows = work.ledger.store.spaces.sensitivity_rows(other.id)
        if rows and wanted <= offered:
            return tuple(row for row in rows if (row.group, row.precision) in wanted)
    return ()


def elsewhere(
    work: Work, others: Sequence[TargetRecord], layout: Layout, multiply_adds: NDArray[np.float64]
) -> Elsewhere | None:
    """The evaluations of that other target which says most of this one; None if no other has enough.

    Args:
        multiply_adds: (groups,) to share latencies by where profiles say nothing.
    """
    candidates: list[tuple[TargetRecord, Elsewhere]] = []
    for other in others:
        rows = _rows(work.ledger, other, layout, multiply_adds)
        candidates += [] if rows is None else [(other, rows)]
    if not candidates:
        return None
    other, made = max(candidates, key=lambda pair: _likeness(work.ledger.target.target, *pair))
    work.events.note(
        f"the forecasts start from {len(made.ms)} evaluations on another target, "
        f"{other.target.fingerprint[:PREFIX]}: {other.target.backend} on {other.target.device}"
    )
    return made.worth()


def offered_elsewhere(ledger: Ledger, others: Sequence[TargetRecord]) -> frozenset[Precision]:
    """The precisions that the study's other targets offer, so that what they measured can be told here."""
    choices = (choice for other in others for choice in ledger.store.spaces.choices(other.id))
    return frozenset(choice.precision for choice in choices if choice.offered)


def other_targets(ledger: Ledger) -> list[TargetRecord]:
    """The study's targets but the one of the ledger."""
    return [other for other in ledger.store.targets.of_study(ledger.study.id) if other.id != ledger.target.id]


def _likeness(here: Target, other: TargetRecord, rows: Elsewhere) -> tuple[bool, bool, bool, int]:
    return other.target.device == here.device, other.target.backend == here.backend, rows.alike, len(rows.ms)


def _rows(ledger: Ledger, other: TargetRecord, layout: Layout, multiply_adds: NDArray[np.float64]) -> Elsewhere | None:
    """What was measured on another target; None if that is too little."""
    now = read_standing(ledger.store, ledger.study, other, ledger.limits)
    rows = [int(row) for row in np.flatnonzero(now.measures.complete & np.isfinite(now.table.loss))]
    uniform = [row for row in now.measures.baselines if row in rows]
    if len(rows) < _LEAST_ROWS or not uniform:
        return None
    known = ledger.store.evaluations.assignments(other.id)
    numbers = [int(number) for number in now.table.id]
    baselines = [
        Baseline(
            layout.precisions_of([known[numbers[row]]])[0],
            float(now.measures.latency_ms[row]),
            ledger.store.engines.profile(numbers[row]),
        )
        for row in uniform
    ]
    precisions = layout.precisions_of([known[numbers[row]] for row in rows])
    loss_std = (now.table.loss_high - now.table.loss_low)[rows] / (2 * _NORMAL_95)
    scaled = [place for precision, place in layout.places.items() if precision.quantized]
    same = rounding_key(other.target) == rounding_key(ledger.target.target)
    return Elsewhere(
        precisions=precisions,
        ms=now.measures.latency_ms[rows],
        spread=np.nan_to_num(now.table.spread[rows], nan=0.0),
        loss=now.table.loss[rows],
        loss_std=np.nan_to_num(loss_std, nan=0.0),
        prior=latency_prior(layout, baselines, multiply_adds),
        alike=same or not np.isin(precisions, scaled).any(),
    )
