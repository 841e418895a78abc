"""Tests that need a GPU, side by side on one: `pytest -m gpu -n 3 --dist loadfile`.

What takes their time is the processor: every process that opens TensorRT's builder spends seconds on it. So processes
of pytest share the GPU, with one folder for temporary files, in which measurements take turns as users' do. A test that
is marked `alone` takes the device's whole memory, and waits until no other test is running.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"pid{os.getpid()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Around a whole test: fixtures of its module are set up within."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    shared = Path(os.environ["PYTEST_DEBUG_TEMPROOT"]) / f"bitfront-gpu-{_RUN}"
    shared.mkdir(exist_ok=True)
    with turn(shared, alone=item.get_closest_marker("alone") is not None), _temporary_files_in(shared):
        return (yield)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Beside the turns of others, or alone.

    Who wants to be alone closes the gate first, so that those who come later wait too.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with (folder / "gate").open("w") as gate, (folder / "room").open("w") as room:
        fcntl.flock(gate, kind)
        fcntl.flock(room, kind)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    before = os.environ["TMPDIR"]
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield
    finally:
        os.environ["TMPDIR"], tempfile.tempdir = before, None
