"""OpenVINO on the processor: its module, the settings of what it compiles, and the translation of its errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluators.backends.processor import clock_of
from evaluators.backends.run_script.openvino_engine import safe_properties
from evaluators.engine import OutOfMemoryError, RefusedError
from evaluators.held_folders import held_folder
from search.errors import BitfrontError, TargetError
from search.graph import packed_file
from search.installation import install_command

NAME = "openvino"
_DEVICE, _TELEMETRY = "CPU", "openvino_telemetry"
# Lines of its errors that say where in its code they were raised.
_WHERE = re.compile(r"Exception from |Check '|FrontEnd API failed|Summary:")
_NO_MEMORY = re.compile(r"Failed to allocate|bad_alloc|out of memory", re.IGNORECASE)


def engine_settings(threads: int) -> dict[str, Any]:
    """Properties of an engine that is measured, by OpenVINO's names, as plain values.

    Types are those of the graph: by default OpenVINO computes FP32 in BF16 where the processor has that, and rounds
    activations to INT8 in groups of 32 before products with INT8 weights.
    """
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
    }


class OpenVinoDevice:
    """The processor, as OpenVINO runs engines on it.

    Args:
        name: `cpu`.
        threads: of one inference.

    Attributes:
        ov: the openvino module.
        version: of OpenVINO, for example `2026.4.1`.
        clock: what inferences are timed by.

    Raises:
        TargetError: OpenVINO is not installed or has no plugin for the processor, or the device is another one.
    """

    def __init__(self, name: str, threads: int) -> None:
        if name != "cpu":
            raise TargetError(
                f"--device {name}: backend openvino runs on the processor alone: expected cpu. Leave --device out."
            )
        self.ov = import_openvino()
        self.name = name
        self.threads = threads
        self.clock = clock_of(threads)
        self.version = str(self.ov.__version__).partition("-")[0]
        with refusals():
            self._core = self.ov.Core()
            devices = self._core.available_devices
        if _DEVICE not in devices:
            raise TargetError(
                f"starting backend openvino: OpenVINO {self.version} has no plugin for the processor; it has "
                f"{', '.join(devices) or 'none'}. Install it again: {install_command(NAME)}."
            )

    def native_types(self) -> tuple[str, ...]:
        """What the kernels of this processor compute in, by OpenVINO's names: `FP32`, `INT8`, `BF16`."""
        return tuple(self._core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES"))

    def compile(self, path: Path, **more: Any) -> tuple[Any, tuple[str, ...]]:
        """Compile an ONNX file, packed or not.

        Args:
            more: properties beside `engine_settings`.

        Returns:
            What OpenVINO made of it, and the names of its outputs: passes may give them further ones.

        Raises:
            RefusedError: OpenVINO cannot read it, or cannot compile it.
            OutOfMemoryError: there is not enough memory.
        """
        with refusals(), _as_onnx(path) as file:
            # Named, because a file that is none would be tried as those of all other frameworks.
            frontend = self.ov.frontend.FrontEndManager().load_by_framework("onnx")
            model = frontend.convert(frontend.load(str(file)))
            names = tuple(port.any_name for port in model.outputs)
            if not names:
                raise RefusedError("the file is empty, or an ONNX file without outputs")
            properties = safe_properties(model, {**engine_settings(self.threads), **more})
            return self._core.compile_model(model, _DEVICE, properties), names


@contextmanager
def _as_onnx(path: Path) -> Iterator[Path]:
    """The file itself, or for as long as it is read what a packed one holds."""
    if not path.is_file() or packed_file.read_message(path) is None:
        yield path
        return
    with held_folder() as folder:
        packed_file.copy_as_onnx(path, folder / "model.onnx")
        yield folder / "model.onnx"


def import_openvino() -> Any:
    """The openvino module; raises TargetError with the command that installs it.

    As it is imported it tells Google Analytics so, with a number that it keeps in the home folder, by the package
    openvino-telemetry. Where that cannot be imported, nothing is sent.
    """
    sends = _TELEMETRY not in sys.modules
    if sends:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError as error:
        raise TargetError(
            f"starting backend openvino: the package is not installed ({error}). Install it: {install_command(NAME)}."
        ) from error
    finally:
        if sends:
            del sys.modules[_TELEMETRY]
    return openvino


@contextmanager
def refusals() -> Iterator[None]:
    """Sort OpenVINO's exceptions, which are RuntimeErrors of any kind, into what can be done about them.

    Raises:
        RefusedError: it cannot do what it was asked for.
        OutOfMemoryError: there is not enough memory.
    """
    try:
        yield
    except BitfrontError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(first_lines(error)) from error
    except Exception as error:
        if not isinstance(error, RuntimeError | ValueError | TypeError) and not _is_openvinos(error):
            raise
        kind = OutOfMemoryError if _NO_MEMORY.search(str(error)) else RefusedError
        raise kind(first_lines(error)) from error


def _is_openvinos(error: Exception) -> bool:
    return type(error).__module__.startswith("openvino")


def first_lines(error: BaseException) -> str:
    """The first two lines of an error that say what is wrong, and not where in OpenVINO's code."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not _WHERE.match(line)]
    return " ".join(said[:2] or [line for line in lines if line][:1] or [type(error).__name__])[:500]
