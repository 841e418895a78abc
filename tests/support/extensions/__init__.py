"""What other packages would add to bitfront: modules that tests copy to where a user's own would lie."""

from __future__ import annotations

import shutil
from pathlib import Path


def install(module: str, site: Path, group: str, name: str, reference: str) -> None:
    """Lay a module out as a package that is installed in a folder, with an entry point."""
    info = site / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(module, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {reference}\n")
