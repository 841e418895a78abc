"""Backends by name: those of this package, those that other packages register, and those named by module and class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from evaluators.backends.kind import BackendKind
from search.errors import TargetError

if TYPE_CHECKING:
    from evaluators.engine import Backend

GROUP = "bitfront.backends"  # of entry points, by which other packages register theirs
SHIPPED = {  # `auto` takes the first that may be chosen and has what it needs
    "tensorrt": "evaluators.backends.tensorrt.kind:TensorRTKind",
    "onnxruntime": "evaluators.backends.onnxruntime.kind:OnnxRuntimeKind",
    "fake": "evaluators.backends.fake.kind:FakeKind",
}
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def kind_named(name: str) -> BackendKind:
    """The backend of a name: one of `names`, or `package.module:Class`; never `auto`.

    Raises:
        TargetError: there is no such backend, or what is named is none.
        DataError: a module that is named cannot be imported.
    """
    if name in SHIPPED:
        return _shipped(name)
    if _REFERENCE.fullmatch(name):
        from search.references import import_function  # with the current folder importable, as for metrics

        return _made(import_function(name, "--backend"), name)
    if name in (registered := _registered()):
        return _made(_loaded(registered[name]), name)
    raise TargetError(
        f"--backend {name}: there is no such backend; known are auto, {', '.join(names())}, and package.module:Class."
    )


def names() -> tuple[str, ...]:
    """Every backend that is registered, those of this package first."""
    return (*SHIPPED, *sorted(_registered().keys() - SHIPPED.keys()))


def shipped_kinds() -> tuple[BackendKind, ...]:
    """The backends of this package."""
    return tuple(_shipped(name) for name in SHIPPED)


def choose_backend(name: str) -> str:
    """The backend that `auto` stands for here; any other name is checked and returned.

    Raises:
        TargetError: no such backend, or `auto` with none that can run here.
        DataError: a module that is named cannot be imported.
    """
    if name != "auto":
        kind_named(name)
        return name
    candidates = [kind for kind in shipped_kinds() if kind.automatic]
    missing = {kind.name: kind.missing() for kind in candidates}
    usable = [name for name, why in missing.items() if not why]
    if not usable:
        found = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise TargetError(
            f"choosing a backend: none can run here ({found}). Install one of them; 'bitfront[gpu]' is ONNX Runtime "
            "for a machine with an NVIDIA GPU."
        )
    return usable[0]


def open_backend(name: str, device: str | None, options: Mapping[str, Any]) -> Backend:
    """Open a backend on a device.

    Args:
        name: as `kind_named` takes it, or `auto`.
        device: in the backend's own spelling; None for its default.
        options: by keyword, as `BackendKind.open` takes them.

    Raises:
        TargetError: no such backend, it is not installed, or there is no such device.
        ConfigError: an option does not fit.
    """
    kind = kind_named(choose_backend(name))
    return kind.open(device or kind.default_device, options)


@cache
def _shipped(name: str) -> BackendKind:
    module, _, attribute = SHIPPED[name].partition(":")
    made: BackendKind = getattr(import_module(module), attribute)()
    return made


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise TargetError(
            f"--backend {point.name}: loading {point.value}, which an installed package registers, failed with "
            f"{type(error).__name__}: {error}. Mend or remove that package."
        ) from error


def _made(found: Any, name: str) -> BackendKind:
    """A kind from its class.

    Raises:
        TargetError: it is no class of a kind, or lacks what every kind has.
    """
    if not (isinstance(found, type) and issubclass(found, BackendKind)):
        raise TargetError(f"--backend {name}: expected a subclass of BackendKind, got {found!r}. Name its class.")
    lacking = [fact for fact in ("name", "engine_file") if not getattr(found, fact, "")]
    try:
        kind: BackendKind = found()
    except TypeError as error:
        raise TargetError(f"--backend {name}: {found.__name__} cannot be made: {error}. Mend the class.") from error
    if lacking:
        raise TargetError(f"--backend {name}: {found.__name__} does not say its {' and '.join(lacking)}. Add them.")
    return kind
