"""The engines of a guard: opening exported folders with their backends, and the safe one in need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.guard.agreement import all_finite
from studies.guard.options import CLASSES, FAST, SAFE, VALUES, GuardError
from studies.guard.reports import TroubleReports

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Mapping[str, NDArray[Any]]], Arrays]
_KINDS = {
    **dict.fromkeys(("top1", "top5", "agreement"), CLASSES),
    **dict.fromkeys(("sqnr", "mse", "cosine"), VALUES),
}
_SAFE_SOURCE = "safe engine"


def name_engines(fast: Run, safe: Run, others: Mapping[str, Run]) -> dict[str, Run]:
    """All engines of a guard by name.

    Raises:
        GuardError: one of the others has the name of the fast or the safe one.
    """
    for name in (FAST, SAFE):
        if name in others:
            raise GuardError(f"making a guard: one of `engines` is called {name!r}, which is taken. Name it otherwise.")
    return {**others, FAST: fast, SAFE: safe}


def open_pair(fast: Path, safe: Path, device: str | None, threads: int | None) -> tuple[Run, Run]:
    """Open two exported folders of one model.

    Args:
        device: `cpu`, `cuda` or `cuda:N`; None for the processor, or the first GPU with TensorRT. With TensorRT it
            becomes the current GPU of every thread that runs an engine.
        threads: of ONNX Runtime on the processor; None for those of the export.

    Raises:
        GuardError: a folder is no export, or they are of different models.
        BitfrontError: the backend cannot open an engine here.
    """
    manifests = [_manifest(folder) for folder in (fast, safe)]
    digests = [manifest["model"]["digest"] for manifest in manifests]
    if digests[0] != digests[1]:
        raise GuardError(
            f"opening a guard: expected two exports of one model, but {fast} is of {digests[0][:12]} and {safe} of "
            f"{digests[1][:12]}. Export both from the same study."
        )
    one, two = (open_engine(f, m, device, threads) for f, m in zip((fast, safe), manifests, strict=True))
    return one, two


def outputs_kind(folder: Path) -> str | None:
    """What the outputs of an export are by the metric of its study; None where that does not say.

    Raises:
        GuardError: the folder is no export.
    """
    metric = _manifest(folder).get("metric")
    return _KINDS.get(str(metric.get("name"))) if isinstance(metric, Mapping) else None


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for key in ("model", "target", "files"):
            manifest[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise GuardError(
            f"opening a guard: expected a folder that `bitfront export` wrote, but {path} cannot be used: "
            f"{type(error).__name__}: {error}."
        ) from error
    return dict(manifest)


def open_engine(folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None) -> Run:
    """The engine of an exported folder, as a function that several threads may call."""
    from evaluators.backends.registry import known_kind

    backend = manifest["target"]["backend"]
    kind = known_kind(backend)
    if kind is None:
        raise GuardError(
            f"opening a guard: {folder} is an export of backend {backend}, which is not installed here. Install the "
            "package that registers it."
        )
    return kind.open_export(folder, manifest, device, threads)


def find_fault(outputs: Any, names: frozenset[str] | None) -> str:
    """What is wrong with the form of an engine's answer, in words that follow its name; empty if nothing is.

    Args:
        names: of the outputs that are expected; None if they are not known yet.
    """
    if not isinstance(outputs, Mapping):
        return f"returned {type(outputs).__name__}, expected a dictionary of NumPy arrays by output name"
    for name, array in outputs.items():
        if not isinstance(array, (np.ndarray, np.generic)):
            return f"gave the output {name!r:.80} as {type(array).__name__}, expected a NumPy array"
        if array.dtype.kind == "O" and not all(isinstance(value, (str, bytes)) for value in np.ravel(array)):
            return f"gave the output {name!r:.80} as an array of Python objects, expected numbers or texts"
    if not outputs or (names is not None and outputs.keys() != names):
        wanted = f"those of the safe engine, {', '.join(sorted(names))}" if names else "at least one"
        return f"gave the outputs {', '.join(sorted(map(str, outputs))) or 'none'}, expected {wanted}"
    return ""


class SafeEngine:
    """The safe engine of a guard. Any thread may call `answer`.

    Args:
        run: from inputs by name to outputs by name.
        troubles: told if outputs hold NaN or Inf.

    Attributes:
        names: of its outputs; None before its first answer.
    """

    def __init__(self, run: Run, troubles: TroubleReports) -> None:
        self._run, self._troubles = run, troubles
        self.names: frozenset[str] | None = None

    def answer(self, inputs: Mapping[str, NDArray[Any]], why: str) -> Arrays:
        """Outputs by name.

        Args:
            why: this engine is asked, for messages: `the fast engine raised RuntimeError: no memory`.

        Raises:
            GuardError: the engine raised an error, or returned something else than outputs.
        """
        try:
            outputs = self._run(inputs)
        except Exception as error:
            raise GuardError(
                f"answering a request: {why}; the safe engine raised {type(error).__name__}: {error}. No engine can "
                "answer this request. Check its inputs, then the device."
            ) from error
        self.check(outputs, f"answering a request: {why}; ")
        if all_finite(outputs):
            self._troubles.settle(_SAFE_SOURCE)
        else:
            self._troubles.report(
                _SAFE_SOURCE,
                "the safe engine gave NaN or Inf, and this answer is returned as it is. If the inputs of the request "
                "were finite, the safe engine is broken too.",
            )
        return outputs

    def check(self, outputs: Any, doing: str) -> None:
        """Learn the names of its outputs from the first ones; raises GuardError for what are no outputs."""
        fault = find_fault(outputs, self.names)
        if fault:
            raise GuardError(f"{doing}the safe engine {fault}. Correct the function that was given as `safe`.")
        self.names = self.names or frozenset(outputs)
