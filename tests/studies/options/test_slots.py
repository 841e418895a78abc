"""Where worker processes run: GPUs as NVML and CUDA_VISIBLE_DEVICES give them, cores as this process may use them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.discovery import gpu_uuids
from evaluators.backends.registry import kind_named
from search.errors import ConfigError, TargetError
from studies.options import slots
from studies.options.config import SearchConfig
from studies.options.read_options import read_config
from studies.options.slots import Slot, bound, cpu_slots, divide_processors, gpu_slots, slots_of, usable_cores
from studies.options.value_kinds import read_gpus


class NvmlError(Exception):
    """What pynvml raises."""


def nvml(count: int, *, refuses: str = "", as_bytes: bool = False) -> Any:
    """A module of pynvml's shape with so many GPUs: `GPU-a`, `GPU-b`, …"""

    def answer(name: str, value: Any) -> Any:
        def call(*_: Any) -> Any:
            if name == refuses:
                raise NvmlError("Driver Not Loaded")
            return value

        return call

    uuid = lambda handle: f"GPU-{'abcdefgh'[handle]}".encode() if as_bytes else f"GPU-{'abcdefgh'[handle]}"  # noqa: E731
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=answer("nvmlInit", None),
        nvmlShutdown=answer("nvmlShutdown", None),
        nvmlDeviceGetCount=answer("nvmlDeviceGetCount", count),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=uuid,
    )


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets of four cores with two hyperthreads each, numbered as Linux numbers them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(slots, "_core_of", lambda cpu: (cpu % 8 // 4, cpu % 4))


def devices(found: tuple[Slot, ...]) -> list[str]:
    return [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in found]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_uuids_in_the_order_of_nvml(as_bytes: bool) -> None:
    assert gpu_uuids(nvml(3, as_bytes=as_bytes)) == ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nvml(0), "there is none"),
        (nvml(1, refuses="nvmlInit"), "Driver Not Loaded"),
        (None, "pip install nvidia-ml-py"),
    ],
)
def test_gpus_that_cannot_be_counted(module: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(discovery, "has_traces", lambda: True)
    with pytest.raises(TargetError, match=says):
        gpu_uuids(module)


def test_where_there_is_no_gpu_nothing_has_to_be_installed_to_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not discovery.has_traces(tmp_path)
    for trace in ("dev/nvidia0", "proc/driver/nvidia", "nvidia-smi"):
        (tmp_path / trace).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / trace).touch(mode=0o755)
        assert discovery.has_traces(tmp_path)
        (tmp_path / trace).unlink()
    monkeypatch.setattr(discovery, "has_traces", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(TargetError, match=r"there is no NVIDIA GPU here \(no nvidia-smi") as caught:
        gpu_slots("all")
    assert "--workers N" in str(caught.value)
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "names", "uuids"),
    [
        ("all", ["gpu 0", "gpu 1", "gpu 2"], ["GPU-a", "GPU-b", "GPU-c"]),
        ("2", ["gpu 0", "gpu 1"], ["GPU-a", "GPU-b"]),
        ("2,0", ["gpu 2", "gpu 0"], ["GPU-c", "GPU-a"]),
    ],
)
def test_all_some_or_named_gpus(asked: str, names: list[str], uuids: list[str]) -> None:
    found = gpu_slots(asked, nvml=nvml(3))
    assert ([slot.name for slot in found], devices(found)) == (names, uuids)


def test_what_is_visible_is_taken_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-b,MIG-77,-1,4")
    assert devices(gpu_slots("all", nvml=nvml(9))) == ["3", "GPU-b", "MIG-77"]
    assert devices(gpu_slots("0,2", nvml=nvml(9))) == ["3", "MIG-77"]
    with pytest.raises(ConfigError, match=r"there are 3, numbered 0 to 2 \(CUDA_VISIBLE_DEVICES='3, GPU-b"):
        gpu_slots("4", nvml=nvml(9))


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_nothing_visible_is_refused(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(ConfigError, match="hides every GPU"):
        gpu_slots("all", nvml=nvml(2))


@pytest.mark.parametrize(
    ("visible", "says"),
    [
        ("0,0", "names 0 twice"),
        ("1,01", "names 01 twice"),
        ("GPU-ab,GPU-AB", "names GPU-AB twice"),
        ("1,7,foo", "names 'foo'; expected numbers, or UUIDs"),
        ("0;1", "names '0;1'"),
    ],
)
def test_visible_gpus_that_two_workers_would_share_or_that_are_none(
    visible: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError, match=says):
        gpu_slots("all", nvml=nvml(9))


@pytest.mark.parametrize("text", ["", "0", "some", "1,", "-1", "0;1", "1.5", "GPU-a"])
def test_gpus_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="expected all, how many, or which"):
        read_gpus(text)


