"""Checks of ONNX Runtime's CUDA provider, with advice what to install if it cannot be loaded.

ONNX Runtime itself takes a provider that does not load for no error: the session runs on the processor.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluators.backends.nvidia import discovery
from search.errors import TargetError
from search.installation import install_command

PROVIDER = "CUDAExecutionProvider"
_LIBRARIES = ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so")
_FIRST_FOR_CUDA_13 = "1.27"  # of the wheels on PyPI


def require_compiled_in(ort: Any, device: str) -> None:
    """Load the libraries that CUDA's packages bring, and refuse an onnxruntime without CUDA.

    Args:
        ort: the onnxruntime module.
        device: as it was asked for.

    Raises:
        TargetError: this onnxruntime was built without the provider.
    """
    if hasattr(ort, "preload_dlls"):
        # It prints what it misses; whether the provider loads shows when a session is opened.
        with suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    if PROVIDER not in ort.get_available_providers():
        raise TargetError(
            f"--device {device}: this onnxruntime has no CUDA provider. Replace it: pip uninstall "
            f"onnxruntime; {install_command('gpu')}; or use --device cpu."
        )


def require_loaded(ort: Any, session: Any, device: str, index: int) -> None:
    """Refuse a session that was asked for CUDA and runs on the processor.

    Args:
        ort: the onnxruntime module.
        session: an InferenceSession.
        device: as it was asked for.
        index: of the GPU, as CUDA counts them.

    Raises:
        TargetError: why the provider is not there, and what to install.
    """
    if PROVIDER in session.get_providers():
        return
    folder = Path(ort.__file__).parent / "capi"
    raise TargetError(
        f"--device {device}: ONNX Runtime's CUDA provider cannot be loaded, so the model would run on the CPU: "
        f"{reason(folder, index)}. {advice(ort.__version__, getattr(ort, 'cuda_version', None))} Or use --device cpu."
    )


def reason(folder: Path, index: int) -> str:
    """What the dynamic linker says of the provider's library; where it loads, what the driver says of the GPU.

    Args:
        folder: of ONNX Runtime's libraries.
        index: of the GPU, as CUDA counts them.
    """
    try:
        for name in _LIBRARIES:  # the second takes symbols from the first
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    if discovery.driver_version() is None:
        return "there is no NVIDIA driver, libcuda.so.1 does not load"
    if discovery.gpu_uuid(index) is None:
        visible = discovery.visible_text()
        return f"CUDA finds no GPU {index}" + (f" ({visible})" if visible else "")
    return "its library can be loaded; ONNX Runtime's log on standard error shows the cause"


def advice(version: str, built_for: str | None) -> str:
    """What to install, as a sentence.

    Args:
        version: of onnxruntime-gpu.
        built_for: the CUDA that it was built with, for example `13.0`; None or empty if it does not tell.
    """
    driver = discovery.driver_version()
    if driver is None:
        return "Install NVIDIA's driver; in a container, start it with --gpus all."
    knows, needs = _major(driver), _major(built_for or "")
    built = f"onnxruntime-gpu {version} is built for CUDA {needs}, this driver knows CUDA {driver}"
    if needs > knows:
        older = f"install the last one for CUDA 12: pip install 'onnxruntime-gpu[cuda,cudnn]<{_FIRST_FOR_CUDA_13}'"
        return f"{built}: update the driver" + (f", or {older}." if knows == 12 else ".")
    return (
        f"{built + '. ' if needs else ''}It needs the libraries of CUDA and cuDNN beside the driver: pip install "
        f"'onnxruntime-gpu[cuda,cudnn]=={version}'."
    )


def _major(version: str) -> int:
    """0 if there is none."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
