"""The slots of worker processes on one host: one GPU each, or CPU cores of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluators.backends.kind import BackendKind
from search.errors import ConfigError
from studies.options.config import SearchConfig
from studies.options.value_kinds import read_gpus

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Slot:
    """Where one worker process runs.

    Attributes:
        name: for people: `gpu 0`, `cpu 3`.
        cpus: processors that it is bound to; empty if it is not bound.
        environment: variables that it gets beside those of its parent.
    """

    name: str
    cpus: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)


def slots_of(config: SearchConfig, kind: BackendKind, *, nvml: Any = None) -> tuple[Slot, ...]:
    """The slots that `--gpus` or `--workers` ask for; empty if this process is to work itself.

    Args:
        kind: of the backend that `config.backend` stands for here.

    Raises:
        ConfigError: these options do not go together, or there are not so many GPUs or cores.
        TargetError: GPUs cannot be counted.
    """
    if config.gpus is None and config.workers is None:
        return ()
    if config.gpus is not None and config.workers is not None:
        raise ConfigError(
            "--gpus and --workers were both given. Give --gpus for a worker per GPU, or --workers for workers on CPU "
            "cores."
        )
    if config.gpus is not None:
        if "device" in config.given and config.device not in ("auto", "cuda"):
            raise ConfigError(
                f"--gpus and --device {config.device} were both given. Leave --device out, because --gpus selects the "
                "GPUs."
            )
        return gpu_slots(config.gpus, nvml=nvml)
    if kind.runs_on_gpu(None if config.device == "auto" else config.device):
        where = f"backend {kind.name}" if config.device == "auto" else f"--device {config.device}"
        raise ConfigError(
            f"--workers {config.workers}: expected a search on the CPU, got {where}. Two processes that measure on one "
            "GPU "
            "disturb each other. Give --gpus instead, which starts one worker per GPU."
        )
    return cpu_slots(config.workers or 1, config.threads)


def gpu_slots(gpus: str, *, nvml: Any = None) -> tuple[Slot, ...]:
    """One slot per GPU, the processors divided among them.

    Args:
        gpus: `all`, how many (`2`: the first two), or which (`0,2`), numbered as nvidia-smi does; where
            CUDA_VISIBLE_DEVICES is set, by their places in it.
        nvml: the pynvml module; imported where it is not given.

    Raises:
        ConfigError: it or CUDA_VISIBLE_DEVICES cannot be read, or there are not so many.
        TargetError: GPUs cannot be counted.
    """
    from evaluators.backends.nvidia.discovery import VISIBLE, visible_gpus  # options are read by every command

    read_gpus(gpus)
    devices = visible_gpus(nvml)
    numbers = _numbers(gpus, len(devices))
    shares = divide_processors(len(numbers))
    return tuple(
        Slot(f"gpu {number}", cpus, {VISIBLE: devices[number]}) for number, cpus in zip(numbers, shares, strict=True)
    )


def cpu_slots(count: int, threads: int) -> tuple[Slot, ...]:
    """`count` slots of `threads` cores each; hyperthreads of one core are never two slots, they disturb each other.

    Raises:
        ConfigError: this process may not use so many cores.
    """
    cores = [core[0] for core in usable_cores()]
    if count * threads > len(cores):
        raise ConfigError(
            f"--workers {count}: expected at most one worker per {_cores(threads)}, and this process may use "
            f"{_cores(len(cores))}. Give --workers {max(1, len(cores) // threads)}"
            + (", or fewer --threads." if threads > 1 else ".")
        )
    return tuple(Slot(f"cpu {i}", frozenset(cores[i * threads : (i + 1) * threads])) for i in range(count))


def divide_processors(count: int) -> tuple[frozenset[int], ...]:
    """The usable processors in `count` equal shares of whole cores; empty shares where there are too few."""
    cores = usable_cores()
    each = len(cores) // count
    return tuple(frozenset(cpu for core in cores[i * each : (i + 1) * each] for cpu in core) for i in range(count))


def usable_cores() -> list[tuple[int, ...]]:
    """The processors that this process may use, those of one core together, neighbours on one socket first."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(usable):
        cores.setdefault(_core_of(cpu), []).append(cpu)
    return [tuple(cores[key]) for key in sorted(cores)]


@contextmanager
def bound(cpus: frozenset[int]) -> Iterator[None]:
    """What this thread starts meanwhile is bound to these processors; with none, to those of this process."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _numbers(gpus: str, there: int) -> list[int]:
    from evaluators.backends.nvidia.discovery import visible_text

    if gpus == "all":
        return list(range(there))
    named = [int(number) for number in gpus.split(",")]
    numbers = named if len(named) > 1 else list(range(named[0]))
    if max(numbers) >= there:
        hidden = f" ({visible_text()})" if visible_text() else ""
        last = f", numbered 0 to {there - 1}" if there > 1 else ", number 0"
        raise ConfigError(f"--gpus {gpus}: there {'are' if there > 1 else 'is'} {there}{last}{hidden}. Give all.")
    return numbers


def _core_of(cpu: int) -> tuple[int, int]:
    """(socket, core) of a processor; each is a core of its own where the system does not tell."""
    try:
        folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
        return tuple(int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))  # type: ignore[return-value]
    except (OSError, ValueError):
        return 0, cpu


def _cores(count: int) -> str:
    return f"{count} core" + "s" * (count != 1)
