"""Comparing values with a reference, to find how far and where in the graph two engines differ. Keeps no outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search.errors import EvaluatorError
from search.values import Flips, Precision

if TYPE_CHECKING:  # the keeper and reading verbs take this module without ONNX
    from evaluators.engine import Arrays, Runner

ENGINE, FLOAT, EMULATED = "engine", "float", "emulated"
# Which is compared with which: (values, reference).
PAIRS = ((ENGINE, FLOAT), (ENGINE, EMULATED), (EMULATED, FLOAT))


class ComparedBatch(Protocol):
    """Inputs as the model takes them, of which the first `count` rows are real."""

    @property
    def inputs(self) -> Mapping[str, NDArray[Any]]: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True)
class Difference:
    """How far values are from a reference, over the elements that are finite on both sides.

    Attributes:
        max_abs, mean_abs: of the absolute difference, in the tensor's unit.
        relative: `max_abs` over the reference's range (largest less smallest); infinite if that is zero.
        cosine: similarity of all values as one vector.
        sqnr_db: reference's power over the difference's; infinite if nothing differs, minus infinity where a
            reference of zeros does not stay zero.
        agreement: share of rows whose largest column is the same; None for what has no rows of classes.
        non_finite, reference_non_finite: how many values are NaN or infinite.
        values: elements compared.
    """

    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    sqnr_db: float
    agreement: float | None
    non_finite: int
    reference_non_finite: int
    values: int

    @property
    def level_db(self) -> float:
        """`sqnr_db`, but minus infinity where values are not finite that are so in the reference."""
        return -math.inf if self.non_finite > self.reference_non_finite else self.sqnr_db


@dataclass(frozen=True)
class TensorDifferences:
    """How far one tensor of three runs differs.

    Attributes:
        name: of an output, or id of a group.
        by_pair: `engine-float` and so on, for each of `PAIRS`.
    """

    name: str
    by_pair: Mapping[str, Difference]


@dataclass(frozen=True)
class EngineComparison:
    """An engine beside ONNX Runtime.

    Attributes:
        outputs: of the model, in its order; those that hold no numbers are left out.
        samples: that were compared.
        groups: outputs of the groups, in the order of the graph; None if they were not asked for.
        flips: samples whose class the engine changes against the float model; None where outputs are no classes.
        opened: whether the groups are those of the engine file, or of the assignment built again.
    """

    outputs: Sequence[TensorDifferences]
    samples: int
    groups: Sequence[TensorDifferences] | None = None
    opened: bool = False
    flips: Flips | None = None


class DifferenceTally:
    """Sums over the batches of one tensor, from which its Difference follows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._largest = self._absolute = self._noise = self._signal = self._power = self._dot = 0.0
        self._low, self._high = math.inf, -math.inf
        self._values = self._bad = self._bad_reference = self._rows = self._agreeing = 0

    def add(self, values: NDArray[Any], reference: NDArray[Any]) -> None:
        """Count two arrays of one shape, of any number type.

        Raises:
            EvaluatorError: their shapes differ.
        """
        if values.shape != reference.shape:
            raise EvaluatorError(
                f"comparing {self._name!r}: its shape is {values.shape}, that of the reference {reference.shape}; only "
                "tensors of one shape can be compared"
            )
        if values.ndim == 2 and values.shape[1] > 1:
            self._rows += len(values)
            self._agreeing += int((values.argmax(axis=1) == reference.argmax(axis=1)).sum())
        mine, theirs = values.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
        finite, finite_reference = np.isfinite(mine), np.isfinite(theirs)
        self._bad += int((~finite).sum())
        self._bad_reference += int((~finite_reference).sum())
        both = finite & finite_reference
        self._add_finite(mine[both], theirs[both])

    def _add_finite(self, values: NDArray[np.float64], reference: NDArray[np.float64]) -> None:
        if not len(values):
            return
        difference = np.abs(values - reference)
        self._values += len(values)
        self._largest = max(self._largest, float(difference.max()))
        self._absolute += float(difference.sum())
        self._noise += float(difference @ difference)
        self._signal += float(reference @ reference)
        self._power += float(values @ values)
        self._dot += float(values @ reference)
        self._low, self._high = min(self._low, float(reference.min())), max(self._high, float(reference.max()))

    def difference(self) -> Difference:
        return Difference(
            max_abs=self._largest,
            mean_abs=self._absolute / self._values if self._values else 0.0,
            relative=_ratio(self._largest, self._high - self._low),
            cosine=self._cosine(),
            sqnr_db=self._sqnr_db(),
            agreement=self._agreeing / self._rows if self._rows else None,
            non_finite=self._bad,
            reference_non_finite=self._bad_reference,
            values=self._values,
        )

    def _cosine(self) -> float:
        lengths = math.sqrt(self._signal) * math.sqrt(self._power)
        return min(1.0, self._dot / lengths) if lengths else float(self._signal == self._power)

    def _sqnr_db(self) -> float:
        if self._noise == 0:
            return math.inf
        return 10 * math.log10(self._signal / self._noise) if self._signal else -math.inf


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else math.inf


