"""Metrics of a guard: what it counts, errors by layer from an exported folder, and what is clipped."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest
from numpy.typing import NDArray

from search.installation import install_command
from search.values import TensorRange
from studies.guard import Guard, GuardError, GuardOptions
from studies.guard.metrics import GuardMetrics, LayerErrors
from studies.guard.metrics.guard_metrics import MOST_LAYERS
from studies.guard.metrics.layer_errors import RunningError
from tests.support.exported_folder import write_export
from tests.support.networks import images

Arrays = dict[str, NDArray[Any]]
ALL = GuardOptions(share=1, window=5, probe_after_s=1e6, queue=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("export"))


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


class Engine:
    """Gives its input, on demand wrong or failing."""

    def __init__(self) -> None:
        self.sign = 1
        self.error: Exception | None = None

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        if self.error is not None:
            raise self.error
        return {"y": self.sign * np.asarray(inputs["x"], np.float32)}


@pytest.fixture
def engines() -> tuple[Engine, Engine]:
    return Engine(), Engine()


@pytest.fixture
def guard(engines: tuple[Engine, Engine]) -> Iterator[Guard]:
    with Guard(*engines, ALL, sensor=lambda: {"temperature_c": 50.0, "fan": 2.0}) as guard:
        yield guard


def send(guard: Guard, count: int) -> None:
    for seed in range(count):
        guard.run({"x": np.random.default_rng(seed).normal(size=(1, 10)).astype(np.float32)})
    guard.drain()


def test_requests_comparisons_and_latencies_are_counted(guard: Guard, registry: Any) -> None:
    GuardMetrics(guard, registry=registry)
    send(guard, 7)
    value = registry.get_sample_value
    assert value("bitfront_guard_requests_total") == 7
    assert value("bitfront_guard_compared_samples_total") == 7
    assert value("bitfront_guard_dropped_samples_total") == 0
    assert value("bitfront_guard_disagreements_total") == 0
    assert value("bitfront_guard_request_duration_seconds_count", {"engine": "fast"}) == 7
    assert value("bitfront_guard_output_error", {"output": "y"}) == 0
    assert value("bitfront_guard_agreement_ratio") == 1
    assert value("bitfront_guard_serving", {"engine": "fast"}) == 1


def test_sensors_are_read_without_a_policy(guard: Guard, registry: Any) -> None:
    GuardMetrics(guard, registry=registry)
    send(guard, 1)
    assert registry.get_sample_value("bitfront_guard_temperature_celsius") == 50
    assert registry.get_sample_value("bitfront_guard_sensor", {"name": "fan"}) is None
    assert registry.get_sample_value("bitfront_guard_sensor", {"sensor": "fan"}) == 2


def test_a_wrong_engine_shows_as_disagreements_an_error_and_an_open_breaker(
    guard: Guard, engines: tuple[Engine, Engine], registry: Any
) -> None:
    GuardMetrics(guard, registry=registry)
    engines[0].sign = -1
    send(guard, 25)
    value = registry.get_sample_value
    assert value("bitfront_guard_disagreements_total") == value("bitfront_guard_compared_samples_total") == 25
    assert value("bitfront_guard_output_error", {"output": "y"}) == pytest.approx(4)
    assert value("bitfront_guard_state", {"state": "open"}) == 1
    assert value("bitfront_guard_state", {"state": "closed"}) == 0
    send(guard, 3)
    assert value("bitfront_guard_request_duration_seconds_count", {"engine": "safe"}) >= 3


def test_requests_that_no_engine_answers_are_counted(
    guard: Guard, engines: tuple[Engine, Engine], registry: Any
) -> None:
    GuardMetrics(guard, registry=registry)
    for engine in engines:
        engine.error = RuntimeError("planted")
    for _ in range(2):
        with pytest.raises(GuardError):
            send(guard, 1)
    assert registry.get_sample_value("bitfront_guard_request_failures_total") == 2
    assert registry.get_sample_value("bitfront_guard_request_duration_seconds_count", {"engine": "fast"}) is None


def test_a_closed_collector_leaves_nothing(guard: Guard, registry: Any) -> None:
    GuardMetrics(guard, registry=registry).close()
    send(guard, 1)
    assert list(registry.collect()) == []
    GuardMetrics(guard, registry=registry)  # its names are free again


# -- errors by layer ---------------------------------------------------------------------------------------------------


def test_every_group_of_an_export_has_an_error_that_grows_on_the_way(folder: Path) -> None:
    layers = LayerErrors.open(folder, every_s=0)
    assert layers.errors() == {}
    assert layers.offer({"image": images(1)})
    found = layers.errors()
    blocks = {f"block.{number}/{conv}" for number in (0, 1) for conv in ("conv1", "conv2")}
    assert set(found) == {"stem", *blocks, "block.1/down", "fc"}
    assert all(0 < error < 0.1 for error in found.values()), found


def test_an_export_in_float_has_no_error(tmp_path: Path) -> None:
    layers = LayerErrors.open(write_export(tmp_path, "fp32"), every_s=0)
    layers.offer({"image": images(1)})
    assert max(layers.errors().values()) < 1e-10


def test_an_export_of_tensorrt_is_emulated_with_its_own_placement(tmp_path: Path) -> None:
    layers = LayerErrors.open(write_export(tmp_path, backend="tensorrt"), every_s=0)
    layers.offer({"image": images(1)})
    assert all(0 < error < 0.1 for error in layers.errors().values())


def test_brighter_inputs_leave_the_ranges(folder: Path) -> None:
    usual, bright = (LayerErrors.open(folder, every_s=0) for _ in range(2))
    usual.offer({"image": images(1)})
    bright.offer({"image": 8 * images(1)})
    assert bright.saturation()["image"] > usual.saturation()["image"] + 0.1
    assert bright.errors()["stem"] > 10 * usual.errors()["stem"]


def test_emulation_keeps_to_its_share_of_the_time() -> None:
    now = [0.0]

    def slow(inputs: Arrays) -> Arrays:
        now[0] += 3.0
        return {"layer": inputs["x"]}

    layers = LayerErrors(slow, slow, {}, every_s=10, clock=lambda: now[0])
    inputs = {"x": np.ones(3)}
    assert [layers.offer(inputs), layers.offer(inputs)] == [True, False]
    now[0] = 125.0  # 6 s of work, then 20 times as long
    assert not layers.offer(inputs)
    now[0] = 127.0
    assert layers.offer(inputs)
    assert layers.runs == 2


def test_clipped_values_are_counted() -> None:
    run = lambda inputs: {"layer": inputs["x"] * 2}  # noqa: E731
    layers = LayerErrors(run, run, {"x": TensorRange(0, 1), "layer": TensorRange(0, 10)}, every_s=0)
    layers.offer({"x": np.array([0.0, 0.5, 2.0, -1.0])})
    assert layers.saturation() == {"x": 0.5, "layer": 0.25}


def test_the_worst_layers_are_told_and_the_maximum(guard: Guard, registry: Any) -> None:
    exact = {f"layer{i}": np.ones(4) for i in range(30)}
    quantized = {f"layer{i}": np.full(4, 1 + i / 10) for i in range(30)}
    layers = LayerErrors(lambda inputs: exact, lambda inputs: quantized, {}, every_s=0)
    GuardMetrics(guard, layers, registry=registry)
    send(guard, 1)
    (family,) = [each for each in registry.collect() if each.name == "bitfront_quantization_error"]
    assert len(family.samples) == MOST_LAYERS
    assert {sample.labels["layer"] for sample in family.samples} == {f"layer{i}" for i in range(10, 30)}
    assert registry.get_sample_value("bitfront_quantization_error_max") == pytest.approx(2.9**2)
    assert registry.get_sample_value("bitfront_emulated_samples_total") == 1


def test_an_emulation_that_fails_costs_no_request(engines: tuple[Engine, Engine], registry: Any) -> None:
    said: list[str] = []

    def fail(inputs: Arrays) -> Arrays:
        raise GuardError("planted")

    with Guard(*engines, ALL, tell=said.append) as guard:
        GuardMetrics(guard, LayerErrors(fail, fail, {}, every_s=0), registry=registry)
        send(guard, 2)
        assert guard.state().compared == 2
    assert said == ["computing metrics of a compared sample: planted."]  # once


def test_old_samples_are_forgotten() -> None:
    error = RunningError(2)
    for value in (5.0, 1.0, 1.0):
        error.add("a", np.array([value]), np.array([1.0]))
    error.add("b", np.array([math.nan]), np.array([1.0]))
    error.add("c", np.ones(2), np.ones(3))
    assert error.errors() == {"a": 0.0, "b": math.inf, "c": math.inf}


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=r"expected a folder that `bitfront export` wrote"):
        LayerErrors.open(tmp_path)


def test_a_manifest_of_another_model_is_refused(tmp_path: Path) -> None:
    write_export(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["precision"]["stem"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(GuardError, match=r"the precision of every group of model\.float\.onnx, got KeyError: 'stem'"):
        LayerErrors.open(tmp_path)


def test_inputs_of_another_shape_are_told(folder: Path) -> None:
    with pytest.raises(Exception, match="ONNX Runtime failed"):
        LayerErrors.open(folder, every_s=0).offer({"image": images(1, shape=(3, 8, 8))})
    with pytest.raises(GuardError, match="expected the inputs image; image is missing"):
        LayerErrors.open(folder, every_s=0).offer({"x": images(1)})


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "prometheus_client":
            raise ModuleNotFoundError("No module named 'prometheus_client'", name=name)
sys.meta_path.insert(0, Blocker())
from studies.guard import Guard, GuardError
from studies.guard.metrics import GuardMetrics
print([m for m in ("onnx", "onnx_ir", "onnxruntime", "sqlalchemy", "optuna") if m in sys.modules])
with Guard(dict, dict) as guard:
    try:
        GuardMetrics(guard)
    except GuardError as error:
        print(error)
"""


def test_without_prometheus_client_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    heavy, message = done.stdout.splitlines()
    assert heavy == "[]"
    assert message.endswith(f"Install it: {install_command('metrics')}")
