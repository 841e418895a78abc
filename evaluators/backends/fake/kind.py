"""The description of the fake backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.backends.fake.options import CAUTION, NAME, FakeOptions
from evaluators.backends.kind import BackendKind, Check, Machine, rows_of
from search.errors import ConfigError

if TYPE_CHECKING:
    from evaluators.engine import Backend


class FakeKind(BackendKind):
    """Invented numbers, at once. It needs ONNX Runtime for the float model's outputs, and for calibration."""

    name = NAME
    engine_file = "model.fake.json"
    default_device = "none"
    module = "onnxruntime"
    extra = "cpu"
    options = rows_of(FakeOptions)
    caution = CAUTION

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        from evaluators.backends.fake.backend import FakeBackend

        try:
            repeated = {name: tuple(options.get(name, ())) for name in ("faults", "precisions")}
            settled = FakeOptions(**{**options, **repeated})
        except TypeError as error:
            raise ConfigError(f"opening backend fake: {error}. docs/backends.md lists its options.") from error
        return FakeBackend(device, settled)

    def devices(self, machine: Machine) -> tuple[str, ...]:
        """None, so that a machine on which nothing real can run does not pass for one that can."""
        return ()

    def checks(self, machine: Machine) -> Sequence[Check]:
        return [Check("fake", True, f"a test double, not for your models and never taken by auto: {CAUTION}")]
