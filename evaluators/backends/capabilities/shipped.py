"""The shipped capabilities files."""

from __future__ import annotations

from pathlib import Path

from search.space.capability_file import read_capability_file
from search.values import Capability

_FOLDER = Path(__file__).parent


def shipped_capability(name: str, *layers: str) -> Capability:
    """What a backend runs natively.

    Args:
        name: of the shipped file that says all of it, without its ending.
        layers: of shipped files that leave less of it, in their order.
    """
    found = read_capability_file(_FOLDER / f"{name}.toml").whole()
    for layer in layers:
        found = read_capability_file(_FOLDER / f"{layer}.toml").narrow(found, name)
    return Capability(found.ops, found.min_channels, found.min_matmul_size)
