"""The memory of an engine on the CPU does not depend on what its process did before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluators.backends.processor import allocated_bytes
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

TOLERANCE = 0.05

# Evaluates mixes in a fresh process, in the order given, and prints what each engine takes.
PROGRAM = """
import json, sys
from pathlib import Path
from evaluators.measure import latency
from evaluators.process.evaluator import Evaluator
from evaluators.process.job import StopLimits
from search.values import Precision
from tests.support.evaluator_jobs import case
latency.MAX_WARM_UP_S, latency.BLOCK_MS = 0.01, 0.5
opened = case(Path(sys.argv[1]))
evaluator = Evaluator(opened.job, lambda event, value: None)
found = []
for label in sys.argv[2].split(","):
    evaluation = evaluator.candidates.evaluate(opened.uniform(Precision.parse(label)), opened.out, StopLimits())
    assert evaluation.ok, evaluation.failure
    found.append(evaluation.memory_bytes)
print(json.dumps(found))
"""


def memory_of(folder: Path, *order: str) -> list[int]:
    """Bytes of engines that one fresh process evaluates in this order."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM, str(folder), ",".join(order)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_engine_takes_as_much_first_as_third_and_in_another_process(tmp_path: Path) -> None:
    one = memory_of(tmp_path / "one", "int8", "fp32", "int8")
    other = memory_of(tmp_path / "other", "fp32", "int8", "fp32")
    assert one[2] == pytest.approx(one[0], rel=TOLERANCE)
    assert other[2] == pytest.approx(other[0], rel=TOLERANCE)
    assert other[1] == pytest.approx(one[0], rel=TOLERANCE)
    assert other[0] == pytest.approx(one[1], rel=TOLERANCE)


def test_what_is_allocated_is_counted_and_what_is_freed_is_not() -> None:
    size = 8 * 2**20
    before = allocated_bytes()
    block = bytearray(size)
    assert allocated_bytes() - before == pytest.approx(size, rel=0.1)
    del block
    assert abs(allocated_bytes() - before) < size / 10
