"""Which GPUs there are, by a driver that is compiled here: nothing is pretended above it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluators.backends.nvidia import discovery
from tests.support.paths import ROOT
from tests.support.shared_libraries import compiled, needs_gcc

DRIVER = """
#include <string.h>
int cuInit(unsigned int flags) { return 0; }
int cuDeviceGet(int *device, int index) { *device = index + 40; return index > 1 ? 101 : 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "NVIDIA H200" : "NVIDIA L4", length);
    return 0;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
"""
ASK = """
import json
from evaluators.backends.nvidia import discovery
found = [[discovery.gpu_name(i), discovery.gpu_uuid(i), discovery.lock_name(i)] for i in range(3)]
print(json.dumps([discovery.driver_version(), *found]))
"""


def ask(folder: Path) -> list[object]:
    """What a process finds whose driver lies in a folder."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


@needs_gcc
def test_the_driver_names_gpus_by_cudas_index(tmp_path: Path) -> None:
    compiled(tmp_path / "libcuda.so.1", DRIVER)
    first, second = "GPU-28282828-2828-2828-2828-282828282828", "GPU-29292929-2929-2929-2929-292929292929"
    assert ask(tmp_path) == [
        "12.8",
        ["NVIDIA H200", first, first],
        ["NVIDIA L4", second, second],
        [None, None, "cuda:2"],
    ]


@needs_gcc
def test_a_driver_that_does_not_load_is_none(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("cut short")
    assert ask(tmp_path) == [None, *([None, None, f"cuda:{i}"] for i in range(3))]


@pytest.mark.parametrize(
    ("device", "index"),
    [("cuda", 0), ("cuda:0", 0), ("cuda:12", 12), ("cuda:", None), ("cuda:x", None), ("cpu", None), ("cudax", None)],
)
def test_devices_are_spelled_with_cudas_index(device: str, index: int | None) -> None:
    assert discovery.cuda_index(device) == index


def test_nvidia_smi_lists_gpus_and_what_it_cannot_say_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert discovery.list_gpus() == []
    for words, found in (("echo 'NVIDIA H200, 580.82, 143771 MiB, 9.0'", 1), ("echo odd", 0), ("exit 9", 0)):
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)
        assert len(discovery.list_gpus()) == found
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.82, 143771 MiB, 9.0'\n")
    assert discovery.list_gpus() == [
        {"name": "NVIDIA H200", "driver_version": "580.82", "memory.total": "143771 MiB", "compute_cap": "9.0"}
    ]


def test_what_is_visible_is_told_as_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert discovery.visible_text() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert discovery.visible_text() == "CUDA_VISIBLE_DEVICES=''"
