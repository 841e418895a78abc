"""The engines of a guard: opening exported folders with ONNX Runtime and TensorRT, and the safe one in need."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from studies.guard.agreement import all_finite
from studies.guard.options import FAST, SAFE, GuardError
from studies.guard.reports import TroubleReports

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Mapping[str, NDArray[Any]]], Arrays]
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
    backend = manifest["target"]["backend"]
    if backend == "onnxruntime":
        return _open_onnxruntime(folder, manifest, device, threads)
    if backend == "tensorrt":
        return _open_tensorrt(folder, manifest.get("plugins", ()), device)
    raise GuardError(f"opening a guard: {folder} is an export of backend {backend}, whose engines it cannot run.")


def _open_onnxruntime(folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None) -> Run:
    from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
    from evaluators.backends.onnxruntime.session import meaning_of, open_session

    opened = OnnxRuntimeDevice(device or "cpu", threads or int(manifest["target"]["options"].get("threads", 1)))
    session = open_session(opened, folder / "model.onnx", opened.session_options())
    outputs = session.outputs

    def run(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        try:
            return dict(zip(outputs, session.session.run(outputs, dict(inputs)), strict=True))
        except Exception as error:
            raise meaning_of(error) from error

    return run


def _open_tensorrt(folder: Path, plugins: Sequence[str], device: str | None) -> Run:
    from evaluators.backends.nvidia.discovery import cuda_index
    from evaluators.backends.tensorrt.device import cudart, make_current
    from evaluators.backends.tensorrt.session import open_plan

    named = device or "cuda"
    session, index = open_plan(folder / "model.plan", named, plugins), cuda_index(named) or 0
    cuda, lock = cudart(), Lock()

    def run(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        with lock:
            make_current(cuda, index)
            return session.run(inputs)

    # As the function goes, what it holds on the device goes too; at the end of the process the driver sees to that.
    weakref.finalize(run, session.close).atexit = False
    return run


class SafeEngine:
    """The safe engine of a guard. Any thread may call `answer`.

    Args:
        run: from inputs by name to outputs by name.
        troubles: told if outputs hold NaN or Inf.
    """

    def __init__(self, run: Run, troubles: TroubleReports) -> None:
        self._run, self._troubles = run, troubles

    def answer(self, inputs: Mapping[str, NDArray[Any]], why: str) -> Arrays:
        """Outputs by name.

        Args:
            why: this engine is asked, for messages: `the fast engine raised RuntimeError: no memory`.

        Raises:
            GuardError: the engine raised an error.
        """
        try:
            outputs = self._run(inputs)
        except Exception as error:
            raise GuardError(
                f"answering a request: {why}; the safe engine raised {type(error).__name__}: {error}. No engine can "
                "answer this request. Check its inputs, then the device."
            ) from error
        if all_finite(outputs):
            self._troubles.settle(_SAFE_SOURCE)
        else:
            self._troubles.report(
                _SAFE_SOURCE,
                "the safe engine gave NaN or Inf, and this answer is returned as it is. If the inputs of the request "
                "were finite, the safe engine is broken too.",
            )
        return outputs
