"""Converting values to JSON and back, for the connection to the evaluator process. No pickle is used.

What may go over the line is read from its Protocols. Of libraries, msgspec was tried: it refuses text with lone
surrogates, as names of files and messages about them may be, and its JSON turns NaN into null. cattrs adds 20 ms of
processor time to every start.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from evaluators.process.requests import value_types

_TYPES = {cls.__name__: cls for cls in value_types()}
_ENUMS: dict[str, type[Enum]] = {name: cls for name, cls in _TYPES.items() if issubclass(cls, Enum)}
_JSON: dict[str, Any] = {name: cls for name, cls in _TYPES.items() if hasattr(cls, "from_json")}
_PLAIN: dict[str, Any] = {name: cls for name, cls in _TYPES.items() if name not in _ENUMS | _JSON}


def dumps(value: Any) -> str:
    """One line of ASCII: JSON, and NaN and infinity as Python spells them.

    Knows the values of `search.values` and of the line, paths, numpy arrays and scalars (these become Python's),
    tuples, dicts and plain JSON.

    Raises:
        TypeError: any other value, arrays of objects or of named fields among them.
    """
    return json.dumps(_encode(value))


def loads(text: str) -> Any:
    """The value that `dumps` was given; raises ValueError for anything else."""
    try:
        return _decode(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message of this line: {type(error).__name__}: {error}") from error


def _encode(value: Any) -> Any:
    cls = type(value)
    kind = cls.__name__
    if _ENUMS.get(kind) is cls:
        return {"~": "enum", "type": kind, "value": value.value}
    if _JSON.get(kind) is cls:
        return {"~": "json", "type": kind, "value": value.to_json()}
    if _PLAIN.get(kind) is cls:
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"~": "value", "type": kind, "value": fields}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufcSU":
            raise TypeError(f"an array of {value.dtype} cannot go over the line: only numbers and text can")
        data = base64.b64encode(value.tobytes()).decode()
        return {"~": "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return {"~": "path", "value": str(value)}
    if isinstance(value, tuple):
        return {"~": "tuple", "value": [_encode(item) for item in value]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        if "~" not in value and all(isinstance(key, str) for key in value):
            return {key: _encode(item) for key, item in value.items()}
        return {"~": "dict", "value": [[_encode(key), _encode(item)] for key, item in value.items()]}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("~")
    if kind is None:
        return {key: _decode(item) for key, item in value.items()}
    if kind == "enum":
        return _ENUMS[value["type"]](value["value"])
    if kind == "json":
        return _JSON[value["type"]].from_json(value["value"])
    if kind == "value":
        return _PLAIN[value["type"]](**{name: _decode(item) for name, item in value["value"].items()})
    if kind == "path":
        return Path(value["value"])
    if kind == "array":
        data = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    if kind == "tuple":
        return tuple(_decode(item) for item in value["value"])
    if kind == "dict":
        return {_decode(key): _decode(item) for key, item in value["value"]}
    raise ValueError(f"unknown kind {kind!r} on the wire")
