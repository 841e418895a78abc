"""A fake engine that runs: the outputs of the float model with invented errors, and invented times."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.fake.costs import SAMPLE_NOISE
from evaluators.backends.onnxruntime.emulation import Emulated
from evaluators.engine import Arrays, Session

_MOST_KEPT_BYTES = 256 * 2**20


class FloatOutputs:
    """Outputs of a model, kept by the inputs' content: a search scores every candidate on the same samples.

    Args:
        open_session: opens the model, when first needed.
    """

    def __init__(self, open_session: Callable[[], Session | Emulated]) -> None:
        self._open = open_session
        self._session: Session | Emulated | None = None
        self._kept: OrderedDict[str, Arrays] = OrderedDict()
        self._kept_bytes = 0

    def of(self, inputs: Mapping[str, NDArray[Any]], digest: str) -> Arrays:
        """Outputs by name; not to be written to."""
        outputs = self._kept.get(digest)
        if outputs is None:
            if self._session is None:
                self._session = self._open()
            outputs = self._kept[digest] = self._session.run(inputs)
            self._kept_bytes += _size(outputs)
            while self._kept_bytes > _MOST_KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= _size(self._kept.popitem(last=False)[1])
        return outputs


class FakeSession:
    """One engine file that was loaded.

    Args:
        outputs: of the float model.
        error: of the outputs, over their power; by output where a mapping is given. NaN makes them NaN.
        latency_ms: of one inference, without noise.
        memory_bytes: invented too.
        seed: of the noise of its times.
    """

    types: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        outputs: FloatOutputs,
        error: float | Mapping[str, float],
        latency_ms: float,
        memory_bytes: int,
        seed: int,
    ) -> None:
        self.memory_bytes: int | None = memory_bytes
        self._outputs = outputs
        self._error = error
        self._latency_ms = latency_ms
        self._rng = np.random.default_rng(seed)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        digest = _digest(inputs)
        exact = self._outputs.of(inputs, digest)
        return {name: self._with_error(name, array, digest) for name, array in exact.items()}

    def _with_error(self, name: str, array: NDArray[Any], digest: str) -> NDArray[Any]:
        """Floats with noise whose direction follows the inputs alone: less error is less change, sample by sample."""
        error = self._error if isinstance(self._error, float) else self._error[name]
        if array.dtype.kind != "f" or error == 0:
            return np.array(array)
        power = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0
        direction = np.random.default_rng(int(digest[:16], 16)).standard_normal(array.shape)
        return np.asarray(array + power * np.sqrt(error) * direction, array.dtype)

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Nothing runs."""

    def time(self, count: int) -> NDArray[np.float64]:
        return np.asarray(self._latency_ms * (1 + SAMPLE_NOISE * self._rng.standard_normal(count)))

    def around(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def _digest(inputs: Mapping[str, NDArray[Any]]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        hasher.update(name.encode())
        hasher.update(np.ascontiguousarray(inputs[name]).data if inputs[name].size else b"")
    return hasher.hexdigest()


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
