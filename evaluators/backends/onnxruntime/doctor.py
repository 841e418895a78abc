"""The doctor's checks of ONNX Runtime's packages, of which exactly one has to be installed."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.backends.kind import Check, Machine
from search.installation import install_command


def package_checks(machine: Machine, packages: Sequence[str]) -> list[Check]:
    """What is wrong with the packages; empty if nothing is.

    Args:
        packages: names of those that install the module.
    """
    found = [name for name in packages if name in machine.packages]
    if len(found) > 1:
        advice = f"They install the same module: pip uninstall {' '.join(found)}, then install one of them."
        return [Check("onnxruntime", False, "installed twice", advice)]
    if found:
        return []
    return [Check("onnxruntime", False, "not installed", f"{install_command('cpu')}; it also calibrates.")]
