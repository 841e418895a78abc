"""What is told of a machine: enough to understand numbers later, nothing about who or which host."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from studies.environment import changed_text, collect
from tests.support.paths import ROOT

IMPORTED = (
    "import sys, studies.environment as e; e.collect(); print(sorted({'onnxruntime', 'torch'} & set(sys.modules)))"
)
FAKE_SMI = """#!/bin/sh
echo "NVIDIA H200, 580.1, 143771 MiB, 9.0"
echo "NVIDIA H200, 580.1, 143771 MiB, 9.0"
"""


def collect_with(folder: Path, smi: str) -> dict[str, object]:
    """In a process whose `nvidia-smi` is this program."""
    (folder / "nvidia-smi").write_text(smi)
    (folder / "nvidia-smi").chmod(0o755)
    code = "import json, studies.environment as e; print(json.dumps(e.collect()))"
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_it_is_json_and_knows_the_machine() -> None:
    found = collect()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["python"] == platform.python_version()
    assert found["packages"]["optuna"] == metadata.version("optuna")
    assert "" not in found["packages"].values()
    assert found["memory_bytes"] > 0
    assert found["cpu"]["threads"] >= found["cpu"]["usable_threads"] >= 1
    assert found["cpu"]["model"]


def test_it_names_no_host_and_no_user() -> None:
    def texts(value: object) -> list[str]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return [str(value), *(text for item in inner for text in texts(item))]

    assert {platform.node(), getpass.getuser()}.isdisjoint(texts(collect()))
    assert platform.node() not in str(collect()["platform"])


def test_it_imports_no_runtime() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gpus_are_those_of_nvidia_smi(tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA H200", "driver_version": "580.1", "memory.total": "143771 MiB", "compute_cap": "9.0"}
    assert collect_with(tmp_path, FAKE_SMI)["gpus"] == [gpu, gpu]


def test_an_nvidia_smi_that_fails_is_no_failure(tmp_path: Path) -> None:
    assert collect_with(tmp_path, "#!/bin/sh\necho no driver\nexit 9\n")["gpus"] == []
    assert collect_with(tmp_path, "#!/bin/sh\necho surprising answer\n")["gpus"] == []
    assert collect_with(tmp_path, "not a program")["gpus"] == []


def test_another_environment_is_told_by_what_changed() -> None:
    here = collect()
    assert changed_text(here, here) == ""
    assert changed_text({}, here) == ""  # a study that recorded none
    before = {**here, "packages": {**here["packages"], "onnx": "1.0"}, "memory_bytes": 1}
    assert changed_text(before, here) == (
        "exported in another environment than the study was made in, so its figures may not hold here: "
        f"onnx 1.0, now {here['packages']['onnx']}"
    )
