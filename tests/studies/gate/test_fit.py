"""Which engines can be compared on this host: backends, threads and targets of both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from evaluators.backends.registry import kind_named
from evaluators.engine import Backend
from search.errors import ConfigError, TargetError
from search.values import Target
from studies.gate.check import GateLimits, check_limits
from studies.gate.gate import check_target, common_backend, threads_of
from studies.gate.side import Side

HERE = Target("tensorrt", "a GPU", {"tensorrt": "10.0"}, {"threads": "1", "typing": "weak"}, "median", relative=False)
FILE = Side("model.plan", Path("model.plan"), "tensorrt")
EXPORT = replace(FILE, name="engine", target=HERE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "another GPU"}, "device: another GPU against a GPU"),
        ({"versions": {"tensorrt": "8.6"}}, "versions.tensorrt: 8.6 against 10.0"),
        ({"options": {"threads": "2"}}, "options.threads: 2 against 1"),
    ],
)
def test_what_decides_on_speed_has_to_be_the_same(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_target(replace(EXPORT, target=replace(HERE, **change)), HERE)


def test_options_of_the_builder_and_files_that_tell_nothing_do_not_matter() -> None:
    check_target(replace(EXPORT, target=replace(HERE, options={"threads": "1", "typing": "strong"})), HERE)
    check_target(FILE, HERE)


def test_threads_are_those_that_an_engine_was_measured_with() -> None:
    two = replace(EXPORT, target=replace(HERE, options={"threads": "2"}))
    assert threads_of(FILE, FILE, None) == 1
    assert threads_of(FILE, two, None) == threads_of(two, FILE, None) == 2
    assert threads_of(two, two, 4) == 4


def test_the_backend_is_that_of_both_sides() -> None:
    assert common_backend(FILE, EXPORT, "auto") == "tensorrt"
    with pytest.raises(ConfigError, match="expected engines of one backend, got tensorrt and onnxruntime"):
        common_backend(FILE, replace(FILE, backend="onnxruntime"), "auto")
    with pytest.raises(ConfigError, match="and --backend onnxruntime"):
        common_backend(FILE, FILE, "onnxruntime")


def test_a_gate_has_something_to_check() -> None:
    assert GateLimits(0.01, 0.03).checks == 2
    with pytest.raises(ConfigError, match="got neither"):
        check_limits(GateLimits())


@pytest.mark.parametrize(
    ("backend", "said"), [("fake", "cannot run an engine without its model"), ("tensorrt", "runs plans")]
)
def test_backends_refuse_what_is_no_engine_of_theirs(backend: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        kind_named(backend).open_engine(cast(Backend, None), Path("model.onnx"), None)
