"""What this machine can run, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.backends.registry import open_backend
from search.errors import TargetError
from studies import environment


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report; `advice` says what to do when `good` is False."""

    name: str
    good: bool
    found: str
    advice: str = ""


def checks() -> list[Check]:
    """Versions first, then every backend with what it runs natively here."""
    facts = environment.collect()
    lines = [
        Check("python", True, str(facts["python"])),
        Check("processor", True, f"{facts['cpu']['model']}, {facts['cpu']['cores']} cores"),
    ]
    lines += [Check(name, True, str(version)) for name, version in facts["packages"].items() if version]
    lines += [_gpu_line(gpu) for gpu in facts["gpus"]] or [Check("gpu", True, "none found by nvidia-smi")]
    return [*lines, _backend_line("onnxruntime", "cpu"), *(_cuda_lines() if facts["gpus"] else [])]


def _gpu_line(gpu: object) -> Check:
    return Check("gpu", True, ", ".join(str(v) for v in gpu.values()) if isinstance(gpu, dict) else str(gpu))


def _cuda_lines() -> list[Check]:
    return [_backend_line("onnxruntime", "cuda"), _backend_line("tensorrt", "cuda")]


def _backend_line(name: str, device: str) -> Check:
    title = f"backend {name} on {device}"
    try:
        backend = open_backend(name, device, {})
        native = ", ".join(p.label for p in backend.capability().precisions)
        target = backend.target()
    except TargetError as error:
        return Check(title, False, "cannot run", str(error))
    return Check(title, True, f"{target.device}; native precisions: {native}; options {dict(target.options)}")
