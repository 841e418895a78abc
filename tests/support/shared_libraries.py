"""Shared libraries that tests compile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

GCC = shutil.which("gcc")
needs_gcc = pytest.mark.skipif(GCC is None, reason="no gcc to compile a shared library with")


def compiled(path: Path, source: str, *libraries: Path) -> Path:
    """A shared library of C, linked against others that lie in its folder."""
    assert GCC is not None
    path.with_suffix(".c").write_text(source)
    command = [GCC, "-shared", "-fPIC", "-o", path, path.with_suffix(".c"), *libraries, "-Wl,-rpath,$ORIGIN"]
    subprocess.run(list(map(str, command)), check=True)
    return path
