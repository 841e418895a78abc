"""TensorRT's real strongly typed builder takes what the project's own builder gives it; see `strong_build.py`.

Fetches about 150 MB from PyPI once. Skipped with a reason where that is impossible, but fails with
BITFRONT_REQUIRE_STRONG=1.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.assignments import mixes
from tests.support.networks import BEYOND, NETWORKS, ODD, loaded
from tests.support.tensorrt import strong_build
from tests.support.tensorrt.fake_tensorrt import read_listing

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]  # the first use fetches
ALL = [*NETWORKS, *ODD, *BEYOND]


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    """What came of every network, built in two processes, one per core of a small machine."""
    processes: list[subprocess.Popen[str]] = []
    try:
        processes += [strong_build.start(ALL[part::2]) for part in range(2)]
        results = [strong_build.finish(process) for process in processes]
    except strong_build.UnavailableError as error:
        reason = f"TensorRT's strongly typed build is not available here: {error}"
        if os.environ.get("BITFRONT_REQUIRE_STRONG") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    finally:
        for process in processes:
            process.kill()
    networks = {name: found for result in results for name, found in result["networks"].items()}
    return {**results[1], **results[0], "networks": networks}


@pytest.mark.parametrize("name", ALL)
def test_every_assignment_builds(name: str, built: dict[str, Any]) -> None:
    """Uniform FP32, FP16 and INT8, mixes, two probes with every group's output exposed, and weakly typed mixes.

    The last are all INT8 and two mixes with Q/DQ where weakly typed engines round.
    """
    found = built["networks"][name]
    assert found["refused"] == {}
    assert found["asked"] == len(list(mixes(loaded(name))))
    assert found["bytes"] > 1000


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("mixed_add", "SUM must have same input types. But they are of types Float and Half"),
        ("for_onnx_runtime", "has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8"),
        ("two_types", "Input and filter have to be the same type"),
        ("no_onnx", "Failed to parse the ONNX model"),
    ],
)
def test_what_breaks_the_rules_is_refused_in_tensorrts_words(planted: str, said: str, built: dict[str, Any]) -> None:
    message = built["planted"][planted]
    assert message.startswith("RefusedError[")
    assert said in message


def test_every_format_that_is_offered_builds(built: dict[str, Any]) -> None:
    """Uniform, and in ten mixes of each of three networks, and of two with all that may be decided."""
    tried = built["formats"]
    assert {words: error for words, error in tried.items() if error} == {}
    assert {f"row_products {label}" for label in ("fp32", "fp16", "bf16", "w8", "int8", "fp8", "w4")} <= tried.keys()
    assert sum("mix" in words for words in tried) == 50


def test_a_refusal_names_the_group(built: dict[str, Any]) -> None:
    group = next(group for group in loaded("residual").groups if "block.0/add" in group.nodes)
    assert built["planted"]["mixed_add"].startswith(f"RefusedError[{group.id}]")


def test_a_dynamic_batch_builds_with_its_profile_and_only_with_it(built: dict[str, Any]) -> None:
    assert built["dynamic"]["with a profile"] == ""
    assert "profile" in built["dynamic"]["without"]


def test_every_knob_is_taken_and_the_timing_cache_is_read_again(built: dict[str, Any]) -> None:
    assert built["knobs"] == ""
    assert built["timing_cache_bytes"] > 0


def test_a_plan_cut_short_is_refused(built: dict[str, Any]) -> None:
    assert built["cut"].startswith("RefusedError[None]: the plan cut cannot be loaded: ")
    assert "Serialization" in built["cut"]


def test_the_listing_is_what_the_bindings_have(built: dict[str, Any]) -> None:
    recorded = read_listing(built["version"])
    del recorded["wheel"]
    assert built["listing"] == recorded


def test_without_network_and_cache_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITFRONT_STRONG_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        strong_build.UnavailableError, match="No matching distribution found for tensorrt-cu13-bindings"
    ):
        strong_build.environment()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"], "nothing half-made is left"


def test_what_the_real_parser_makes_has_bounds(built: dict[str, Any]) -> None:
    """Of weak typing, whose ranges come from them: constants, and the product of a Gemm with a bias."""
    bounds = built["bounds"]
    assert [bounds[name] for name in ("three", "six", "gains")] == [3, 5.5, 60]
    assert bounds["fc"] == pytest.approx(bounds["logits"] + bounds["fc.b"])
    assert 0 < bounds["fc.b"] < 0.1
