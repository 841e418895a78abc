"""Tests that share a GPU: side by side, but for those that want it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("xdist")

CONFTEST = """
import os, tempfile
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ["TMPDIR"] = tempfile.mkdtemp()
tempfile.tempdir = None
from tests.support.tensorrt.gpu_turns import pytest_runtest_protocol
"""
TESTS = """
import json, os, tempfile, time
import pytest

@pytest.fixture(scope="module", autouse=True)
def written():
    lines = []
    yield lines
    open(os.environ["SPANS"] + "/" + __name__, "w").write(json.dumps(lines))

def spend(lines, name, wanted):
    begun = time.monotonic()
    time.sleep(wanted)
    lines.append([name, begun, time.monotonic(), tempfile.gettempdir(), os.environ["TMPDIR"]])

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(4))
def test_beside(number, written):
    begun = os.environ["SPANS"] + "/begun-"
    open(begun + __name__, "w")
    while number == 0 and not all(os.path.exists(begun + f"test_{name}") for name in ("one", "two", "three")):
        time.sleep(0.01)
    spend(written, "beside", 0.2)

@pytest.mark.gpu
@pytest.mark.alone
def test_alone(written):
    spend(written, "alone", 0.1)

def test_without_a_gpu(written):
    spend(written, "without", 0.0)
"""


@pytest.mark.slow
def test_only_those_that_want_it_alone_are_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n  alone\n")
    (tmp_path / "spans").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "SPANS": str(tmp_path / "spans"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    spans = [line for file in (tmp_path / "spans").glob("test_*") for line in json.loads(file.read_text())]
    assert len(spans) == 18
    overlaps = {
        frozenset((one[0], other[0]))
        for one, other in combinations([span for span in spans if span[0] != "without"], 2)
        if one[1] < other[2] and other[1] < one[2]
    }
    assert overlaps == {frozenset(["beside"])}
    folders = {name: {span[3] for span in spans if span[0] == name} for name in ("beside", "alone", "without")}
    assert len(folders["beside"] | folders["alone"]) == 1, "measurements take turns by a lock in that folder"
    assert len(folders["without"]) == 3
    assert all(span[3] == span[4] for span in spans)
