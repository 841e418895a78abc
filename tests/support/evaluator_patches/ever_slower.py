"""A machine on which every engine takes a tenth longer than the one that was loaded before it, by a planted clock."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.session import OnnxRuntimeSession

LOADED = itertools.count()
load = OnnxRuntimeSession.__init__


def load_slower(session: OnnxRuntimeSession, *arguments: Any) -> None:
    load(session, *arguments)
    session.planted_ms = 1.1 ** next(LOADED)  # type: ignore[attr-defined]


def planted_time(session: OnnxRuntimeSession, count: int) -> NDArray[np.float64]:
    return np.full(count, session.planted_ms)  # type: ignore[attr-defined]


OnnxRuntimeSession.__init__ = load_slower  # type: ignore[method-assign]
OnnxRuntimeSession.time = planted_time  # type: ignore[method-assign]
