"""Converting values to JSON and back, for the connection to the evaluator process. No pickle is used.

What a message holds is read as the types that the Protocols of the line name. Values become plain ones and come back
by msgspec, JSON is Python's own: msgspec's refuses lone surrogates, as names of files and messages about them may have,
and turns NaN into null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np


def dumps(value: Any) -> str:
    """One line of ASCII: JSON, and NaN and infinity as Python spells them.

    Knows what msgspec knows, paths, numpy arrays and scalars (these become Python's) and what has `to_json`.

    Raises:
        TypeError: any other value, arrays of objects or of named fields among them.
    """
    return json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode))


def read(value: Any, kind: Any) -> Any:
    """A value of a type, as an annotation has it, from the plain JSON that `dumps` made of it.

    Where the type leaves it open, as `Any` and `Sequence` do, JSON's own comes back: a list, a text.

    Raises:
        ValueError: it is no value of the type.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_decode)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message of this line: {type(error).__name__}: {error}") from error


def read_arguments(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """As `read`, of every argument of a request."""
    return {name: read(value, kinds[name]) for name, value in values.items()}


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufcSU":
            raise TypeError(f"an array of {value.dtype} cannot go over the line: only numbers and text can")
        data = base64.b64encode(value.tobytes()).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    raise TypeError(f"a value of type {type(value).__name__} cannot go over the line")


def _decode(kind: Any, value: Any) -> Any:
    if get_origin(kind) is np.ndarray:
        data = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    return Path(value) if kind is Path else kind.from_json(value)
