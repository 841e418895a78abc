"""Capabilities files: what they say, each mistake with its own message, and what they leave of a target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from search.errors import ConfigError
from search.space.capability_file import read_capability_file, read_capability_rules
from search.space.capability_rules import CapabilityRules, keys_of
from search.values import Capability, Precision

FP16, INT8 = Precision.FP16, Precision.INT8
NATIVE = Capability({INT8: frozenset({"Conv", "Gemm", "MatMul"})}, min_matmul_size=4)


def rules_of(text: str) -> CapabilityRules:
    return read_capability_rules(text, "npu", "--capabilities npu.toml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        rules_of(text)
    return str(caught.value).split("\n")


def test_a_file_leaves_less_and_what_it_does_not_name_stays() -> None:
    rules = rules_of('name = "our NPU"\n[int8]\nwithout = ["MatMul"]\nsymmetric = true\nmin_channels = 16\n')
    left = rules.narrow(NATIVE, "backend a on b")
    assert left.ops == {INT8: {"Conv", "Gemm"}}
    assert (left.size(INT8, "min_channels"), left.size(INT8, "min_matmul_size"), rules.symmetric) == (16, 4, True)
    assert left.why_not(INT8, "MatMul") == "the capabilities file our NPU offers no INT8 to MatMul"
    assert left.why_not(INT8, "ConvTranspose") == "the target has no INT8 kernel for ConvTranspose"
    assert left.why_not(INT8, "Conv") == ""
    assert Capability.from_json(json.loads(json.dumps(left.to_json()))) == left


def test_sizes_hold_for_the_format_of_their_table_alone() -> None:
    native = replace(NATIVE, sizes={Precision.W4: {"min_matmul_size": 32}})
    rules = rules_of("[w8]\nmost_rows = 1\n[w4]\nmost_rows = 8\n[fp8]\nmin_channels = 64\n[fp16]\nmin_channels = 8\n")
    left = rules.narrow(native, "backend a on b")
    rows = [left.size(precision, "most_rows") for precision in (Precision.W8, Precision.W4)]
    channels = [left.size(precision, "min_channels") for precision in (Precision.FP8, FP16, Precision.BF16, INT8)]
    assert (rows, channels, left.size(Precision.W4, "min_matmul_size")) == ([1, 8], [64, 8, 0, 1], 32)
    assert Capability.from_json(json.loads(json.dumps(left.to_json()))) == left


def test_the_keys_of_a_format_are_those_that_say_something_of_it() -> None:
    sizes = {
        key: {p for p in Precision if key in keys_of(p)} - {Precision.FP32} for key in ("min_channels", "most_rows")
    }
    assert sizes["most_rows"] == {Precision.W8, Precision.WF8, Precision.W4}
    assert sizes["min_channels"] == {FP16, Precision.BF16, INT8, Precision.FP8}
    for precision in set(Precision) - {Precision.FP32}:
        assert rules_of(f"[{precision.label}]\nmin_matmul_size = 2\n").tables == {
            precision.label: {"min_matmul_size": 2}
        }


def test_a_list_of_ops_may_be_empty_and_the_reason_is_told() -> None:
    left = rules_of("[int8]\nops = []\n").narrow(NATIVE, "a")
    assert left.ops == {INT8: frozenset()}
    assert left.why_not(INT8, "Conv") == "the capabilities file npu offers no INT8 to Conv"


def test_what_a_target_does_not_run_may_be_left_out_but_not_listed() -> None:
    assert rules_of('[fp16]\nwithout = ["Conv"]\n').narrow(NATIVE, "a").ops == NATIVE.ops
    with pytest.raises(ConfigError, match=r"\[int8\] lists ConvTranspose, but a runs only Conv, Gemm, MatMul in INT8"):
        rules_of('[int8]\nops = ["Conv", "ConvTranspose"]\n').narrow(NATIVE, "a")
    with pytest.raises(ConfigError, match=r"\[fp16\] lists Conv, but a runs nothing in FP16"):
        rules_of('[fp16]\nops = ["Conv"]\n').narrow(NATIVE, "a")


def test_json_says_the_same_and_the_digest_is_of_the_content_alone() -> None:
    one = rules_of('name = "a"\n[int8]\nwithout = ["Gemm"]\n')
    two = rules_of('{"name": "b", "int8": {"without": ["Gemm"]}}')
    assert one.digest == two.digest
    assert one.digest != rules_of('[int8]\nwithout = ["Conv"]\n').digest
    assert CapabilityRules.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[int8\n", "expected TOML, got "),
        ('{"int8": ', "expected JSON, got "),
        ("", "the file has no rules; write a table such as [int8]"),
        ('name = ""\n[int8]\n', "name: expected a text in quotes, got ''"),
        ("[fp32]\nops = []\n", "[fp32]: every target runs everything in FP32; remove the table"),
        (
            "[int88]\n",
            "'int88': expected the name of a precision, fp16 or bf16 or w8 or int8-dynamic or int8 or wf8 or fp8 or w4",
        ),
        ("int8 = 3\n", "int8: expected a table, got 3; write [int8] and its keys below"),
        (
            "[int8]\nwithuot = []\n",
            "[int8] withuot: the keys of INT8 are ops, without, symmetric, min_channels, min_matmul_size; did you mean",
        ),
        (
            "[fp16]\nsymmetric = true\n",
            "[fp16] symmetric: the keys of FP16 are ops, without, min_channels, min_matmul_size",
        ),
        ("[w4]\nmin_channels = 2\n", "[w4] min_channels: the keys of W4 are ops, without, min_matmul_size, most_rows"),
        ("[fp8]\nmost_rows = 2\n", "[fp8] most_rows: the keys of FP8 are ops, without, min_channels, min_matmul_size"),
        ('[int8]\nops = "Conv"\n', "[int8] ops: expected a list of op types, got 'Conv'; write it like"),
        ('[int8]\nwithout = ["Convv"]\n', "got 'Convv'; did you mean Conv?"),
        ('[int8]\nsymmetric = "yes"\n', "[int8] symmetric: expected true or false without quotes, got 'yes'"),
        ("[int8]\nmin_channels = 0\n", "[int8] min_channels: expected a whole number from 1 on, got 0"),
        ("[int8]\nmin_matmul_size = true\n", "[int8] min_matmul_size: expected a whole number from 1 on, got True"),
        ("[int8]\nops = []\nwithout = []\n", "[int8] ops and without: both were given"),
    ],
)
def test_each_mistake_has_one_message(text: str, says: str) -> None:
    [told] = mistakes(text)
    assert told.startswith("--capabilities npu.toml: ")
    assert says in told


def test_several_mistakes_are_told_together() -> None:
    told = mistakes('[fp32]\n[int8]\nops = ["Sub"]\nsymmetric = 1\n')
    assert len(told) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"expected a readable TOML file, got {says}"):
            read_capability_file(path)
    binary = tmp_path / "a.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="bytes that are not UTF-8"):
        read_capability_file(binary)
