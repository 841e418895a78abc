"""What the verbs of `commands` give back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from search.values import Answer, LayerTime, Precision
from studies.judging.standing import Standing
from studies.judging.words.descriptions import mix_text
from studies.store.records import Assignments, DeathRecord, EvaluationRecord, FinalLevel, GroupRecord

if TYPE_CHECKING:  # these import ONNX, which reading verbs should not wait for
    from search.forecast.forecasts import Predicted
    from search.graph.model import Model
    from search.space.choices import Space
    from search.values import Target
    from studies.export.export import Exported


@dataclass(frozen=True)
class Mixes(Mapping[int, str]):
    """Evaluation id → its mix in words, made when asked for: of 10,000 evaluations a front shows a handful."""

    assignments: Assignments

    def __getitem__(self, evaluation_id: int) -> str:
        return mix_text(self.assignments[evaluation_id])

    def __iter__(self) -> Iterator[int]:
        return iter(self.assignments)

    def __len__(self) -> int:
        return len(self.assignments)


@dataclass(frozen=True)
class Finished:
    """How a search ended.

    Attributes:
        standing: where the study stands.
        reason: why it stopped.
        mixes: evaluation id → its mix in words.
        obedience: (asked precision, answer) → groups, over every evaluation that was built.
        deaths: evaluator processes that were replaced over an evaluation.
    """

    standing: Standing
    reason: str
    mixes: Mapping[int, str]
    obedience: Mapping[tuple[Precision, Answer], int]
    deaths: tuple[DeathRecord, ...] = ()


@dataclass(frozen=True)
class Shown:
    """One evaluation with what is needed to name its groups.

    `refused` are the evaluations of its proposal that were refused, where it is a repair.
    `forecast` is what was predicted of it; None where nothing was.
    `final_levels` are the newest exports of it at other optimization levels.
    """

    record: EvaluationRecord
    groups: Mapping[str, GroupRecord]
    standing: Standing
    refused: tuple[EvaluationRecord, ...] = ()
    profile: tuple[LayerTime, ...] = ()
    forecast: Predicted | None = None
    final_levels: tuple[FinalLevel, ...] = ()


@dataclass(frozen=True)
class Layers:
    """A clean model and the space it has on a target."""

    model: Model
    space: Space
    target: Target


@dataclass(frozen=True)
class Demo:
    """What the demo left behind."""

    finished: Finished
    engine: Exported
    report: Path
    storage: str
