"""The options of the fake backend, as rows of the option table."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.backends.kind import option

NAME = "fake"
VERSION = "1"  # of the costs; numbers of two versions do not compare
CAUTION = "backend fake builds no engine: every latency, loss, size and audit here is invented"


@dataclass(frozen=True)
class FakeOptions:
    """What a fake backend is opened with.

    Attributes:
        threads: taken, as every backend takes it, and of no effect.
        seed: another one gives other costs and losses, and another target.
        faults: what goes wrong, see `faults.Fault`. No part of an evaluation's digest: a study can go on without them.
        build_time_s: that every build lasts.
        precisions: that it offers beside FP32, by label; empty for FP16 and INT8.
        emulated: outputs are those of the assignment, written as for TensorRT and run by ONNX Runtime as it is written;
            otherwise those of the float model with an invented error.
        relative: latencies are ratios to an FP32 engine that runs in between, as on processors; else as on GPUs.
    """

    threads: int = 1
    seed: int = option("count", 0, "Seed of the invented numbers.", name="fake-seed", metavar="N")
    faults: tuple[str, ...] = option(
        "text",
        (),
        "A fault to simulate, as crash:conv2=int8. Can be repeated.",
        name="fake-fault",
        metavar="FAULT",
        many=True,
    )
    build_time_s: float = option("duration", 0.0, "How long every build takes.", name="fake-build-time", metavar="TIME")
    precisions: tuple[str, ...] = option(
        "text",
        (),
        "A precision that the backend offers beside fp32, by default fp16 and int8. Can be repeated.",
        name="fake-precision",
        many=True,
    )
    emulated: bool = option(
        "switch",
        False,
        "Whether losses are emulated by ONNX Runtime instead of invented: on or off.",
        name="fake-emulated",
        metavar="SWITCH",
    )
    relative: bool = option(
        "switch",
        False,
        "Whether latencies are measured as ratios to FP32: on or off.",
        name="fake-relative",
        metavar="SWITCH",
    )
