"""Backends by name: those of this package, those that other packages register, and those named by module and class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.backends.kind import BackendKind
from search.errors import TargetError
from search.extensions import Extensible
from search.references import names_function
from search.space.capability_rules import CapabilityRules

if TYPE_CHECKING:
    from evaluators.engine import Backend

BACKENDS: Extensible[BackendKind] = Extensible(
    option="--backend",
    base=BackendKind,  # type: ignore[type-abstract]
    shipped={  # `auto` takes the first that may be chosen and has what it needs
        "tensorrt": "evaluators.backends.tensorrt.kind:TensorRTKind",
        "onnxruntime": "evaluators.backends.onnxruntime.kind:OnnxRuntimeKind",
        "openvino": "evaluators.backends.openvino.kind:OpenVinoKind",
        "fake": "evaluators.backends.fake.kind:FakeKind",
    },
    group="bitfront.backends",
    error=TargetError,
    others=("auto",),
    facts=("name", "engine_file"),
)


def kind_named(name: str) -> BackendKind:
    """The backend of a name: one of `BACKENDS.names()`, or `package.module:Class`; never `auto`.

    Raises:
        TargetError: there is no such backend, or what is named is none.
        DataError: a module that is named cannot be imported.
    """
    return BACKENDS.make(name)


def known_kind(name: str) -> BackendKind | None:
    """The kind of a backend that a stored target or manifest names: shipped, or registered by an installed package.

    None for one that nobody registered: it is never imported because a file names it.
    """
    if names_function(name):
        return None
    names = [name] if name in BACKENDS.shipped else [each for each in BACKENDS.names() if each not in BACKENDS.shipped]
    return next((kind for kind in map(BACKENDS.make, names) if kind.name == name), None)


def kind_of_file(path: Path) -> BackendKind | None:
    """The kind whose engines end as a file does; None if none's do."""
    return next((kind for kind in map(BACKENDS.make, BACKENDS.names()) if path.suffix in kind.engine_suffixes), None)


def shipped_kinds() -> tuple[BackendKind, ...]:
    """The backends of this package."""
    return tuple(BACKENDS.make(name) for name in BACKENDS.shipped)


def choose_backend(name: str, device: str | None = None) -> str:
    """The backend that `auto` stands for here; any other name is checked and returned.

    Args:
        device: that it is to run on: for a processor `auto` is none that needs a GPU. None for the backend's default.

    Raises:
        TargetError: no such backend, or `auto` with none that can run here.
        DataError: a module that is named cannot be imported.
    """
    if name != "auto":
        kind_named(name)
        return name
    candidates = _automatic(device)
    missing = {kind.name: kind.explain_missing() for kind in candidates}
    usable = [name for name, why in missing.items() if not why]
    if not usable:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise TargetError(
            f"choosing a backend: none can run here ({reasons}). Install one of them. The extra gpu instead of cpu "
            "is ONNX Runtime for a machine with an NVIDIA GPU."
        )
    return usable[0]


def _automatic(device: str | None) -> list[BackendKind]:
    """The backends that `auto` may be, in order."""
    kinds = [kind for kind in shipped_kinds() if kind.automatic]
    return [kind for kind in kinds if device is None or kind.runs_on_gpu(device) or not kind.runs_on_gpu(None)]


def choice_text(name: str, device: str | None = None) -> str:
    """The backend that `choose_backend` gives, and of `auto` why it is that one; raises as that."""
    chosen = choose_backend(name, device)
    if name != "auto":
        return chosen
    kind = kind_named(chosen)
    if kind.rival_merit and not kind.runs_on_gpu(device) and not kind_named(kind.rival).explain_missing():
        return f"{chosen}, by a fixed order; {kind.rival} {kind.rival_merit} (take it by --backend {kind.rival})"
    order = ", ".join(kind.name for kind in _automatic(device))
    return f"{chosen}, the first of {order} that can run here"


def open_backend(
    name: str, device: str | None, options: Mapping[str, Any], rules: CapabilityRules | None = None
) -> Backend:
    """Open a backend on a device.

    Args:
        name: as `kind_named` takes it, or `auto`.
        device: in the backend's own spelling; None for its default.
        options: by keyword, as `BackendKind.open` takes them.
        rules: of a capabilities file, which leave less of what it offers.

    Raises:
        TargetError: no such backend, it is not installed, there is no such device, or it offers what lowering cannot
            write.
        ConfigError: an option or the capabilities file does not fit.
    """
    kind = kind_named(choose_backend(name, device))
    opened = kind.open_symmetric if rules is not None and rules.symmetric else kind.open
    backend = opened(device or kind.default_device, options)
    _check_offers(kind, backend)
    if rules is None:
        return backend
    from evaluators.backends.capabilities.restricted import RestrictedBackend  # it imports what runs models

    return RestrictedBackend(backend, rules)


def _check_offers(kind: BackendKind, backend: Backend) -> None:
    """Refuse what a backend offers and lowering cannot write: it would run in FP32 without a word."""
    from evaluators.lowering.float_types import why_not_written

    for precision, ops in backend.capability().ops.items():
        for op in sorted(ops):
            if why := why_not_written(precision, op):
                name = precision.label.upper()
                raise TargetError(
                    f"opening backend {kind.name}: it offers {name} to {op}, but lowering cannot write "
                    f"{why}. Leave {op} out of what its `capability` offers in {name}."
                )
