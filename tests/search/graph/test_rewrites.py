"""Exact rewrites: factors and offsets beside layers, activations written out, moves that undo each other, Reshapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.errors import ModelError
from search.graph.model import Model, load
from search.graph.shapes import ShapeRequest
from tests.support.chains import Chain
from tests.support.networks import plain_session


def loaded(chain: Chain, folder: Path, opset: int = 17) -> Model:
    """The clean model, which is valid and computes what the file does."""
    path = chain.save(folder / "m.onnx", opset)
    model = load(path)
    proto = ir.to_proto(model.graph)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(1).normal(size=chain.shape).astype(np.float32)
    (expected,) = plain_session(onnx.load(path)).run(None, {"x": x})
    (found,) = plain_session(proto).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max()))
    return model


def ops(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.graph]


def test_what_stands_behind_a_layer_is_taken_into_it(tmp_path: Path) -> None:
    chain = Chain()
    for bias in (True, False):
        chain.conv(bias=bias, size=3, pads=[1, 1, 1, 1])
        chain.add("Mul", chain.constant([1.7]))
        chain.add("Add", chain.random(4, 1, 1))
        chain.add("Div", chain.random(1, 4, 1, 1))
        chain.add("Sub", chain.constant(0.25))
        chain.add("Relu")
    model = loaded(chain, tmp_path)
    assert ops(model) == ["Conv", "Relu", "Conv", "Relu"]
    assert [group.name for group in model.groups] == ["n0", "n6"]


def test_what_stands_before_a_layer_is_taken_into_it_and_of_one_that_pads_the_factor_alone(tmp_path: Path) -> None:
    chain = Chain()
    chain.add("Relu")
    chain.add("Mul", chain.random(4, 1, 1))
    chain.add("Add", chain.random(1, 4, 1, 1))
    chain.conv(group=2)
    chain.add("Relu")
    chain.add("Mul", chain.constant([0.6]))
    chain.add("Add", chain.constant([-0.3]))
    chain.conv(size=3, pads=[1, 1, 1, 1])
    assert ops(loaded(chain, tmp_path)) == ["Relu", "Conv", "Relu", "Add", "Conv"]


@pytest.mark.parametrize("op", ["Mul", "Div", "Sub", "Add"])
def test_a_constant_that_spreads_one_channel_over_several_stays(op: str, tmp_path: Path) -> None:
    """Grey images with the means of three colours, or one feature times a vector."""
    for shape, spread in (((2, 1, 6, 6), (1, 4, 1, 1)), ((5, 1), (4,))):
        chain = Chain(shape)
        chain.add(op, chain.constant(np.linspace(1, 2, 4).reshape(spread)))
        if len(shape) == 2:
            chain.add("Gemm", chain.random(4, 3), chain.random(3))
        else:
            chain.conv()
        assert ops(loaded(chain, tmp_path))[0] == op


def test_what_normalizes_features_of_different_sizes_stays_and_what_normalizes_images_goes(tmp_path: Path) -> None:
    """A layer that read pressures beside shares would have no codes in 8 bits for the latter."""
    for means, stds, left in (
        ([0.485, 0.456, 0.406, 0.449], [0.229, 0.224, 0.225, 0.226], []),
        ([1013, 290, 0.4, 0.001], [10, 20, 0.2, 0.001], ["Sub", "Div"]),
        ([90, 100, 110, 95], [2, 2, 2, 2], ["Sub", "Div"]),
        ([90, 100, 110, 95], 2, ["Sub", "Div"]),
        ([104, 117, 123, 114], 58, []),
    ):
        chain = Chain((6, 4))
        chain.add("Sub", chain.constant(means))
        chain.add("Div", chain.constant(stds))
        chain.add("Gemm", chain.random(4, 3), chain.random(3))
        assert ops(loaded(chain, tmp_path)) == [*left, "Gemm"]
    chain = Chain((6, 4))
    chain.add("Sub", chain.constant(50_000))
    chain.add("Gemm", chain.random(4, 3), chain.random(3))
    assert ops(loaded(chain, tmp_path)) == ["Sub", "Gemm"]


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose", "Gemm", "Gemm without beta"])
def test_a_bias_that_is_left_out_by_an_empty_name_is_as_none(layer: str, tmp_path: Path) -> None:
    chain = Chain((5, 4) if layer.startswith("Gemm") else (2, 4, 6, 6))
    if layer == "Gemm without beta":
        chain.add("Gemm", chain.random(4, 4), chain.random(4), beta=0.0)
    else:
        chain.add(layer, chain.random(4, 4) if layer == "Gemm" else chain.random(4, 4, 1, 1), "")
    chain.add("BatchNormalization", *[chain.constant(np.linspace(start, 2, 4)) for start in (1, -1, -2, 0.5)])
    assert ops(loaded(chain, tmp_path)) == [layer.split()[0]]


@pytest.mark.parametrize("opset", [12, 17])
def test_what_stands_behind_views_of_a_layer_is_taken_into_it(opset: int, tmp_path: Path) -> None:
    """As TensorFlow's exporter writes 1-D convolutions, and layers whose channels come last."""
    chain = Chain((2, 4, 6, 1))
    for name, numbers in {"zero": [0, 0], "ends": [9, 5], "axes": [1, 2], "last": [3]}.items():
        chain.constants[name] = np.array(numbers, np.int64)
    chain.conv(bias=False)
    chain.add("Slice", "zero", "ends", "axes")
    chain.add("Squeeze", *["last"] * (opset > 12), **({"axes": [3]} if opset == 12 else {}))
    chain.add("Add", chain.random(1, 4, 1))
    chain.add("Transpose", perm=[0, 2, 1])
    chain.add("Mul", chain.random(4))
    chain.add("Sub", chain.constant(0.5))
    chain.add("Relu")
    model = loaded(chain, tmp_path, opset)
    assert ops(model) == ["Conv", "Slice", "Squeeze", "Transpose", "Relu"]
    names = {value.name for node in model.graph.graph for value in node.outputs}
    assert "t6" in names  # the sum, whose numbers are still there
    assert names.isdisjoint({"t0", "t1", "t2", "t3", "t4", "t5"})


def test_what_differs_along_a_view_stays(tmp_path: Path) -> None:
    chain = Chain((2, 4, 6, 1))
    chain.conv(bias=False)
    chain.add("Transpose", perm=[0, 3, 2, 1])
    chain.add("Add", chain.random(6, 1))
    chain.add("Relu")
    assert "Add" in ops(loaded(chain, tmp_path))
    chain = Chain((2, 4, 6, 1))
    chain.conv(bias=False)
    chain.add("Squeeze", axes=[3])
    chain.add("Add", chain.random(6))
    chain.add("Relu")
    assert "Add" in ops(loaded(chain, tmp_path, 12))


def test_numbers_without_axes_are_taken_in_too(tmp_path: Path) -> None:
    chain = Chain()
    chain.add("Relu")
    chain.add("Mul", chain.constant(0.6))
    chain.add("Add", chain.constant(-0.3))
    chain.conv(size=3, pads=[1, 1, 1, 1])
    model = loaded(chain, tmp_path)
    assert ops(model) == ["Relu", "Add", "Conv"]
    for value in model.graph.graph.initializers.values():
        assert value.const_value is not None
        assert tuple(value.shape or ()) == tuple(value.const_value.shape)


def test_products_and_transposed_convolutions(tmp_path: Path) -> None:
    chain = Chain()
    chain.add("Relu")
    chain.add("Mul", chain.random(4, 1, 1))
    chain.add("ConvTranspose", chain.random(4, 3, 2, 2), strides=[2, 2], group=2)
    chain.add("Mul", chain.random(6, 1, 1))
    chain.add("Add", chain.random(6, 1, 1))
    chain.add("Relu")
    chain.add("Flatten")
    for turned in (0, 1):
        chain.add("Mul", chain.random(864) if not turned else chain.random(5))
        chain.add("Sub", chain.constant(0.5))
        size = (5, 5) if turned else (864, 5)
        chain.add("Gemm", chain.random(*size), chain.random(5), transB=turned)
        chain.add("Div", chain.random(5))
        chain.add("Relu")
    chain.add("Mul", chain.random(5))
    chain.add("MatMul", chain.random(5, 3))
    chain.add("Mul", chain.random(3))
    expected = ["Relu", "ConvTranspose", "Relu", "Flatten", "Gemm", "Relu", "Gemm", "Relu", "MatMul"]
    assert ops(loaded(chain, tmp_path)) == expected


@pytest.mark.parametrize("opset", [9, 12, 17])
@pytest.mark.parametrize("last", ["Div", "Mul"])
def test_activations_that_are_written_out_become_one_node(tmp_path: Path, opset: int, last: str) -> None:
    chain = Chain()
    limits = (lambda: {"min": 0.0, "max": 6.0}) if opset < 11 else dict
    six = chain.constant(6 if last == "Div" else 1 / 6)
    for product_first in (True, False):
        x = chain.conv()
        chain.add("Add", chain.constant(3))
        bounds = [chain.constant(0), chain.constant(6)] if opset >= 11 else []
        gate = chain.add("Clip", *bounds, **limits())
        if product_first:
            chain.add("Mul", gate, first=x)
            chain.add(last, six)
        else:
            gate = chain.add(last, six)
            chain.add("Mul", gate, first=x)
    assert ops(loaded(chain, tmp_path, opset)) == ["Conv", "HardSwish", "Conv", "HardSwish"]


def test_what_others_read_too_stays(tmp_path: Path) -> None:
    chain = Chain()
    layer = chain.conv()
    chain.add("Mul", chain.constant(2))
    chain.add("Add", layer)
    scaled = chain.add("Mul", chain.constant(0.5))
    chain.conv()
    chain.add("Add", scaled)
    shifted = chain.add("Add", chain.constant(3))
    chain.add("Clip", chain.constant(0), chain.constant(6))
    clipped = chain.add("Mul", chain.constant(1 / 6))
    chain.add("Add", shifted)
    chain.add("Mul", clipped)
    chain.add("Div", chain.constant(0.0001))
    chain.add("Add", chain.random(4, 6, 1))
    chain.conv()
    kept = ops(loaded(chain, tmp_path))
    assert kept.count("Mul") == 4
    assert "HardSwish" not in kept


def test_the_parts_of_a_gelu_and_of_a_layer_norm_stay_together(tmp_path: Path) -> None:
    chain = Chain((4, 6))
    x = chain.add("MatMul", chain.random(6, 5))
    chain.add("Div", chain.constant(2**0.5))
    chain.add("Erf")
    chain.add("Add", chain.constant(1))
    chain.add("Mul", x)
    chain.add("Mul", chain.constant(0.5))
    x = chain.add("MatMul", chain.random(5, 6))
    mean = chain.add("ReduceMean", axes=[-1])
    chain.add("Sub", mean, first=x)
    centred = chain.last
    chain.add("Mul", centred)
    chain.add("ReduceMean", axes=[-1])
    chain.add("Add", chain.constant(1e-5))
    deviation = chain.add("Sqrt")
    chain.add("Div", deviation, first=centred)
    chain.add("Mul", chain.random(6))
    chain.add("Add", chain.random(6))
    chain.add("MatMul", chain.random(6, 3))
    assert ops(loaded(chain, tmp_path)) == [node.op_type for node in chain.nodes]


