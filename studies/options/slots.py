"""Where the worker processes of one host run: one GPU each, or processor cores of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import ConfigError

if TYPE_CHECKING:
    from studies.options.config import SearchConfig

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"[0-9]+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Slot:
    """Where one worker process runs.

    Attributes:
        name: for people: `gpu 0`, `cpu 3`.
        cpus: processors that it is bound to; empty where it is not bound.
        environment: variables that it gets beside those of its parent.
    """

    name: str
    cpus: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)


def slots_of(config: SearchConfig, backend: str, *, nvml: Any = None) -> tuple[Slot, ...]:
    """The slots that `--gpus` or `--workers` ask for; empty where this process is to work itself.

    Args:
        backend: that `config.backend` stands for here.

    Raises:
        ConfigError: these options do not go together, or there are not so many GPUs or cores.
        TargetError: GPUs cannot be counted.
    """
    if config.gpus is None and config.workers is None:
        return ()
    if config.gpus is not None and config.workers is not None:
        raise ConfigError(
            "--gpus and --workers: give one; --gpus starts a worker per GPU, --workers on processor cores."
        )
    if config.gpus is not None:
        if "device" in config.given and config.device not in ("auto", "cuda"):
            raise ConfigError(f"--gpus and --device {config.device}: give one; --gpus says which GPUs are used.")
        return gpu_slots(config.gpus, nvml=nvml)
    if backend != "onnxruntime" or config.device not in ("auto", "cpu"):
        where = f"--device {config.device}" if backend == "onnxruntime" else f"backend {backend}"
        raise ConfigError(
            f"--workers {config.workers}: expected the processor, got {where}. Two processes that measure on one GPU "
            "disturb each other: write --gpus, which starts one per GPU."
        )
    return cpu_slots(config.workers or 1, config.threads)


def gpu_slots(asked: str, *, nvml: Any = None) -> tuple[Slot, ...]:
    """One slot per GPU, the processors divided among them.

    Args:
        asked: `all`, how many (`2`: the first two), or which (`0,2`), numbered as nvidia-smi does; where
            CUDA_VISIBLE_DEVICES is set, by their places in it.
        nvml: the pynvml module; imported where it is not given.

    Raises:
        ConfigError: it or CUDA_VISIBLE_DEVICES cannot be read, or there are not so many.
        TargetError: GPUs cannot be counted.
    """
    check_gpus(asked)
    devices = _visible(nvml)
    numbers = _numbers(asked, len(devices))
    shares = divided(len(numbers))
    return tuple(
        Slot(f"gpu {number}", cpus, {_VISIBLE: devices[number]}) for number, cpus in zip(numbers, shares, strict=True)
    )


def check_gpus(text: str, option: str = "--gpus") -> str:
    """The text, where it reads as `gpu_slots` takes it; raises ConfigError."""
    if not re.fullmatch(r"all|[1-9]\d{0,3}|\d{1,4}(,\d{1,4})+", text):
        raise ConfigError(
            f"{option}: expected all, how many, or which, got {text!r}; write all, 2 or 0,2. For a single one write "
            "--device cuda:1 instead."
        )
    numbers = [] if text == "all" else [int(number) for number in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{option}: {text} names a GPU twice; name each once")
    return text


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


def divided(count: int) -> tuple[frozenset[int], ...]:
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


def _visible(nvml: Any) -> Sequence[str]:
    """What CUDA_VISIBLE_DEVICES may be set to for each GPU: what stands in it now, else all by UUID."""
    given = os.environ.get(_VISIBLE)
    if given is None:
        from evaluators.backends.nvidia.state import (
            gpu_uuids,  # only here is it needed, and options are read by every command
        )

        return gpu_uuids(nvml)
    # CUDA itself stops at the first entry that it cannot use, say -1.
    entries = [entry.strip() for entry in given.split(",")]
    usable = next((i for i, entry in enumerate(entries) if not entry or entry.startswith("-")), len(entries))
    if not usable:
        raise ConfigError(f"--gpus: {_VISIBLE}={given!r} hides every GPU. Unset it, or name some in it.")
    return _checked(entries[:usable], given)


def _checked(entries: Sequence[str], given: str) -> Sequence[str]:
    """What stands in CUDA_VISIBLE_DEVICES, where each is a number, or a UUID or its beginning, and no two are one."""
    for i, entry in enumerate(entries):
        if not _DEVICE.fullmatch(entry):
            raise ConfigError(
                f"--gpus: {_VISIBLE}={given!r} names {entry!r}; expected numbers, or UUIDs as nvidia-smi -L tells them."
            )
        if _plain(entry) in map(_plain, entries[:i]):
            raise ConfigError(f"--gpus: {_VISIBLE}={given!r} names {entry} twice. Two workers would share one GPU.")
    return entries


def _plain(entry: str) -> str:
    return str(int(entry)) if entry.isdecimal() else entry.lower()


def _numbers(asked: str, there: int) -> list[int]:
    if asked == "all":
        return list(range(there))
    named = [int(number) for number in asked.split(",")]
    numbers = named if len(named) > 1 else list(range(named[0]))
    if max(numbers) >= there:
        hidden = f" ({_VISIBLE}={os.environ[_VISIBLE]})" if _VISIBLE in os.environ else ""
        last = f", numbered 0 to {there - 1}" if there > 1 else ", number 0"
        raise ConfigError(f"--gpus {asked}: there {'are' if there > 1 else 'is'} {there}{last}{hidden}. Give all.")
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
