"""The environments in which bitfront was seen to work, and how another one differs; docs/environments.md shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

PAGE = "docs/environments.md"
CUDA = "cuda of the driver"
_RUNTIMES = ("tensorrt", "onnxruntime", "onnxruntime-gpu", "openvino")


@dataclass(frozen=True)
class SeenEnvironment:
    """Versions that ran together.

    Attributes:
        last: the day on which they were last seen.
        machine: where.
        versions: by the name of a distribution, `python` or `cuda of the driver`, as far as they were written down; of
            a Python and a CUDA only the parts that matter.
    """

    last: date
    machine: str
    versions: Mapping[str, str]


SEEN = (  # where several are equally near, the first is named
    SeenEnvironment(date(2026, 11, 28), "Intel Xeon with VNNI and AMX", {"python": "3.12", "onnxruntime": "1.32.0"}),
    SeenEnvironment(
        date(2026, 11, 28),
        "AMD EPYC",
        {"python": "3.11", "onnxruntime": "1.32.0", "openvino": "2026.4.1", "onnx": "1.23.2"},
    ),
    SeenEnvironment(
        date(2026, 11, 28),
        "NVIDIA H100 and H200",
        {"python": "3.10", "tensorrt": "8.6.0", "onnxruntime": "1.23.2", CUDA: "13"},
    ),
    SeenEnvironment(date(2026, 11, 28), "NVIDIA H100", {"python": "3.12", "onnxruntime-gpu": "1.31.1", CUDA: "13"}),
    SeenEnvironment(date(2026, 11, 27), "Intel Xeon with VNNI", {"python": "3.10", "onnxruntime": "1.23.2"}),
)


def describe_environment(python: str, packages: Mapping[str, str], cuda: str | None) -> str:
    """Whether this environment is one that was seen, or how it differs from the nearest of them.

    Args:
        python: the version of Python.
        packages: versions of the installed distributions by name.
        cuda: the newest CUDA that the driver knows; None without a driver.
    """
    here = {_plain(name): version for name, version in packages.items()} | {"python": python}
    if cuda is not None:
        here[CUDA] = cuda
    if not any(name in here for name in _RUNTIMES):
        return f"no backend's package is installed, so nothing is compared; see {PAGE}"
    nearest = min(SEEN, key=lambda seen: sum(weight for weight, _ in _differences(here, seen)))
    differences = [text for _, text in _differences(here, nearest)]
    when = f"{nearest.last.day} {nearest.last:%B %Y}"
    if not differences:
        return f"as seen on {when} ({nearest.machine}); see {PAGE}"
    return f"differs from what was seen on {when} ({nearest.machine}): {'; '.join(differences)}; see {PAGE}"


def _plain(name: str) -> str:
    """`tensorrt` of each of its distributions, which all hold the same module."""
    return re.sub(r"^tensorrt(-cu\d+)?(-bindings)?$", "tensorrt", name)


def _differences(here: Mapping[str, str], seen: SeenEnvironment) -> Iterator[tuple[int, str]]:
    """How an environment differs from one that was seen, each with a weight: another backend is the largest."""
    for name, version in here.items():
        if name in _RUNTIMES and name not in seen.versions:
            yield 10, f"{name} {version} was not installed there"
        elif name in seen.versions and (order := _compare(version, seen.versions[name])):
            yield 3 if name in _RUNTIMES else 1, f"{name} {version} is {order} than {seen.versions[name]}"


def _compare(version: str, seen: str) -> str:
    """`newer` or `older`; empty if a version begins with the parts of the one that was seen."""
    mine, theirs = ([int(part) for part in re.findall(r"\d+", text)] for text in (version, seen))
    mine = mine[: len(theirs)]
    return "" if mine == theirs else "newer" if mine > theirs else "older"
