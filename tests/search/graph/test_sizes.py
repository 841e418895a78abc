"""Small files that stand for very much are read in little time and memory, or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from search.errors import ModelError
from search.graph.model import load
from tests.support.command_line import environment
from tests.support.huge_models import FLOAT, HUGE, added_maximum, save

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))"
LOAD = """
import json, re, sys, time
from pathlib import Path
from search.graph.model import load
before_s = time.process_time()
ops = sorted({node.op_type for node in load(Path(sys.argv[1])).graph.graph})
# VmHWM is of this program alone: what getrusage tells of a child begins with the size of its parent.
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([ops, time.process_time() - before_s, peak_kib]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("op", HUGE)
def test_a_constant_that_would_be_huge_is_not_computed(op: str, tmp_path: Path) -> None:
    nodes, arrays = HUGE[op]
    path = save(tmp_path / "m.onnx", nodes, **arrays)
    done = subprocess.run(
        [sys.executable, "-c", f"{LIMITED}{LOAD}", str(path)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ops, processor_s, peak_kib = json.loads(done.stdout)
    assert op in ops
    assert processor_s < 10
    assert peak_kib < 2 * 2**20


@pytest.mark.slow
def test_a_list_of_unknown_length_that_is_joined_with_itself_is_not_followed(tmp_path: Path) -> None:
    """Its length comes from values: shape inference alone does not know it."""
    cut = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "at"], ["end"], axis=0),
        helper.make_node("Slice", ["sizes", "at", "end"], ["list0"]),
    ]
    joins = [helper.make_node("Concat", [f"list{i}"] * 2, [f"list{i + 1}"], axis=0) for i in range(30)]
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("list30", onnx.TensorProto.INT64, None)
    graph = helper.make_graph([*cut, *joins], "g", [x], [y], [onnx.numpy_helper.from_array(np.array([2]), "at")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    code = "; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\nimport sys, onnx\n"
    code += "from search.graph.sizes import propagate_shapes\npropagate_shapes(onnx.load(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{LIMITED}{code}", str(tmp_path / "m.onnx")],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_usual_constants_are_still_computed(tmp_path: Path) -> None:
    nodes = added_maximum(helper.make_node("Range", ["first", "last", "step"], ["big"]))
    path = save(tmp_path / "m.onnx", nodes, first=np.int64(0), last=np.int64(1000), step=np.int64(1))
    assert [node.op_type for node in load(path).graph.graph] == ["Conv"]


def doubling(depth: int) -> tuple[onnx.FunctionProto, ...]:
    """Functions of which each calls the one before twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    made = []
    for number in range(depth):
        op, domain = (f"f{number - 1}", "local") if number else ("Relu", "")
        nodes = [helper.make_node(op, ["x"], ["t"], domain=domain), helper.make_node(op, ["t"], ["z"], domain=domain)]
        made.append(helper.make_function("local", f"f{number}", ["x"], ["z"], nodes, imports))
    return tuple(made)


def test_functions_that_grow_at_each_call_are_refused_before_they_are_written_out(tmp_path: Path) -> None:
    few = [helper.make_node("f3", ["c"], ["y"], domain="local")]
    assert len(load(save(tmp_path / "few.onnx", few, doubling(4))).graph.graph) == 17
    many = [helper.make_node("f39", ["c"], ["y"], domain="local")]
    path = save(tmp_path / "many.onnx", many, doubling(40))
    with pytest.raises(ModelError, match="at most 200,000 nodes"):
        load(path)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    own = helper.make_function("local", "f", ["x"], ["z"], [helper.make_node("f", ["x"], ["z"], domain="local")],
                               [helper.make_opsetid("local", 1)])  # fmt: skip
    path = save(tmp_path / "m.onnx", [helper.make_node("f", ["c"], ["y"], domain="local")], (own,))
    with pytest.raises(ModelError, match="calls itself"):
        load(path)


@pytest.mark.parametrize("where", ["node", "tensor"])
def test_names_have_a_length(where: str, tmp_path: Path) -> None:
    long = "9" * 200_000
    nodes = [helper.make_node("Relu", ["c"], ["y"], name=long)]
    if where == "tensor":
        nodes = [helper.make_node("Relu", ["c"], [long]), helper.make_node("Relu", [long], ["y"])]
    with pytest.raises(ModelError, match="at most 4,096 characters"):
        load(save(tmp_path / "m.onnx", nodes))


def test_external_data_need_no_length(tmp_path: Path) -> None:
    first = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    second = np.random.default_rng(1).normal(size=(8, 8, 3, 3)).astype(np.float32)
    tensors = []
    for name, array, offset in (("w", first, 0), ("v", second, first.nbytes)):
        tensor = TensorProto(name=name, data_type=FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(offset))):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    (tmp_path / "w.bin").write_bytes(first.tobytes() + second.tobytes())
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["c"]), helper.make_node("Conv", ["c", "v"], ["y"])],
        "g",
        [helper.make_tensor_value_info("image", FLOAT, [4, 3, 8, 8])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 8, 4, 4])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = load(tmp_path / "m.onnx").graph.graph.initializers
    for name, array in (("w", first), ("v", second)):
        constant = found[name].const_value
        assert constant is not None
        np.testing.assert_array_equal(constant.numpy(), array)
