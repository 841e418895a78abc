"""A model that one ONNX file cannot hold goes the whole way: search, export, a served engine, recovery.

A small model stands in for it: files are taken to hold a thousand bytes of constants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from search.graph import onnx_file, packed_file
from studies.guard import Guard
from tests.support.command_line import ok, three_layers, write_inputs
from tests.support.evaluator_patches.quick import SMALL_FILE_BYTES
from tests.support.networks import plain_session, with_uneven_channels

STEP = "tests.support.extensions.toy_step:Balance"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a network whose weights lie beside it, its data, and an export of its FP32 engine."""
    folder = tmp_path_factory.mktemp("large")
    write_inputs(folder, with_uneven_channels(three_layers(), "first", "second"), samples=120)
    proto = onnx.load(folder / "model.onnx")
    onnx.save_model(proto, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITFRONT_TEST_SMALL_FILES", "1")
        patch.setattr(onnx_file, "_MOST_INSIDE", SMALL_FILE_BYTES)
        patch.chdir(folder)
        ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 3, "--recover", STEP,
           "--keep-engines", "all", "--quiet")  # fmt: skip
        ok("export", "s", "--trial", 0, "--out", "engine", "--triton", "net")
        yield folder


def run(path: Path, images: np.ndarray) -> np.ndarray:
    return np.asarray(plain_session(onnx.load(path)).run(None, {"image": images})[0])


def test_an_export_is_an_onnx_file_with_its_weights_beside_it(here: Path) -> None:
    names = {path.name for path in (here / "engine").iterdir()}
    large = {"model.onnx", "model.onnx.data", "model.float.onnx", "model.float.onnx.data"}
    assert large < names
    assert set(json.loads((here / "engine/manifest.json").read_text())["files"]) >= large
    served = {path.name for path in (here / "engine/triton/net/1").iterdir()}
    assert served == {"model.onnx", "model.onnx.data"}
    images = np.load(here / "data.npz")["image"][:4]
    expected = run(here / "model.onnx", images)
    for name in ("model.onnx", "model.float.onnx"):
        np.testing.assert_allclose(run(here / "engine" / name, images), expected, rtol=1e-4, atol=1e-5)


def test_engines_of_the_study_are_packed_files(here: Path) -> None:
    files = [path for path in here.rglob("*") if path.is_file() and path.stat().st_size > 100]
    assert any(packed_file.read_message(path) is not None for path in files)


def test_the_export_is_served(here: Path) -> None:
    images = np.load(here / "data.npz")["image"][:4]
    with Guard.open(here / "engine", here / "engine") as guard:
        answer = guard.run({"image": images})
    np.testing.assert_allclose(answer["logits"], run(here / "model.onnx", images), rtol=1e-4, atol=1e-5)


def test_an_engine_is_compared_group_by_group(here: Path) -> None:
    found = json.loads(ok("compare", "s", 0, "--groups", "--json"))
    assert found["groups"]


def test_it_is_recovered_without_a_study(here: Path) -> None:
    ok("recover", "model.onnx", "--data", "data.npz", "--recover", STEP, "--out", "recovered")
    assert {"model.float.onnx", "model.float.onnx.data"} < {path.name for path in (here / "recovered").iterdir()}
    images = np.load(here / "data.npz")["image"][:4]
    recovered, given = (run(here / name, images) for name in ("recovered/model.float.onnx", "model.onnx"))
    np.testing.assert_array_equal(recovered, given)
