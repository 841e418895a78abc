"""One device of ONNX Runtime, the CPU or a GPU: its module, providers and session options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.cuda import PROVIDER, require_compiled_in
from search.errors import TargetError
from search.installation import install_command
from search.values import WALL_CLOCK

NAME = "onnxruntime"
_SPINNING = "session.intra_op.allow_spinning"
# ONNX Runtime's own default, written out so that an exported engine can be run with the same.
SESSION_ENTRIES: Mapping[str, str] = MappingProxyType({_SPINNING: "1", "session.inter_op.allow_spinning": "1"})


class OnnxRuntimeDevice:
    """Where sessions run, and with what.

    Args:
        name: `cpu`, `cuda` or `cuda:N`.
        threads: intra-op threads.
        entries: of a session's configuration, by ONNX Runtime's names.

    Attributes:
        ort: the onnxruntime module.
        index: CUDA's of the GPU; None on the processor.

    Raises:
        TargetError: ONNX Runtime or its CUDA provider is not installed, or there is no such device.
    """

    def __init__(self, name: str, threads: int, entries: Mapping[str, str] = SESSION_ENTRIES) -> None:
        self.ort = import_onnxruntime()
        self.name = name
        self.threads = threads
        self._entries = entries
        self.index = discovery.cuda_index(name)
        if self.index is None and name != "cpu":
            raise TargetError(f"--device {name}: expected cpu, cuda or cuda:N for backend onnxruntime.")
        if self.cuda:
            require_compiled_in(self.ort, name)

    @property
    def cuda(self) -> bool:
        return self.index is not None

    @property
    def clock(self) -> str:
        """What inferences are timed by."""
        return clock_of(self.index, self.threads)

    @property
    def sleeps(self) -> bool:
        """Whether the thread that runs an inference sleeps while it waits for the others."""
        return self._entries.get(_SPINNING) == "0"

    def providers(self) -> list[Any]:
        """What a session is opened with; the CUDA provider gets the index of its GPU."""
        return provider_settings(self.index)

    def session_options(self) -> Any:
        """Options of a session that is measured: all optimizations, one op after the other."""
        options, settings = self.ort.SessionOptions(), session_settings(self.threads)
        options.intra_op_num_threads = settings["intra_op_num_threads"]
        options.inter_op_num_threads = settings["inter_op_num_threads"]
        options.execution_mode = getattr(self.ort.ExecutionMode, settings["execution_mode"])
        level = settings["graph_optimization_level"]
        options.graph_optimization_level = getattr(self.ort.GraphOptimizationLevel, level)
        for key, value in self._entries.items():
            options.add_session_config_entry(key, value)
        return options


def clock_of(index: int | None, threads: int) -> str:
    """The clock of a target; `index` is CUDA's of the GPU, None for the processor."""
    if index is not None:
        return WALL_CLOCK
    from evaluators.backends import processor  # whoever only wants this module's names need not import it

    return processor.clock_of(threads)


def session_settings(threads: int) -> dict[str, Any]:
    """Options of a session that is measured, by ONNX Runtime's names, as plain values."""
    return {
        "intra_op_num_threads": threads,
        "inter_op_num_threads": 1,
        "execution_mode": "ORT_SEQUENTIAL",
        "graph_optimization_level": "ORT_ENABLE_ALL",
    }


def provider_settings(index: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Execution providers of a session with their options; `index` is CUDA's of the GPU, None for the processor."""
    cpu: tuple[str, dict[str, Any]] = ("CPUExecutionProvider", {})
    return [cpu] if index is None else [(PROVIDER, {"device_id": index}), cpu]


def import_onnxruntime() -> Any:
    """The onnxruntime module, quiet below errors; raises TargetError with the command that installs it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise TargetError(
            f"starting backend onnxruntime: the package is not installed ({error}). Install it: "
            f"{install_command('cpu')}. On a machine with an NVIDIA GPU install the extra gpu instead of cpu, never "
            "both."
        ) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime
