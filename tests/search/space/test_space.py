"""What may be tried: reasons, user rules, blocks, and the variables a sampler chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from search.errors import ConfigError
from search.graph.model import Model, load
from search.space.choices import Choice, KeepRule, Space, Variable, make_space
from search.values import Assignment, Capability, Precision, Ranges, TensorRange
from tests.support.networks import NETWORKS, Net, loaded, ranged, residual_cnn, save

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
CPU = Capability({INT8: frozenset({"Conv", "Gemm", "MatMul"})})
GPU = Capability({FP16: frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"}), INT8: frozenset({"Conv", "Gemm"})})


def choice(space: Space, model: Model, name: str, precision: Precision) -> Choice:
    group = next(group for group in model.groups if group.name == name)
    return next(choice for choice in space.choices[group.id] if choice.precision is precision)


def keep(*texts: str) -> list[KeepRule]:
    return [KeepRule.parse(text) for text in texts]


# -- what is offered ---------------------------------------------------------------------------------------------------


def test_fp32_is_always_offered() -> None:
    for name in NETWORKS:
        space = make_space(loaded(name), CPU)
        assert all(any(c.precision is FP32 and c.offered for c in choices) for choices in space.choices.values())


def test_the_cpu_has_no_fp16() -> None:
    space = make_space(loaded("residual"), CPU)
    assert space.precisions == (FP32, INT8)
    assert space.size == 2**7


def test_an_op_without_a_kernel_says_so() -> None:
    model = loaded("unet")
    found = choice(make_space(model, CPU), model, "up2", INT8)
    assert not found.offered
    assert found.reason == "the target has no INT8 kernel for ConvTranspose"


def test_attention_products_may_run_in_fp16_but_not_in_int8() -> None:
    model = loaded("transformer")
    space = make_space(model, replace(GPU, ops={**GPU.ops, INT8: frozenset({"MatMul"})}))
    assert choice(space, model, "layer.0/attn/qk", FP16).offered
    assert "attention" in choice(space, model, "layer.0/attn/qk", INT8).reason
    assert choice(space, model, "layer.0/attn/q", INT8).offered


def test_small_layers_are_not_offered_int8() -> None:
    model = loaded("mobile")
    space = make_space(model, replace(GPU, min_channels=16, min_matmul_size=16))
    assert "3 channels is below 16" in choice(space, model, "stem", INT8).reason  # its input
    assert choice(space, model, "mb.0/depthwise", INT8).offered  # 48 channels, one per filter
    assert "10 K or N is below 16" in choice(space, model, "fc", INT8).reason


def test_a_tensor_without_a_range_is_not_offered_int8() -> None:
    model, ranges = loaded("residual"), ranged("residual")
    less = {name: seen for name, seen in ranges.tensors.items() if name != "maxpool_out"}
    space = make_space(model, CPU, replace(ranges, tensors=less))
    assert "no range for tensor maxpool_out" in choice(space, model, "block.0/conv1", INT8).reason
    assert choice(space, model, "stem", INT8).offered


def test_values_beyond_fp16_are_not_offered_it() -> None:
    model, ranges = loaded("residual"), ranged("residual")
    observed = {**ranges.observed, "block.0/conv1_out": TensorRange(-7e4, 1.0)}
    space = make_space(model, GPU, replace(ranges, observed=observed))
    assert "reaches 7e+04" in choice(space, model, "block.0/conv1", FP16).reason
    assert choice(space, model, "block.0/conv1", INT8).offered
    assert choice(space, model, "block.0/conv2", FP16).offered
    edge = {**ranges.observed, "block.0/conv1_out": TensorRange(-65504.0, 65504.0)}
    assert choice(make_space(model, GPU, replace(ranges, observed=edge)), model, "block.0/conv1", FP16).offered


@pytest.mark.parametrize("constant", ["block.0/conv1.w", "block.0/conv1.b"])
def test_constants_beyond_fp16_are_not_offered_it(constant: str, tmp_path: Path) -> None:
    proto = residual_cnn()
    index = next(i for i, tensor in enumerate(proto.graph.initializer) if tensor.name == constant)
    array = numpy_helper.to_array(proto.graph.initializer[index]).copy()
    array.flat[0] = 1e5
    proto.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, constant))
    model = load(save(proto, tmp_path / "net.onnx"))
    space = make_space(model, GPU)
    assert f"constant {constant} holds 1e+05" in choice(space, model, "block.0/conv1", FP16).reason
    assert choice(space, model, "block.0/conv2", FP16).offered


# -- user rules --------------------------------------------------------------------------------------------------------


def test_a_rule_keeps_what_it_matches_and_says_so() -> None:
    model = loaded("residual")
    space = make_space(model, CPU, keep=keep(r"^block\.1/=fp32"))
    assert choice(space, model, "block.1/down", FP32).offered
    assert choice(space, model, "block.1/down", INT8).reason == r"kept by the rule '^block\.1/=fp32'"
    assert choice(space, model, "block.0/conv1", INT8).offered
    assert space.size == 2**4


def test_a_rule_matches_any_node_of_a_group() -> None:
    model = loaded("residual")
    space = make_space(model, CPU, keep=keep("block.0/add=fp32"))
    assert not choice(space, model, "block.0/conv2", INT8).offered


def test_a_rule_may_force_int8() -> None:
    model = loaded("residual")
    space = make_space(model, CPU, keep=keep("stem=int8"))
    assert not choice(space, model, "stem", FP32).offered
    assert space.uniform(FP32)["g000"] is INT8


def test_equal_rules_agree() -> None:
    make_space(loaded("residual"), CPU, keep=keep("stem=fp32", "stem.*=fp32"))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["nowhere=fp32"], "nowhere"),
        (["stem=fp16"], "fp32, int8"),
        (["block=fp32", "block.0/conv1=int8"], "already kept in fp32"),
    ],
)
def test_rules_that_cannot_hold_are_refused(rules: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_space(loaded("residual"), CPU, keep=keep(*rules))


def test_a_rule_for_what_a_layer_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="no INT8 kernel for ConvTranspose"):
        make_space(loaded("unet"), CPU, keep=keep("up2=int8"))


@pytest.mark.parametrize("text", ["", "fp32", "=fp32", "stem=fp12", "(=fp32"])
def test_unreadable_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        KeepRule.parse(text)


def test_a_pattern_may_hold_an_equals_sign() -> None:
    assert KeepRule.parse("a=b=fp32") == KeepRule("a=b", FP32)


# -- blocks, digests, baselines ----------------------------------------------------------------------------------------


def test_block_granularity_joins_a_blocks_groups() -> None:
    model = loaded("mobile")
    space = make_space(model, CPU, granularity="block")
    assert [len(variable.groups) for variable in space.variables] == [1, 3, 3, 1]
    assert space.size == 2**4


def test_a_block_keeps_each_group_to_what_it_is_offered() -> None:
    model = loaded("transformer")
    space = make_space(model, CPU, granularity="block")
    int8 = space.assignment({variable.id: variable.precisions.index(INT8) for variable in space.variables})
    wanted = {group.name: FP32 if group.pinned else INT8 for group in model.groups}
    assert {group.name: int8[group.id] for group in model.groups} == wanted


def test_the_digest_is_stable_and_names_every_difference() -> None:
    model = loaded("mobile")
    digest = make_space(model, CPU).digest
    assert make_space(model, CPU).digest == digest
    others = {
        make_space(model, GPU).digest,
        make_space(model, CPU, granularity="block").digest,
        make_space(model, CPU, keep=keep("stem=fp32")).digest,
        make_space(loaded("residual"), CPU).digest,
    }
    assert len(others) == 4
    assert digest not in others


def test_baselines_are_the_distinct_uniform_assignments_fp32_first() -> None:
    model = loaded("residual")
    assert list(make_space(model, GPU).baselines) == ["fp32", "fp16", "int8"]
    assert list(make_space(model, CPU).baselines) == ["fp32", "int8"]
    only = make_space(model, CPU, keep=keep(".*=fp32"))
    assert list(only.baselines) == ["fp32"]
    assert only.size == 1


# -- properties --------------------------------------------------------------------------------------------------------

OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
kernels = st.frozensets(st.sampled_from(OPS))
capabilities = st.builds(
    Capability,
    st.dictionaries(st.sampled_from([FP16, INT8]), kernels),
    st.sampled_from([1, 16, 40]),
    st.sampled_from([1, 16, 100]),
)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    model = loaded(draw(st.sampled_from(sorted(NETWORKS))))
    return make_space(model, draw(capabilities), granularity=draw(st.sampled_from(["group", "block"])))


@given(spaces(), st.data())
@settings(max_examples=60, deadline=None)
def test_codes_and_assignments_are_each_others_inverse(space: Space, data: st.DataObject) -> None:
    codes = {v.id: data.draw(st.integers(0, len(v.precisions) - 1)) for v in space.variables}
    assignment = space.assignment(codes)
    assert set(assignment) == set(space.choices)
    for group, precision in assignment.items():
        assert any(c.precision is precision and c.offered for c in space.choices[group])
    assert space.assignment(space.codes(assignment)) == assignment
    if all(len(v.groups) == 1 for v in space.variables):
        assert space.codes(assignment) == codes


@given(spaces())
@settings(max_examples=60, deadline=None)
def test_every_baseline_can_be_proposed(space: Space) -> None:
    for assignment in space.baselines.values():
        assert space.assignment(space.codes(assignment)) == assignment
    assert next(iter(space.baselines)) == "fp32"
    assert all(len(variable.precisions) > 1 for variable in space.variables)
    assert space.size == int(np.prod([len(variable.precisions) for variable in space.variables], dtype=object))


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1), st.sampled_from(list(Precision))))
def test_assignments_survive_json_and_order(items: dict[str, Precision]) -> None:
    assignment = Assignment(items)
    assert Assignment.from_json(assignment.to_json()) == assignment
    assert Assignment(dict(reversed(items.items()))).digest == assignment.digest


@given(st.dictionaries(st.text(), st.tuples(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30)).map(sorted)))
def test_ranges_survive_json(pairs: dict[str, list[float]]) -> None:
    tensors = {name: TensorRange(*pair) for name, pair in pairs.items()}
    ranges = Ranges("minmax", tensors, tensors, 3)
    assert Ranges.from_json(ranges.to_json()) == ranges
    assert Ranges.from_json(ranges.to_json()).digest == ranges.digest


# -- what cannot be built ----------------------------------------------------------------------------------------------


def small_space() -> Space:
    """A group of its own, and a block of two; `c` takes no FP16, so at FP16 its block gives it FP32."""
    offered = {"a": (FP32, FP16, INT8), "b": (FP32, FP16, INT8), "c": (FP32, INT8), "d": (FP32,)}
    choices = {group: tuple(Choice(p, p in may) for p in (FP32, FP16, INT8)) for group, may in offered.items()}
    return Space(choices, (Variable("v0", ("a",), (FP32, FP16, INT8)), Variable("v1", ("b", "c"), (FP32, FP16, INT8))))


def assigned(**precisions: Precision) -> Assignment:
    return Assignment({"d": FP32, **precisions})


def test_the_size_without_pairs_counts_what_is_left() -> None:
    space = small_space()
    for pairs in (set(), {("a", INT8)}, {("c", FP32)}, {("b", INT8), ("c", INT8)}, {("a", FP16), ("b", FP32)}):
        every = [space.assignment({"v0": i, "v1": j}) for i in range(3) for j in range(3)]
        assert space.size_without(pairs) == sum(pairs.isdisjoint(one.items()) for one in every)


@pytest.mark.parametrize(("kind", "large", "offered"), [("Mul", 1e5, False), ("Mul", 2.0, True), ("Add", -1e9, True)])
def test_a_factor_beyond_half_precision_keeps_its_group_out_of_it(
    kind: str, large: float, offered: bool, tmp_path: Path
) -> None:
    """A mask may be cut off at FP16's largest number; a factor would compute something else."""
    net = Net()
    x = net.op(kind, [net.conv("image", "conv", 3, 16), net.const("large", np.full(8, large, np.float32))], "absorbed")
    net.head(net.op("Relu", [x], "relu"), 16)
    model = load(save(net.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path / "net.onnx"))
    assert "absorbed" in model.groups[0].nodes
    space = make_space(model, Capability({Precision.FP16: frozenset({"Conv", "Gemm"})}))
    [half] = [choice for choice in space.choices[model.groups[0].id] if choice.precision is Precision.FP16]
    assert (half.offered, "constant large holds 1e+05" in half.reason) == (offered, not offered)
