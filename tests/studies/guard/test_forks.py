"""A guard in processes that are forked from the one that made it: while it is busy, and with engines of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.networks import residual_cnn, save
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

BUSY = """
import json, os, sys, threading, time
import numpy as np
from studies.guard import Guard, GuardOptions, Reservoir

CHILDREN = 12
wrong = False
fast = lambda given: {"y": -given["x"] if wrong else given["x"]}
options = GuardOptions(share=1, window=10, windows=2, probe_after_s=1e6, queue=1000, compensate=5, outputs="values")
reservoir = Reservoir(sys.argv[2], per_hour=20)
told = []
guard = Guard(fast, lambda given: dict(y=given["x"]), options, state=sys.argv[1], reservoir=reservoir, tell=told.append)
request = {"x": np.ones((1, 4), np.float32)}
over = threading.Event()

def serve():
    while not over.is_set():
        guard.run(request)

for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
time.sleep(0.2)
children = []
ready, go = os.pipe()
for _ in range(CHILDREN):
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        children.append((pid, out))
        continue
    before = guard.state().requests
    os.read(ready, 1)  # until the parent has stopped serving: its good samples would fill the same windows
    wrong = True
    for _ in range(40):
        guard.run(request)
        guard.drain()
    state = guard.state()
    os.write(into, json.dumps([before, state.requests, state.compared, state.breaker.value]).encode())
    guard.close()
    os._exit(0)
over.set()
guard.drain()
os.write(go, bytes(CHILDREN))
answers = []
for pid, out in children:
    answers.append(json.loads(os.read(out, 1000)))
    os.waitpid(pid, 0)
end = time.monotonic() + 300
while guard.state().breaker.value != "open" and time.monotonic() < end:
    time.sleep(0.02)
print(json.dumps([answers, guard.state().breaker.value, told]))
os._exit(0)
"""


def test_children_forked_under_load_go_on_guarding(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", BUSY, str(tmp_path / "guard.json"), str(tmp_path / "samples")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    answers, parent, told = json.loads(done.stdout)
    assert len(answers) == 12
    for before, requests, _, state in answers:
        assert (before, requests, state) == (0, 40, "open")
    assert sum(compared for _, _, compared, _ in answers) >= 20  # whoever came late found it open
    assert parent == "open"
    assert len(told) == 1
    assert "2 windows of 10 samples in a row agreed less than 0.85" in told[0]


OPENED = """
import os, sys, threading
import numpy as np
from studies.guard import Guard, GuardOptions

guard = Guard.open(sys.argv[1], sys.argv[2], GuardOptions(share=1), threads=2)
request = {"image": np.ones((1, 3, 16, 16), np.float32)}
expected = guard.run(request)
threading.Thread(target=lambda: [guard.run(request) for _ in range(10**6)], daemon=True).start()
for _ in range(4):
    pid = os.fork()
    if not pid:
        found = guard.run(request)
        same = all(np.array_equal(found[name], expected[name]) for name in expected)
        guard.drain()
        os._exit(0 if same and guard.state().compared == 1 and guard.state().engine == "fast" else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""


def test_engines_of_onnx_runtime_are_opened_again_in_a_child(tmp_path: Path) -> None:
    """Two threads of a session are not there in a child: a run of the parent's session would never end."""
    for name in ("fast", "safe"):
        (tmp_path / name).mkdir()
        save(residual_cnn(batch=1, channels=8), tmp_path / name / "model.onnx")
        target = {"backend": "onnxruntime", "options": {"threads": 2}}
        manifest = {"model": {"digest": "a" * 64}, "target": target, "files": {}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    words = [sys.executable, "-W", "ignore", "-c", OPENED, str(tmp_path / "fast"), str(tmp_path / "safe")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, cwd=ROOT, check=False)
    assert done.stdout.split() == ["0"] * 4, done.stderr
