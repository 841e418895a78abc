"""The interface of a recovery step. Other packages register theirs by the entry-point group `bitfront.recovery`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from evaluators.recovery.context import RecoveryContext
from search.values import Precision, Ranges


@dataclass(frozen=True)
class Proposal:
    """The changes that a step proposes.

    Attributes:
        ranges: calibrated ranges, with all changes of earlier steps and of this step. If it found nothing to change,
            they are those it was given, and notes or `cut` say why.
        notes: sentences about what it changed and what it could not change.
        cut: where it ran out of time, after how much, as `it ran out of time after 9 of 47 groups`; else empty. What it
            proposes nevertheless is judged as any proposal.
    """

    ranges: Ranges
    notes: tuple[str, ...] = ()
    cut: str = ""


class RecoveryStep(ABC):
    """One way to reduce the loss of INT8. It is deterministic: on one machine, equal arguments give equal proposals.

    A step only proposes. Whether its proposal is kept is decided by what it does to the error of the outputs on
    held-out calibration samples, and to the loss on all of them; so it may not read labels. What it cannot treat, say a
    stream with shared weights, it leaves alone and says so in a note.
    """

    name: ClassVar[str] = ""
    """The name in `--recover` and in the rescue table."""
    summary: ClassVar[str] = ""
    """What it does, in one line, for help and reports."""
    exact: ClassVar[bool] = False
    """Whether it changes the float model, whose outputs stay equal; else it changes what INT8 alone uses."""
    least_share: ClassVar[float] = 0.0
    """The share of the time for all steps that it has even where those before it took more."""
    version: ClassVar[int] = 1
    """Raised where the same model and samples would now get another proposal: stored ranges are not reused then."""

    def serves(self, precision: Precision) -> bool:
        """Whether the step knows what to change of ops in a precision, which `context.precision` then is."""
        return precision.recovered

    @abstractmethod
    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        """Offer ranges that go on from `ranges`; None if there is nothing for this step to do.

        Args:
            ranges: of the model as it was recovered so far; `ranges.recovery` says how.

        Raises:
            EvaluatorError: the emulation cannot run the model.
        """
