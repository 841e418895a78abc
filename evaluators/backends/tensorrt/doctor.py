"""The doctor's checks of TensorRT's packages: whether they are installed and fit the CUDA of the driver."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping

from evaluators.backends.kind import Check, Machine
from evaluators.backends.nvidia import discovery
from evaluators.backends.tensorrt.options import PACKAGES


def package_checks(machine: Machine) -> list[Check]:
    """Checks of the CUDA bindings, where they do not fit, and of TensorRT itself."""
    return [*_bindings_checks(machine.packages), _tensorrt_check(machine.packages)]


def _bindings_checks(packages: Mapping[str, str]) -> Iterator[Check]:
    driver, bindings = discovery.driver_version(), packages.get("cuda-bindings")
    major = (driver or "12").split(".")[0]
    install = f"pip install 'cuda-bindings=={major}.*'"
    if bindings is None:
        yield Check("cuda-bindings", False, "not installed; backend tensorrt needs it", install)
    elif driver is not None and int(bindings.split(".")[0]) > int(major):
        finding = f"{bindings} needs a newer driver than this one, which supports CUDA {driver}"
        yield Check("cuda-bindings", False, finding, f"{install}, or update the driver.")


def _tensorrt_check(packages: Mapping[str, str]) -> Check:
    """Whether TensorRT is installed, and for a CUDA that the driver knows."""
    driver = discovery.driver_version()
    major = int((driver or "12").split(".")[0])
    install = f"pip install 'tensorrt-cu{major}' 'cuda-bindings=={major}.*' nvidia-ml-py"
    distributions = [name for name in PACKAGES if name in packages]
    for name in distributions:
        cuda = re.search(r"-cu(\d+)", name)
        if driver is not None and cuda is not None and int(cuda[1]) > major:
            said = f"{name} {packages[name]} needs a newer driver than this one, which supports CUDA {driver}"
            advice = f"pip uninstall {' '.join(distributions)}; {install}; or update the driver."
            return Check("tensorrt package", False, said, advice)
    if distributions:
        return Check("tensorrt package", True, f"{distributions[0]} {packages[distributions[0]]}")
    if importlib.util.find_spec("tensorrt") is not None:
        return Check("tensorrt package", True, "can be imported, but belongs to no Python package with a version")
    return Check("tensorrt package", False, "not installed", f"{install}; docs/tensorrt.md has the other versions.")