def test_moves_that_undo_each_other_go(tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    chain.add("Transpose", perm=[0, 2, 3, 1])
    chain.add("Transpose", perm=[0, 3, 1, 2])
    chain.add("Transpose", perm=[0, 1, 2, 3])
    chain.add("Relu")
    chain.add("Transpose", perm=[0, 2, 3, 1])
    chain.add("Transpose", perm=[0, 2, 3, 1])
    chain.add("Relu")
    assert ops(loaded(chain, tmp_path)) == ["Conv", "Relu", "Transpose", "Transpose", "Relu"]


def sizes(chain: Chain, *numbers: int) -> str:
    name = f"s{len(chain.constants)}"
    chain.constants[name] = np.array(numbers, np.int64)
    return name


def test_a_reshape_of_a_reshape_is_one_and_none_where_nothing_changes(tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    for shape in ((2, 4, 36), (2, 6, -1), (0, 4, 6, 6)):  # back to what it was
        chain.add("Reshape", sizes(chain, *shape))
    chain.conv()
    chain.add("Reshape", sizes(chain, 2, 4, 6, 6))
    chain.conv()
    for shape in ((2, 144), (4, 72), (2, 12, -1)):
        chain.add("Reshape", sizes(chain, *shape))
    chain.add("Relu")
    model = loaded(chain, tmp_path)
    assert ops(model) == ["Conv", "Conv", "Conv", "Reshape", "Relu"]
    assert [node.name for node in model.graph.graph][3] == "n9"


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [((0, 4, -1), (0, 8, 18), 1), ((0, 9, -1), (0, 0, 4, 4), 2), ((-1, 36), (0, 6, 6), 2), ((-1, 36), (-1, 2, 72), 1)],
)
def test_a_size_that_a_reshape_copies_must_be_that_of_the_first_tensor(
    first: tuple[int, ...], second: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    chain = Chain(("n", 4, 6, 6))
    chain.conv()
    for shape in (first, second):
        chain.add("Reshape", sizes(chain, *shape))
    chain.add("Relu")
    path = chain.save(tmp_path / "m.onnx")
    model = load(path, shapes={"x": ShapeRequest(*((batch, 4, 6, 6) for batch in (1, 2, 4)))})
    assert ops(model).count("Reshape") == count
    x = np.random.default_rng(1).normal(size=(3, 4, 6, 6)).astype(np.float32)
    expected, found = (
        plain_session(proto).run(None, {"x": x})[0] for proto in (onnx.load(path), ir.to_proto(model.graph))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_batch_that_is_written_into_a_reshape_is_refused_before_another_one_too(tmp_path: Path) -> None:
    chain = Chain(("n", 4, 6, 6))
    chain.conv()
    for shape in ((1, 144), (-1, 12, 12)):
        chain.add("Reshape", sizes(chain, *shape))
    chain.add("Relu")
    path = chain.save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="the batch of the export is written into the model"):
        load(path, batch=4)


def test_a_reshape_whose_result_others_read_or_that_is_computed_stays(tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    flat = chain.add("Reshape", sizes(chain, 2, 4, 36))
    chain.add("Relu")
    chain.add("Reshape", sizes(chain, 2, 144), first=flat)
    chain.add("Reshape", sizes(chain, 2, 4, 36))
    chain.add("Add", "t2")
    chain.add("Reshape", sizes(chain, 4, 72))
    assert ops(loaded(chain, tmp_path)) == ["Conv", "Reshape", "Relu", "Add", "Reshape"]


def test_a_result_of_the_model_keeps_its_name_and_a_tensor_its_meaning(tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    made = chain.add("Mul", chain.constant(3))
    chain.add("Relu")
    chain.add("Mul", chain.constant(2))
    chain.conv(size=3, pads=[1, 1, 1, 1])
    result = chain.add("Add", chain.constant(1))
    model = loaded(chain, tmp_path)
    assert [spec.name for spec in model.outputs] == [result]
    assert next(iter(model.graph.graph)).outputs[0].name == made


@pytest.mark.parametrize(("op", "large"), [("Add", -1e9), ("Mul", 1e5), ("Div", 1e6), ("Mul", 1e-6)])
def test_a_mask_and_a_factor_that_no_half_holds_stay_apart(op: str, large: float, tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    chain.add(op, chain.constant(large))
    assert ops(loaded(chain, tmp_path)) == ["Conv", op]


def test_a_factor_of_zero_or_infinity_and_a_number_that_makes_more_of_a_tensor_stay(tmp_path: Path) -> None:
    chain = Chain()
    chain.conv()
    chain.add("Mul", chain.constant([0]))
    chain.conv()
    chain.add("Mul", chain.random(1, 1, 1, 1, 1))
    chain.add("Relu")
    assert ops(loaded(chain, tmp_path)).count("Mul") == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["Mul", "Add", "Sub", "Div", "Relu", "conv", "padded", "depthwise", "skip"]),
        st.sampled_from([(), (1,), (4, 1, 1), (1, 4, 1, 1), (6,), (1, 1, 1, 1)]),
    ),
    min_size=2,
    max_size=10,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_any_chain_computes_the_same(tmp_path_factory: pytest.TempPathFactory, steps: Any, seed: int) -> None:
    chain = Chain(seed=seed)
    before = "x"
    for op, shape in [*steps, ("conv", ())]:
        here = chain.last
        if op == "conv":
            chain.conv(bias=bool(seed % 2))
        elif op == "padded":
            chain.conv(size=3, pads=[1, 1, 1, 1])
        elif op == "depthwise":
            chain.conv(size=3, group=4, auto_pad="SAME_UPPER")
        elif op == "Relu":
            chain.add("Relu")
        elif op == "skip":
            chain.add("Add", before)
        else:
            chain.add(op, chain.constant(chain.rng.uniform(0.5, 2, shape)))
        before = here
    loaded(chain, tmp_path_factory.mktemp("chain"))