def differences(
    sessions: Mapping[str, Runner],
    names: Sequence[str],
    batches: Iterable[ComparedBatch],
    done: Callable[[int], None] = lambda samples: None,
) -> list[TensorDifferences]:
    """Run three sessions over the same batches and compare their outputs.

    Args:
        sessions: one each for `ENGINE`, `FLOAT` and `EMULATED`.
        names: outputs that all of them have.
        done: told the samples so far after every batch.

    Returns:
        One for each name, in order; outputs that hold no numbers are left out.

    Raises:
        EvaluatorError: shapes differ.
        RefusedError: a session refuses to run.
    """
    tallies: dict[str, dict[tuple[str, str], DifferenceTally]] = {}
    samples = 0
    for batch in batches:
        outputs = {who: _run(session, batch) for who, session in sessions.items()}
        for name in names:
            if all(arrays[name].dtype.kind in "biuf" for arrays in outputs.values()):
                tally = tallies.setdefault(name, {pair: DifferenceTally(name) for pair in PAIRS})
                for mine, reference in PAIRS:
                    tally[mine, reference].add(outputs[mine][name], outputs[reference][name])
        samples += batch.count
        done(samples)
    return [
        TensorDifferences(name, {f"{mine}-{other}": t.difference() for (mine, other), t in tally.items()})
        for name, tally in tallies.items()
    ]


def _run(session: Runner, batch: ComparedBatch) -> Arrays:
    """Outputs on the real rows of a batch, where an output has a row per sample."""
    rows = len(next(iter(batch.inputs.values())))
    outputs = session.run(batch.inputs)
    return {name: a[: batch.count] if a.ndim and len(a) == rows else a for name, a in outputs.items()}


def inputs_db(levels: Mapping[str, float], sources: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The lowest level among the groups that feed each group; infinite for those fed by the model's inputs alone.

    Args:
        levels: group id → `Difference.level_db`.
        sources: group id → ids of the groups it reads from.
    """
    return {group: min((levels[s] for s in sources.get(group, ())), default=math.inf) for group in levels}


def held_in(assignment: Mapping[str, Precision], sources: Mapping[str, Sequence[str]]) -> dict[str, Precision]:
    """The coarsest precision that each group's output may be held in: its own, or that of one that reads it.

    An engine hands an output on in INT8 where it can; TensorRT 8.6 does so behind FP16 and FP32 convolutions.
    """
    coarsest = dict(assignment)
    for reader, group in ((reader, group) for reader, groups in sources.items() for group in groups):
        coarsest[group] = max(coarsest[group], assignment[reader])
    return coarsest


def fall_db(level: float, inputs: float, precision: Precision) -> float:
    """How far a level lies below what its inputs and its precision let expect; 0 if it does not."""
    expected = min(inputs, precision.ceiling_db)
    if expected == -math.inf:
        return 0.0
    return max(0.0, expected - level)
