"""Models that never end or grow without end are given up within the limits, before a study is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.command_line import child
from tests.support.huge_models import FLOAT, HUGE, save

BOOL = TensorProto.BOOL

pytestmark = pytest.mark.slow


def endless(body: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """A loop whose condition stays true, which makes `next` of `value` each time."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), *body],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("value", FLOAT, None),
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("next", FLOAT, None)],
    )
    return [helper.make_node("Loop", ["", "true", "c"], ["end"], body=graph), helper.make_node("Relu", ["end"], ["y"])]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", image=np.random.default_rng(0).normal(size=(64, 3, 8, 8)).astype(np.float32))
    return tmp_path


def search(here: Path, *limits: str) -> str:
    """What a search that has to be refused says."""
    done = child("search", "model.onnx", "--data", "data.npz", *limits, cwd=here)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "bitfront.db").exists()
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("more", "request_name"),
    [((), "open"), (("--metric", "mse"), "try_out")],
    ids=["run to choose the metric", "run to try it"],
)
@pytest.mark.parametrize(("limit", "says"), [("--time-limit", "10 s"), ("--evaluation-timeout", "3 s")])
def test_a_loop_that_never_ends_is_given_up(
    here: Path, more: tuple[str, ...], request_name: str, limit: str, says: str
) -> None:
    """The outputs' shapes are unknown, so the model runs as the job is opened, which may take long without it."""
    save(here / "model.onnx", endless([helper.make_node("Add", ["value", "value"], ["next"])]), true=True)
    said = search(here, limit, "3s", *more)
    assert f"trying the float model: {request_name} " in said
    assert says in said


def test_a_model_that_grows_without_end_is_given_up(here: Path) -> None:
    """16 MiB more in each round."""
    body = [
        helper.make_node("Expand", ["one", "size"], ["more"]),
        helper.make_node("Concat", ["value", "more"], ["next"], axis=0),
    ]
    arrays = {"true": True, "one": np.ones((1, 8, 6, 6), np.float32), "size": np.array([14564, 8, 6, 6])}
    save(here / "model.onnx", endless(body), **arrays)
    assert "of memory, more than the limit of 1024 MiB" in search(here, "--evaluation-memory", "1GiB")


def test_a_range_of_a_huge_number_takes_no_memory(here: Path) -> None:
    """It is 256 GiB: computing it fails in the process that has limits, and nowhere else."""
    nodes, arrays = HUGE["Range"]
    save(here / "model.onnx", nodes, **arrays)
    assert "trying the float model: " in search(here, "--evaluation-memory", "2GiB")
