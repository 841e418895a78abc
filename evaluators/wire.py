"""Values as JSON and back, for the line between the evaluator process and its keeper. No pickle."""

from __future__ import annotations

import base64
import dataclasses
import json
from enum import Enum
from typing import Any

import numpy as np

from search.values import (
    Accuracy,
    Answer,
    Assignment,
    AuditRow,
    Capability,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Precision,
    Stage,
    Target,
)

_PLAIN = {cls.__name__: cls for cls in (Accuracy, AuditRow, Evaluation, Failure, Latency)}
_JSON = {cls.__name__: cls for cls in (Assignment, Capability, Target)}
_ENUMS: dict[str, type[Enum]] = {cls.__name__: cls for cls in (Answer, FailureKind, Precision, Stage)}


def dumps(value: Any) -> str:
    """One line of JSON. Knows the values of `search.values`, numpy arrays, tuples and plain JSON."""
    return json.dumps(_encode(value))


def loads(text: str) -> Any:
    """The value that `dumps` was given; raises ValueError for anything else."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, Enum):
        return {"~": "enum", "type": kind, "value": value.value}
    if kind in _JSON:
        return {"~": "json", "type": kind, "value": value.to_json()}
    if kind in _PLAIN:
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"~": "value", "type": kind, "value": fields}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"~": "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"~": "tuple", "value": [_encode(item) for item in value]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
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
    if kind == "array":
        data = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    if kind == "tuple":
        return tuple(_decode(item) for item in value["value"])
    raise ValueError(f"unknown kind {kind!r} on the wire")
