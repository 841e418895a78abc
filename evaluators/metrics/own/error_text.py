"""What the user has to know beside the error that a metric of their own raised."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.label_form import rows_shape

_HERE = Path(__file__).parents[1]  # the folder of the code that calls the user's
_MOST_NAMED = 4  # outputs


def own_error_text(error: Exception, arguments: Sequence[Any]) -> str:
    """The line of the user's file that raised, what the outputs and labels were, and what to do.

    Args:
        arguments: what the function was called with: outputs by name first, then the labels where it got any.
    """
    texts, labelled = [_line_text(error)], len(arguments) > 1
    if arguments and isinstance(arguments[0], Mapping):
        texts.append(_outputs_text(error, arguments[0]))
    if labelled:
        texts.append(_labels_text(arguments[1], type(error)))
    name = _missing_name(error, arguments[1]) if labelled else None
    if name is None:
        texts.append("Correct the metric.")
    else:
        texts.append(
            f"The metric asks for the label {name!r}, and {_names_text(arguments[1])}: correct the name in the metric, "
            f"or name the array 'labels.{name}' in the data."
        )
    return " ".join(text for text in texts if text)


def _missing_name(error: Exception, labels: NDArray[Any] | None) -> str | None:
    """The label that the metric reads by a name that the data do not have; None if that is not the error."""
    if labels is None or not isinstance(error, (ValueError, KeyError, IndexError)):
        return None
    own = _own_frame(error)
    read = re.findall(r"""\[\s*["'](\w+)["']\s*\]""", own.line or "") if own is not None else []
    if not labels.dtype.names:
        one = isinstance(error, IndexError) and len(read) == 1
        return read[0] if one and "only integers" in str(error) else None
    match = re.fullmatch(r"no field of name (.+)", str(error.args[0]) if error.args else "")
    return match[1] if match else None


def _names_text(labels: NDArray[Any]) -> str:
    if not labels.dtype.names:
        return "the data have one array 'labels'"
    return f"the data have {', '.join(repr(f'labels.{name}') for name in labels.dtype.names)}"


def _line_text(error: Exception) -> str:
    """The innermost line of the first file that is not bitfront's."""
    own = _own_frame(error)
    return "" if own is None else f"It was raised at {Path(own.filename).name}, line {own.lineno}: `{own.line}`."


def _own_frame(error: Exception) -> traceback.FrameSummary | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _HERE not in Path(frame.filename).parents]
    return [frame for frame in frames if frame.filename == frames[0].filename][-1] if frames else None


def _outputs_text(error: Exception, outputs: Mapping[str, Any]) -> str:
    """The names of the outputs where another name was asked for, else how they are read and what they hold."""
    if not isinstance(error, KeyError):
        arrays = [(name, array) for name, array in outputs.items() if isinstance(array, np.ndarray)][:_MOST_NAMED]
        parts = [f"outputs[{name!r}] is {array.dtype} of shape {rows_shape(array.shape)}" for name, array in arrays]
        return f"Here {', '.join(parts)}." if parts else ""
    if error.args and error.args[0] in outputs:
        return ""
    many = "outputs of the model are" if len(outputs) > 1 else "only output of the model is"
    return f"The {many} {', '.join(map(repr, outputs))}."


def _labels_text(labels: NDArray[Any] | None, kind: type[Exception]) -> str:
    if labels is None:
        return "The data have no labels, so labels is None."
    if labels.dtype.names:
        parts = ", ".join(
            f"labels[{name!r}] is {labels[name].dtype} of shape {rows_shape(labels[name].shape)}"
            for name in labels.dtype.names
        )
        return f"Here {parts}."
    text = f"Here labels is one array, {labels.dtype} of shape {rows_shape(labels.shape)}"
    if issubclass(kind, (IndexError, KeyError)):
        return f"{text}; several labels, which are read as labels['NAME'], are arrays 'labels.NAME' in the data."
    return f"{text}."
