"""The engines of a guard: opening exported folders with ONNX Runtime and TensorRT, and the safe one in need."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.guard.agreement import all_finite
from studies.guard.forks import renew_in_children
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
    from evaluators.backends.onnxruntime.session import OnnxRuntimeSession, open_session

    opened = OnnxRuntimeDevice(device or "cpu", threads or int(manifest["target"]["options"].get("threads", 1)))

    def open_one() -> OnnxRuntimeSession:
        return open_session(opened, folder / "model.onnx", opened.session_options())

    return _OnnxRuntimeEngine(open_one, folder if opened.cuda else None)


_left: list[Any] = []  # sessions of parents: ending one would wait for threads that a forked process does not have


class _OnnxRuntimeEngine:
    """Runs a session, and opens it again in a forked process, where its threads are missing and its locks may be held.

    Args:
        open_one: opens the session.
        on_gpu: the folder of an engine on a GPU, which no forked process can use; None for one on the processor.
    """

    def __init__(self, open_one: Callable[[], Any], on_gpu: Path | None) -> None:
        self._open_one, self._on_gpu = open_one, on_gpu
        self._pid, self._opening = os.getpid(), Lock()
        self._session = open_one()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        _left.append(self._session)
        self._session, self._opening = None, Lock()

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        from evaluators.backends.onnxruntime.session import meaning_of

        opened = self._session or self._open_again()
        try:
            return dict(zip(opened.outputs, opened.session.run(opened.outputs, dict(inputs)), strict=True))
        except Exception as error:
            raise meaning_of(error) from error

    def _open_again(self) -> Any:
        if self._on_gpu is not None:
            _refuse_forked(self._on_gpu, self._pid)
        with self._opening:
            self._session = self._session or self._open_one()
            return self._session


def _refuse_forked(folder: Path, pid: int) -> None:
    """Raises GuardError in another process than the one that opened an engine on a GPU."""
    if os.getpid() != pid:
        raise GuardError(
            f"running the engine of {folder}: it was opened on a GPU in process {pid}, from which this one was forked, "
            "and CUDA works in no forked process. Open the guard in each worker, for example in gunicorn's post_fork, "
            "or do not load the application before the fork (no --preload)."
        )


def _open_tensorrt(folder: Path, plugins: Sequence[str], device: str | None) -> Run:
    from evaluators.backends.nvidia.discovery import cuda_index
    from evaluators.backends.tensorrt.device import cudart, make_current
    from evaluators.backends.tensorrt.session import open_plan

    named, pid = device or "cuda", os.getpid()
    session, index = open_plan(folder / "model.plan", named, plugins), cuda_index(named) or 0
    cuda, lock = cudart(), Lock()

    def run(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        _refuse_forked(folder, pid)
        with lock:
            make_current(cuda, index)
            return session.run(inputs)

    def close() -> None:
        if os.getpid() == pid:
            session.close()

    # As the function goes, what it holds on the device goes too; at the end of the process the driver sees to that.
    weakref.finalize(run, close).atexit = False
    return run


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
