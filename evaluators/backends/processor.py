"""What backends on the processor share: its name and kernels, ONNX files, the clock, and what engines allocate."""

from __future__ import annotations

import ctypes
import functools
import gc
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluators.lowering.placement import ONNXRUNTIME_CPU, ONNXRUNTIME_CPU_SYMMETRIC, PAIR_LIMIT, Placement
from search.errors import ModelError, TargetError
from search.values import THREAD_CLOCK, WALL_CLOCK, EngineSummary, Target

if TYPE_CHECKING:
    import onnx

    from search.graph.shapes import TensorSpec
if sys.platform == "win32":
    resource = None
else:
    import resource

_STRETCHED = 1.05  # wall time over the processor time of the thread that waits for all others, busily
_SMALL_SHARE = 0.05  # of an engine's time: conversions that take no more are not why it is slow
_OUTER_MOVES = 2  # conversions of the input and the output of a network that is INT8 throughout


def cpu_model() -> str:
    """The processor's name, for example `AMD EPYC 9754`; without clock or core count."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def has_vnni() -> bool:
    """Whether UINT8×INT8 products sum in 32 bits. x86 without it adds every two in 16, which limits `weight_pairs`."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    with suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return "avx512_vnni" in flags or "avx_vnni" in flags
    return False


def placement_here(*, symmetric: bool) -> Placement:
    """How INT8 is written for the kernels of this processor: ONNX Runtime's and OpenVINO's take the same Q/DQ in."""
    wanted = ONNXRUNTIME_CPU_SYMMETRIC if symmetric else ONNXRUNTIME_CPU
    return wanted if has_vnni() else replace(wanted, pair_limit=PAIR_LIMIT)


def weight_options(placement: Placement) -> dict[str, str]:
    """How weights are rounded, by name: options of a target."""
    limit = placement.pair_limit
    pairs = {} if limit is None else {"weight_pairs": str(limit)}
    return {"weight_bits": str(placement.weight_bits), **pairs}


def slow_reasons(target: Target, engine: EngineSummary | None) -> list[str]:
    """Why mixes may be slow on a processor, as `BackendKind.slow_reasons` gives it."""
    reasons = []
    if "weight_pairs" in target.options:  # the limit that x86 kernels without VNNI need
        reasons.append("This processor has no VNNI instructions, so its INT8 kernels are slower than on others")
    if engine is None or engine.moves <= _OUTER_MOVES:
        return reasons
    if not engine.profiled_ms or (engine.moves_ms or 0.0) > _SMALL_SHARE * engine.profiled_ms:
        reasons.append("Conversions surround the operations that run in FP32, which `bitfront show --profile` lists")
    return reasons


def check_threads(threads: int) -> None:
    """Refuse threads that would wait for each other: latencies of such a session are those of the waiting.

    Raises:
        TargetError: saying how many there may be.
    """
    from evaluators.cores import usable_processors

    most = usable_processors()
    if threads > most:
        raise TargetError(
            f"--threads {threads}: expected at most {most}, the processor threads that this process may run on. "
            f"Give --threads {most}, or let the process use more cores."
        )


def read_input(name: str, dtype: str, shape: Sequence[Any], path: Path, batch: int | None) -> TensorSpec:
    """An input of an engine file that was opened without its model.

    Args:
        dtype: by numpy's name; empty for what is no tensor.
        shape: whole numbers, and anything else for dimensions that are open.
        batch: leading dimension of inputs that leave it open; None if it has to be fixed.

    Raises:
        ModelError: it is no tensor, or leaves a dimension open.
    """
    from search.graph.shapes import TensorSpec

    if not shape or not dtype:
        raise ModelError(
            f"opening {path}: expected tensors with a batch axis, but input {name!r} is {dtype or 'no tensor'} of "
            f"shape {list(shape)}. Export the model with the samples along the first axis."
        )
    sizes = [batch if place == 0 and not isinstance(size, int) else size for place, size in enumerate(shape)]
    known = tuple(size for size in sizes if isinstance(size, int) and size > 0)
    if len(known) < len(sizes):
        shown = "x".join(map(str, shape))
        fix = "Give --batch." if all(isinstance(size, int) for size in sizes[1:]) else "Export it with fixed sizes."
        raise ModelError(f"opening {path}: input {name!r} has the dynamic shape {shown}. {fix}")
    return TensorSpec(name, dtype, known)


