"""All details of one evaluation for `bitfront show`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.values import LayerTime
from studies.judging.standing import Standing
from studies.store.records import FinalLevel, GroupRecord, StoredEvaluation

if TYPE_CHECKING:  # it imports SciPy, which reading verbs should not wait for
    from search.forecast.forecasts import Predicted


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
