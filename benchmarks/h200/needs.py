"""What the steps of the proof take, to plan by. The standard library alone."""

from __future__ import annotations

# Seconds on one of several busy H200s of a host with TensorRT 8.6.0, from earlier runs and their logs. What was never
# run in this form (`quick`; `prepare`, `scaling`, `threads` of all but ResNet-18) is put together from its parts.
NEEDS_S: dict[str, dict[str, float]] = {
    "train": {"resnet18": 75, "mobilenet_v2": 100, "vit_small": 150},
    "baselines": {"resnet18": 140, "mobilenet_v2": 230, "vit_small": 250},
    "uniform": {"resnet18": 265, "mobilenet_v2": 460, "vit_small": 360},
    "search": {"resnet18": 360, "mobilenet_v2": 805, "vit_small": 1080},
    "compare": {"resnet18": 40, "mobilenet_v2": 70, "vit_small": 70},
    "export": {"resnet18": 50, "mobilenet_v2": 60, "vit_small": 110},
    "throughput": {"resnet18": 450, "mobilenet_v2": 680, "vit_small": 1000},
    "quick": {"resnet18": 470, "mobilenet_v2": 400, "vit_small": 900},
    "tpe": {"resnet18": 1080, "mobilenet_v2": 1330, "vit_small": 1300},
    "nsga2": {"resnet18": 1080, "mobilenet_v2": 1330, "vit_small": 1300},
    "repeat": {"resnet18": 270, "mobilenet_v2": 450, "vit_small": 650},
    "faults": {"": 345},
    "suite": {"": 480},
    "threads": {"resnet18": 255, "mobilenet_v2": 330, "vit_small": 500},
    "prepare": {"resnet18": 126, "mobilenet_v2": 260, "vit_small": 300},
    "scaling": {"resnet18": 285, "mobilenet_v2": 500, "vit_small": 800},
    "mixes": {"resnet18": 100, "mobilenet_v2": 130, "vit_small": 140},  # until the first few are built
}
ROW_S = {"resnet18": 4.6, "mobilenet_v2": 11.8, "vit_small": 18.0}  # of a mix, and of an evaluation of a search
# A search that begins: checks, calibration, uniform assignments, tie band. One that goes on: its process starts, and
# times TensorRT's kernels anew. At the end of either: the finalists.
BEGIN_S = {"resnet18": 140.0, "mobilenet_v2": 230.0, "vit_small": 310.0}
GO_ON_S = {"resnet18": 60.0, "mobilenet_v2": 110.0, "vit_small": 120.0}
FINALISTS_S = 35.0
# The uniform assignments and TensorRT's own choice built again, which a fresh machine lacks.
REBUILD_S = {"resnet18": 130.0, "mobilenet_v2": 290.0, "vit_small": 180.0}
# These go on where they stopped, so little time is worth it; the others begin only with time for all.
_GO_ON_S = {
    "uniform": 90.0,
    "search": 120.0,
    "repeat": 60.0,
    "tpe": 200.0,
    "nsga2": 200.0,
    "throughput": 200.0,
    "quick": 200.0,
}
ALONE = frozenset({"scaling"})  # wants all GPUs of the host, and nothing beside it on the processors
LEAST_GPUS = {"scaling": 2}
ENOUGH_ROWS = 20  # recorded ones, to go by them


def needs_s(step: str, network: str) -> float:
    """Expected seconds from the step's beginning; those of the slowest network for one that is unknown."""
    known = NEEDS_S.get(step, {})
    return known.get(network, max(known.values(), default=0.0))


def least_s(step: str, network: str) -> float:
    """Seconds without which a step is not worth beginning."""
    return min(needs_s(step, network), _GO_ON_S.get(step, float("inf")))


def text() -> str:
    """A line per step and network."""
    pairs = [(step, network) for step, found in NEEDS_S.items() for network in found]
    lines = [
        f"{step:12}{network:14}{needs_s(step, network):8.0f} s{least_s(step, network):8.0f} s"
        for step, network in pairs
    ]
    mixes = [f"{'each mix':12}{network:14}{seconds:8.1f} s" for network, seconds in ROW_S.items()]
    return "\n".join([f"{'step':12}{'network':14}{'expected':>10}{'at least':>10}", *lines, *mixes])
