"""Step `suite`: the tests that need a GPU, their outcome and time."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from benchmarks.h200.setting import ROOT, Setting, say

_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
_CLOSING = re.compile(r"\d+ \w+.* in [\d.]+s")


def suite(setting: Setting) -> bool:
    """Run `pytest -m gpu`; whether it passed."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    # A line for each test, so that one that crashes its process has a name.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "3", "--dist", "loadfile"]
    command += ["-vv", "--durations=15", "-rfE"]
    start, counts = time.monotonic(), dict[str, int]()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            say(f"{time.monotonic() - start:6.1f} {line.rstrip()}")
            if _CLOSING.search(line):
                counts = {what: int(count) for count, what in _COUNTS.findall(line)}
    setting.record("suite", {**counts, "seconds": time.monotonic() - start})
    return running.returncode == 0