def one_node() -> onnx.ModelProto:
    """A model of one Relu on `x`, (1,) float32, to see whether anything runs."""
    import onnx

    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "check", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)


# -- the clock ---------------------------------------------------------------------------------------------------------


def clock_of(threads: int) -> str:
    """What inferences are timed by. With one thread a session starts no other: the caller's runs everything."""
    # Windows tells the processor time of a thread in steps of 16 ms.
    return THREAD_CLOCK if threads == 1 and sys.platform != "win32" else WALL_CLOCK


def statistic_of(clock: str) -> str:
    """Which statistic of the samples of a clock is the latency."""
    return "mean" if clock == THREAD_CLOCK else "p20"


def time_here(run: Callable[[], object], count: int, clock: str, *, sleeps: bool = False) -> NDArray[np.float64]:
    """(count,) milliseconds of single inferences that this process calls, as `Session.time` gives them.

    Args:
        run: one inference.
        clock: that of the target, for the processor as `clock_of` gives it.
        sleeps: whether the thread that calls `run` sleeps until other threads, or a device elsewhere, have computed.
            Nothing then tells who was interrupted: its own processor time is short, and threads that are woken take
            processors from each other. All wall times are kept.
    """
    if clock == WALL_CLOCK and not sleeps:
        return _time_threads(run, count)
    return time_runs(run, count, time.thread_time_ns if clock == THREAD_CLOCK else time.perf_counter_ns)


def _time_threads(run: Callable[[], object], count: int) -> NDArray[np.float64]:
    """Wall time; masked are inferences in which this thread had to wait, or another process took a processor.

    The processor time of all threads would not tell: the kernel adds that of threads which are running now to it
    only every few milliseconds.
    """
    samples, interrupted = np.empty(count), np.empty(count, bool)
    for i in range(count):
        switches, own = _forced_switches(), time.thread_time_ns()
        samples[i] = time_runs(run, 1, time.perf_counter_ns)[0]
        own_ms = (time.thread_time_ns() - own) / 1e6
        interrupted[i] = _forced_switches() > switches or samples[i] > _STRETCHED * own_ms
    return np.ma.masked_array(samples, interrupted)


def time_runs(run: Callable[[], object], count: int, clock_ns: Callable[[], int]) -> NDArray[np.float64]:
    """(count,) milliseconds of single runs by a clock."""
    samples = np.empty(count)
    for i in range(count):
        start = clock_ns()
        run()
        samples[i] = (clock_ns() - start) / 1e6
    return samples


def _forced_switches() -> int:
    """How often any thread of this process had to give its processor to another one; 0 where that cannot be told."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


# -- memory ------------------------------------------------------------------------------------------------------------

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Counts(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def allocated_bytes() -> int:
    """Bytes that this process has allocated and not freed, whatever it did before.

    The difference between two calls is what was allocated in between. Resident memory would not tell that: the first
    engine of a process also loads the program's own code into memory (12.6 MB where a later one took 0.9 MB), and an
    engine that takes over memory which an earlier one freed looks as if it needed none.

    Where the C library is not glibc 2.33 or later, resident memory is all that can be asked for.
    """
    gc.collect()
    counter = _glibc_counter()
    return _resident_bytes() if counter is None else counter()


@functools.cache
def _glibc_counter() -> Callable[[], int] | None:
    try:
        library = ctypes.CDLL("libc.so.6")
        mallinfo = library.mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo.restype = _Counts

    def count() -> int:
        counts = mallinfo()
        return int(counts.uordblks + counts.hblkhd)  # from the heaps, and what was mapped for itself

    return count


def _resident_bytes() -> int:
    import psutil

    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory of earlier sessions must not hide what this one adds
    return int(psutil.Process().memory_info().rss)