def test_more_or_other_gpus_than_there_are() -> None:
    with pytest.raises(ConfigError, match="there is 1, number 0"):
        gpu_slots("2", nvml=nvml(1))
    with pytest.raises(ConfigError, match="there are 2, numbered 0 to 1"):
        gpu_slots("0,2", nvml=nvml(2))
    with pytest.raises(ConfigError, match="twice"):
        gpu_slots("1,01", nvml=nvml(2))


@pytest.mark.usefixtures("eight_cores")
def test_processors_are_divided_by_whole_cores() -> None:
    assert usable_cores() == [(0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)]
    assert [slot.cpus for slot in gpu_slots("all", nvml=nvml(2))] == [
        {0, 8, 1, 9, 2, 10, 3, 11},
        {4, 12, 5, 13, 6, 14, 7, 15},
    ]
    assert divide_processors(3) == (frozenset({0, 8, 1, 9}), frozenset({2, 10, 3, 11}), frozenset({4, 12, 5, 13}))
    assert divide_processors(9) == (frozenset(),) * 9


@pytest.mark.usefixtures("eight_cores")
def test_workers_on_the_processor_get_cores_without_their_hyperthreads() -> None:
    assert cpu_slots(3, 2) == (
        Slot("cpu 0", frozenset({0, 1})),
        Slot("cpu 1", frozenset({2, 3})),
        Slot("cpu 2", frozenset({4, 5})),
    )
    assert len(cpu_slots(8, 1)) == 8
    with pytest.raises(ConfigError, match=r"--workers 9: .* per 1 core, .* 8 cores\. Give --workers 8\."):
        cpu_slots(9, 1)
    with pytest.raises(ConfigError, match="Give --workers 2, or fewer --threads"):
        cpu_slots(3, 3)


def test_cores_of_this_machine() -> None:
    assert {cpu for core in usable_cores() for cpu in core} == os.sched_getaffinity(0)


@pytest.fixture
def one() -> Iterator[frozenset[int]]:
    before = os.sched_getaffinity(0)
    yield frozenset({max(before)})
    assert os.sched_getaffinity(0) == before


def test_what_is_started_inside_is_bound(one: frozenset[int]) -> None:
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    with bound(one):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(one))
    with bound(frozenset()):
        pass


def config(**options: Any) -> SearchConfig:
    return read_config({"model": "m.onnx", "data": "d.npz", **{k: [v] for k, v in options.items()}})


def test_options_that_ask_for_slots() -> None:
    assert slots_of(config(), kind_named("onnxruntime")) == ()
    for kind in map(kind_named, ("onnxruntime", "fake")):
        assert [slot.name for slot in slots_of(config(workers="1"), kind)] == ["cpu 0"]
    for device in ({}, {"device": "cuda"}):
        assert len(slots_of(config(gpus="2", **device), kind_named("tensorrt"), nvml=nvml(4))) == 2


@pytest.mark.parametrize(
    ("options", "backend", "says"),
    [
        ({"gpus": "all", "workers": "2"}, "tensorrt", "were both given"),
        ({"gpus": "all", "device": "cuda:1"}, "tensorrt", "--gpus and --device cuda:1"),
        ({"gpus": "all", "device": "cpu"}, "onnxruntime", "--gpus and --device cpu"),
        ({"workers": "2"}, "tensorrt", "got backend tensorrt.*--gpus"),
        ({"workers": "2", "device": "cuda"}, "onnxruntime", "got --device cuda"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, str], backend: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        slots_of(config(**options), kind_named(backend), nvml=nvml(4))


def test_slots_belong_to_a_run_and_not_to_the_study() -> None:
    given = config(workers="3")
    assert given.workers == 3
    assert given.to_json().keys().isdisjoint({"gpus", "workers", "storage"})
    assert SearchConfig.from_json(given.to_json()).with_values({"gpus": "0,1"}).gpus == "0,1"
    with pytest.raises(ConfigError, match="--workers"):
        config(workers="0")
