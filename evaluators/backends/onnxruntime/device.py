"""ONNX Runtime on one device, the processor or a GPU: its module, providers and session options."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.cuda import PROVIDER, require_compiled_in
from search.errors import TargetError

NAME = "onnxruntime"
_INSTALL = "pip install 'bitfront[cpu]' (or 'bitfront[gpu]' on a machine with an NVIDIA GPU; never both)"


class OnnxRuntimeDevice:
    """Where sessions run, and with what.

    Args:
        name: `cpu`, `cuda` or `cuda:N`.
        threads: intra-op threads.

    Attributes:
        ort: the onnxruntime module.
        index: CUDA's of the GPU; None on the processor.

    Raises:
        TargetError: ONNX Runtime or its CUDA provider is not installed, or there is no such device.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.ort = import_onnxruntime()
        self.name = name
        self.threads = threads
        self.index = discovery.cuda_index(name)
        if self.index is None and name != "cpu":
            raise TargetError(f"--device {name}: expected cpu, cuda or cuda:N for backend onnxruntime.")
        if self.cuda:
            require_compiled_in(self.ort, name)

    @property
    def cuda(self) -> bool:
        return self.index is not None

    def providers(self) -> list[Any]:
        """What a session is opened with; the CUDA provider gets the index of its GPU."""
        if not self.cuda:
            return ["CPUExecutionProvider"]
        return [(PROVIDER, {"device_id": self.index}), "CPUExecutionProvider"]

    def session_options(self) -> Any:
        """Of a session that is measured: all optimizations, one op after the other."""
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.execution_mode = self.ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        return options


def import_onnxruntime() -> Any:
    """The onnxruntime module, quiet below errors; raises TargetError with the command that installs it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise TargetError(
            f"starting backend onnxruntime: the package is not installed ({error}). Install it with {_INSTALL}."
        ) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def cpu_model() -> str:
    """The processor's name, say `AMD EPYC 9754`; without clock or core count."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def has_vnni() -> bool:
    """Whether UINT8×INT8 products sum in 32 bits. x86 without it saturates at 16, so weights get 7 bits there."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    with suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text()
        return "avx512_vnni" in flags or "avx_vnni" in flags
    return False
