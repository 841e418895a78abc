"""`layers.json` and `profile.json`: the layers of the exported engine, with the reasons that a study knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from search.values import Assignment, Precision
from studies.run.work import Work
from studies.store.records import ChoiceRecord

_INFERENCES = 20


def write_layer_files(folder: Path, work: Work, engine: Path, assignment: Assignment) -> None:
    """Write both files; none if the backend tells no layers.

    Args:
        engine: the file that was written.

    Raises:
        EvaluatorError: it cannot be loaded or run here.
    """
    choices = work.ledger.store.spaces.choices(work.ledger.target.id)
    reasons = find_reasons(choices, assignment)
    work.bench.keeper.ask("reading the layers").diagnoses.write_layers(engine, folder, reasons, _INFERENCES)


def find_reasons(choices: Iterable[ChoiceRecord], assignment: Assignment) -> dict[str, str]:
    """Group id → why the assignment does not ask for INT8; groups that it asks for in INT8 have none."""
    int8 = {choice.group: choice for choice in choices if choice.precision.quantized}
    return {
        group: _reason(int8.get(group), precision) for group, precision in assignment.items() if not precision.quantized
    }


def _reason(int8: ChoiceRecord | None, precision: Precision) -> str:
    if int8 is None:
        return "it was never offered in INT8: the target does not run it"
    if not int8.offered:
        return f"it was never offered in INT8: {int8.reason}"
    if not int8.buildable:
        return "the engine's builder refuses it in INT8"
    return f"the exported mix asks for {precision.label} here"
