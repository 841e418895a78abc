"""Sentences about faults in the outputs of the user's own program, with their evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line takes this module without ONNX
    from evaluators.diagnose.wrapper.fault import Fault, InputFault, WrapperComparison, WrapperOutput

_NAMED = 5  # channels
_LAYOUTS: dict[tuple[int, ...], str] = {
    (0, 2, 3, 1): " (NHWC where NCHW is expected)",
    (0, 3, 1, 2): " (NCHW where NHWC is expected)",
}


def verdict(output: WrapperOutput, threshold_db: float, at_input: InputFault | None = None) -> str:
    """What follows for one output, in one sentence.

    Args:
        at_input: the fault of an input that explains the outputs, which then have none of their own.
    """
    if output.fault is not None and at_input is None:
        fault_text = (
            f"{_fault_text(output.fault)}; with that corrected, its SQNR rises from {_db(output.fault.before_db)} to "
        )
        return f"{output.name}: {fault_text}{_db(output.fault.after_db)}"
    level = f"SQNR {_db(output.to_evaluation_db)} against the evaluation, {_db(output.to_float_db)} against FP32"
    if is_near(output, threshold_db):
        return f"{output.name}: no fault was found; it is as close as can be expected after quantization ({level})"
    differs = f"{output.name}: it differs by more than quantization explains ({level})"
    if at_input is None:
        return f"{differs}, and no single fault explains the difference"
    much = "" if at_input.after_db >= _near_db(output, threshold_db) else "a part of "
    return f"{differs}, and a fault of an input explains {much}the difference"


def input_text(fault: InputFault, outputs: Sequence[WrapperOutput], threshold_db: float) -> str:
    """What was done to an input of the user's own program, in one sentence."""
    rise = f"rises from {_db(fault.before_db)} to {_db(fault.after_db)}"
    sentence = f"input {fault.input}: {fault.cause}; against the model on such inputs, the SQNR of the outputs {rise}"
    wanted = max(_near_db(each, threshold_db) for each in outputs)
    if fault.after_db >= wanted:
        return sentence
    return (
        f"{sentence}, where the whole cause would reach {_db(wanted)}: look for another fault beside it, or one alike"
    )


def is_near(output: WrapperOutput, threshold_db: float) -> bool:
    """Whether an output is about as near to the evaluation or to FP32 as these are to each other."""
    return output.level_db >= _near_db(output, threshold_db)


def _near_db(output: WrapperOutput, threshold_db: float) -> float:
    """The SQNR from which an output is right; 40 dB are called equal, however near evaluation and FP32 are."""
    return min(output.evaluation_to_float_db, 40.0) - threshold_db


def _fault_text(fault: Fault) -> str:
    kind = fault.kind.name
    if kind == "SWAPPED":
        return f"it holds the values of the output {fault.other!r}"
    if kind == "LAYOUT":
        return f"its layout is transposed: it holds the axes of the expected array in the order {_axes(fault.order)}"
    if kind == "PERMUTED":
        return _permutation_text(fault)
    if fault.axis is None:
        return f"a scale or offset is missing or wrong: it is {_formula(fault, 0)}"
    axis = "channel" if fault.axis == 1 else f"entry of axis {fault.axis}"
    named = ", ".join(f"{axis} {c} is {_formula(fault, n)}" for n, c in enumerate(fault.channels[:_NAMED]))
    count = f"{len(fault.channels)} of {fault.size}"
    return f"a scale or offset is missing or wrong in {count} channels: {named}{_more(fault.channels)}"


def _axes(order: Sequence[int]) -> str:
    return f"({', '.join(map(str, order))}){_LAYOUTS.get(tuple(order), '')}"


def _permutation_text(fault: Fault) -> str:
    if fault.axis == 0:
        return f"{len(fault.channels)} of {fault.size} samples are in another order"
    where = "classes or channels" if fault.axis == 1 else f"entries of axis {fault.axis}"
    moves = dict(zip(fault.channels, fault.order, strict=True))
    if all(moves.get(place, place) == fault.size - 1 - place for place in range(fault.size)):
        return f"the {fault.size} {where} are in reverse order"
    if len(moves) == 2:
        return f"{where} {' and '.join(map(str, moves))} of {fault.size} are swapped"
    named = ", ".join(f"{place} holds {source}" for place, source in list(moves.items())[:_NAMED])
    return f"{len(moves)} of {fault.size} {where} are in another order: {named}{_more(moves)}"


def _formula(fault: Fault, place: int) -> str:
    scale = f"{fault.scales[place]:.4g} × " if fault.scales else ""
    offset = f" {'-' if fault.offsets[place] < 0 else '+'} {abs(fault.offsets[place]):.4g}" if fault.offsets else ""
    return f"{scale}what is expected{offset}"


def _more(items: Any) -> str:
    return ", …" if len(items) > _NAMED else ""


def _db(value: float) -> str:
    if math.isinf(value):
        return "infinity" if value > 0 else "nothing in common"
    return f"{value:.1f} dB"


def to_json(comparison: WrapperComparison, threshold_db: float) -> dict[str, Any]:
    """Plain values; what is infinite is null."""
    fault = comparison.input_fault
    return {
        "samples": comparison.samples,
        "outputs": [
            {
                "name": each.name,
                "to_evaluation_db": _finite(each.to_evaluation_db),
                "to_float_db": _finite(each.to_float_db),
                "evaluation_to_float_db": _finite(each.evaluation_to_float_db),
                "near": is_near(each, threshold_db),
                "fault": None if each.fault is None else _fault_json(each.fault),
                "verdict": verdict(each, threshold_db, fault),
            }
            for each in comparison.outputs
        ],
        "input_fault": None if fault is None else _input_json(fault, comparison.outputs, threshold_db),
    }


def _input_json(fault: InputFault, outputs: Sequence[WrapperOutput], threshold_db: float) -> dict[str, Any]:
    plain = {name: _finite(value) if name.endswith("_db") else value for name, value in vars(fault).items()}
    return {**plain, "verdict": input_text(fault, outputs, threshold_db)}


def _fault_json(fault: Fault) -> dict[str, Any]:
    plain = {name: _finite(value) if name.endswith("_db") else value for name, value in vars(fault).items()}
    return {**plain, "kind": fault.kind.value}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
