"""What the user has to know beside the error that a metric of their own raised."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from evaluators.metrics.label_form import rows_shape

_HERE = Path(__file__).parents[1]  # the folder of the code that calls the user's


def own_error_text(error: Exception, arguments: Sequence[Any]) -> str:
    """The line of the user's file that raised, and what the labels were, each after a space.

    Args:
        arguments: what the function was called with: outputs by name first, then the labels where it got any.
    """
    found = [_line_text(error)]
    if isinstance(error, KeyError) and arguments and isinstance(arguments[0], Mapping):
        found.append(_outputs_text(error, arguments[0]))
    if len(arguments) > 1:
        found.append(_labels_text(arguments[1], type(error)))
    return "".join(f" {text}" for text in found if text)


def _line_text(error: Exception) -> str:
    """The innermost line of the first file that is not bitfront's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if not frames:
        return ""
    own = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"It was raised at {Path(own.filename).name}, line {own.lineno}: `{own.line}`."


def _is_ours(file: str) -> bool:
    return _HERE in Path(file).parents


def _outputs_text(error: KeyError, outputs: Mapping[str, Any]) -> str:
    """The names of the outputs, where another name was asked for."""
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
