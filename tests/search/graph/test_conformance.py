"""The conformance models of the onnx package: what cleaning and lowering make of them is valid, and the same."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT
from evaluators.process.tasks.open_model import _make_up_ranges
from search.errors import ModelError
from search.graph.model import Model, load
from search.values import Precision
from tests.support.assignments import uniform
from tests.support.networks import plain_session, save
from tests.support.old_runtime import OLD

DATA = Path(onnx.backend.test.__file__).parent / "data"
PARTS = 4
WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
LEAST_SAME = 22
LOWERED = [(TENSORRT, Precision.FP16), (TENSORRT, Precision.INT8), (ONNXRUNTIME_CPU, Precision.INT8)]
# Behind an op that only reads a shape nothing depends on the product; sequences as inputs and outputs are refused.
REFUSED = (
    "There is no layer to choose a precision for",
    "expected inputs and outputs that are tensors",
)
# Of an opset that ONNX's own inference cannot follow into the function that the op stands for.
NOT_INFERRED = {"test_mvn"}
Feeds = dict[str, NDArray[Any]]


@functools.cache
def collect_cases() -> list[Any]:
    return collect_testcases(None)


def is_same(before: list[Any], after: list[Any]) -> bool:
    """Whether arrays are equal within rounding; sequences, by their parts."""
    for old, new in zip(before, after, strict=True):
        if isinstance(old, list):
            if not is_same(old, new):
                return False
        elif isinstance(old, np.ndarray) and old.dtype.kind == "f":
            if not np.allclose(old, new, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
        elif not np.array_equal(old, new):
            return False
    return True


def find_faults(model: Model, feeds: Feeds, before: list[Any], full: bool = True) -> Iterator[str]:
    """What is wrong with the clean model, which computes `before`, and with what lowering makes of it."""
    clean = ir.to_proto(model.graph)
    yield from _faults_of_checker(clean, "clean", full)
    if not is_same(before, plain_session(clean).run(None, feeds)):
        yield "another result"
    ranges = _make_up_ranges(model)
    for placement, precision in LOWERED:
        what = f"{precision.label} for {placement.name}"
        try:
            lowered = ir.to_proto(lower(model, uniform(model, precision), ranges, placement))
        except Exception as error:
            yield f"{what}: {type(error).__name__}: {error}"
            continue
        yield from _faults_of_checker(lowered, what, full)
        try:
            plain_session(lowered).run(None, feeds)
        except NoKernelError:
            pass  # an opset newer than ONNX Runtime's own kernels of Q and DQ
        except Exception as error:
            yield f"{what}: {type(error).__name__}: {error}"


def _faults_of_checker(proto: onnx.ModelProto, what: str, full: bool) -> Iterator[str]:
    try:
        onnx.checker.check_model(proto, full_check=full)
    except Exception as error:
        yield f"{what} is not valid: {str(error).splitlines()[0]}"


def behind_a_product(case: onnx.ModelProto, arrays: list[Any]) -> tuple[onnx.ModelProto, Feeds] | None:
    """A node case whose first float input comes from a MatMul; its other inputs are constants. None without one."""
    model = onnx.ModelProto()
    model.CopyFrom(case)
    graph = model.graph
    found = [(i, array) for i, array in enumerate(arrays) if isinstance(array, np.ndarray)]
    picks = [i for i, array in found if array.dtype == np.float32 and array.ndim and array.size]
    if not picks:
        return None
    (pick, *_), name = picks, graph.input[picks[0]].name
    shape = arrays[pick].shape
    for node in graph.node:
        node.input[:] = [f"{name}/made" if given == name else given for given in node.input]
    identity = np.eye(shape[-1], dtype=np.float32)
    graph.initializer.append(numpy_helper.from_array(identity, "identity"))
    graph.node.insert(0, helper.make_node("MatMul", [name, "identity"], [f"{name}/made"], "product"))
    constant = [i for i, _ in found if i != pick]
    graph.initializer.extend(numpy_helper.from_array(arrays[i], graph.input[i].name) for i in constant)
    kept = [value for i, value in enumerate(case.graph.input) if i not in constant]
    del graph.input[:]
    graph.input.extend(kept)
    place = next(i for i, value in enumerate(kept) if value.name == name)
    graph.input[place].CopyFrom(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return model, {name: arrays[pick]}


@pytest.mark.slow
def test_models_of_the_onnx_package_compute_the_same_and_are_valid(tmp_path: Path) -> None:
    same, faults = 0, list[str]()
    for path in sorted(DATA.rglob("model.onnx")):
        if not WEIGHTED & {node.op_type for node in onnx.load(path).graph.node}:
            continue
        feeds = {
            value.name: numpy_helper.to_array(onnx.load_tensor(path.parent / "test_data_set_0" / f"input_{place}.pb"))
            for place, value in enumerate(onnx.load(path).graph.input)
            if (path.parent / "test_data_set_0" / f"input_{place}.pb").exists()
        }
        try:
            before = plain_session(onnx.load(path)).run(None, feeds)
        except Exception:
            continue  # ONNX Runtime does not run it either
        faults += [f"{path.parent.name}: {fault}" for fault in find_faults(load(path), feeds, before)]
        same += 1
    assert faults == []
    assert same >= LEAST_SAME


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the cases themselves, which NumPy makes
@pytest.mark.parametrize("part", range(PARTS))
def test_node_cases_behind_a_product_compute_the_same_and_are_valid(part: int, tmp_path: Path) -> None:
    same, faults = 0, list[str]()
    for case in collect_cases()[part::PARTS]:
        made = None if "_expanded" in case.name else behind_a_product(case.model, case.data_sets[0][0])
        if made is None:
            continue
        network, feeds = made
        if OLD and any(node.op_type == "Attention" and len(node.output) > 3 for node in network.graph.node):
            continue  # outputs that are left out have a name after loading, which 1.23 takes for keys that are wanted
        try:
            onnx.checker.check_model(network)
            before = plain_session(network).run(None, feeds)
        except Exception:
            continue  # not valid with a constant there, or ONNX Runtime does not run it either
        try:
            model = load(save(network, tmp_path / "net.onnx"))
        except ModelError as error:
            faults += [] if any(text in str(error) for text in REFUSED) else [f"{case.name}: {error}"]
            continue
        full = case.name not in NOT_INFERRED
        faults += [f"{case.name}: {fault}" for fault in find_faults(model, feeds, before, full)]
        same += 1
    assert faults == []
    assert same > 80
