"""The result of comparing a trial's engine with ONNX Runtime: how far they differ, why, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.values import Flips
from studies.inspect import wrapper_text
from studies.judging.sentences.evaluations import flip_texts
from studies.store.records import GroupRecord

if TYPE_CHECKING:
    from evaluators.diagnose.compare import Difference
    from evaluators.diagnose.wrapper.fault import WrapperComparison

PAIRS = {
    "engine-float": "engine against float model",
    "engine-emulated": "engine against emulation",
    "emulated-float": "emulation against float model",
}


@dataclass(frozen=True)
class OutputComparison:
    """One output, compared three ways.

    Attributes:
        differences: by the keys of `PAIRS`.
        explained: whether the engine is no further from its emulation than the emulation from the float model, the
            threshold and what is normal for its precisions allowed for, and shares most of its power with it.
    """

    name: str
    differences: Mapping[str, Difference]
    explained: bool


@dataclass(frozen=True)
class GroupSide:
    """One group's output, compared three ways.

    Attributes:
        inputs_db: the least SQNR, engine against emulation, of the groups that feed it; infinite for none.
        fall_db: how far its own lies below that, or below what is normal for its precision where that is less.
        parts: whether that is more than the threshold.
    """

    group: GroupRecord
    precision: str
    differences: Mapping[str, Difference]
    inputs_db: float
    fall_db: float
    parts: bool


@dataclass(frozen=True)
class Comparison:
    """What `bitfront compare` found.

    Attributes:
        groups: in graph order; None if they were not asked for.
        warnings: what is not as it was recorded.
        notes: what was compared, where that is not the engine of the search.
        flips: samples whose class the engine changes against FP32; None where outputs are no classes.
        wrapper: outputs of the user's own program; None if none were given.
    """

    study: str
    trial: int
    mix: str
    samples: int
    threshold_db: float
    outputs: tuple[OutputComparison, ...]
    groups: tuple[GroupSide, ...] | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    flips: Flips | None = None
    wrapper: WrapperComparison | None = None

    @property
    def first(self) -> GroupSide | None:
        """The first group, in graph order, where engine and emulation part."""
        return next((side for side in self.groups or () if side.parts), None)

    def verdicts(self) -> list[str]:
        """What follows from it, in sentences."""
        lines = []
        for side in self.outputs:
            verdict = "the engine agrees with its emulation, so only its precisions make it differ from the float model"
            if not side.explained:
                verdict = "the engine differs from its emulation by more than its precisions explain"
            elif self.first is not None:
                verdict = "the engine agrees with its emulation in this output, but not in every group"
            lines.append(f"{side.name}: {verdict}")
        lines += [self._where()] if self.groups is not None else []
        lines += flip_texts(self.flips) if self.flips is not None else []
        if self.wrapper is not None:
            at_input = self.wrapper.input_fault
            for own in self.wrapper.outputs:
                lines.append(f"own {wrapper_text.verdict(own, self.threshold_db, at_input)}")
            if at_input is not None:
                lines.append(f"own {wrapper_text.input_text(at_input, self.wrapper.outputs, self.threshold_db)}")
        return lines

    def _where(self) -> str:
        if self.first is not None:
            side = self.first
            own, fed = (db_text(v) for v in (side.differences["engine-emulated"].level_db, side.inputs_db))
            return (
                f"the first group that differs is {side.group.id} ({side.group.name}, {side.precision}): its SQNR is "
                f"{own}, that of its inputs "
                f"{fed}"
            )
        if all(side.explained for side in self.outputs):
            return f"no group falls more than {self.threshold_db:g} dB below its inputs"
        return (
            f"no group falls more than {self.threshold_db:g} dB below its inputs, so they differ behind the last "
            "group, "
            "or only where operations are fused"
        )

    def output_rows(self) -> list[dict[str, Any]]:
        """A row per output and pair."""
        return [
            {"output": side.name, "compared": PAIRS[pair], **_numbers(difference)}
            for side in self.outputs
            for pair, difference in side.differences.items()
        ]

    def group_rows(self) -> list[dict[str, Any]]:
        """A row per group, in graph order; SQNRs in dB."""
        return [
            {
                "group": side.group.id,
                "node": side.group.name,
                "op": side.group.op,
                "precision": side.precision,
                "sqnr_db": side.differences["engine-emulated"].level_db,
                "inputs_db": side.inputs_db,
                "fall_db": side.fall_db,
                "to_float_db": side.differences["engine-float"].level_db,
                "emulation_to_float_db": side.differences["emulated-float"].level_db,
                "max_abs": side.differences["engine-emulated"].max_abs,
                "parts": side.parts,
            }
            for side in self.groups or ()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is infinite is null, and then `equal` tells perfect from hopeless."""
        return {
            "study": self.study,
            "trial": self.trial,
            "mix": self.mix,
            "samples": self.samples,
            "threshold_db": self.threshold_db,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "verdicts": self.verdicts(),
            "outputs": [
                {
                    "name": side.name,
                    "explained": side.explained,
                    **{pair: _finite(_numbers(difference)) for pair, difference in side.differences.items()},
                }
                for side in self.outputs
            ],
            "flips": None if self.flips is None else self.flips.to_json(),
            "own_outputs": None if self.wrapper is None else wrapper_text.to_json(self.wrapper, self.threshold_db),
            "first_group": self.first.group.id if self.first is not None else None,
            "groups": None if self.groups is None else [_finite(row) for row in self.group_rows()],
        }


def db_text(value: float) -> str:
    """`45.2 dB`; infinite if nothing differs."""
    if math.isinf(value):
        return "equal" if value > 0 else "none"
    return f"{value:.1f} dB"


def text_of(row: Mapping[str, Any]) -> dict[str, str]:
    """A row for people."""
    text = {}
    for name, value in row.items():
        if name.endswith("_db"):
            text[name] = db_text(value)
        elif name == "agreement":
            text[name] = "" if value is None else f"{value:.2%}"
        elif name == "parts":
            text[name] = "<- parts" if value else ""
        else:
            text[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text


def _numbers(difference: Difference) -> dict[str, Any]:
    names = ("max_abs", "mean_abs", "relative", "cosine", "sqnr_db", "agreement", "non_finite")
    return {**{name: getattr(difference, name) for name in names}, "equal": difference.level_db == math.inf}


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
