"""The verb `inspect`: shares by precision, what stays float and costs most, two engines side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.engine_files import EngineFile, Layer
from search.values import Precision
from studies.inspect.engine_report import agreement, bottleneck_rows, node_rows, precision_rows
from tests.support.command_line import invoke
from tests.support.paths import DATA

LISTING = str(DATA / "tensorrt_11_shape.json")
LAYERS = (
    Layer("a", "Conv", Precision.INT8, ("a",), weighted=True, macs=60, ms=0.1),
    Layer("b", "Conv", Precision.FP16, ("b",), weighted=True, macs=40, ms=0.3, why_not_int8="not asked for"),
    Layer("c", "Relu", Precision.FP32, ("c",), ms=0.4, why_not_int8="no kernel"),
    Layer("d", "Cast", None, moves=True, ms=0.2),
)


def test_shares_are_of_all_layers_macs_and_time() -> None:
    rows = {row["precision"]: row for row in precision_rows(LAYERS)}
    assert list(rows) == ["fp32", "fp16", "int8", "moves data"]
    assert rows["int8"]["macs_share"] == 0.6
    assert rows["fp32"]["ms_share"] == pytest.approx(0.4)
    assert [row["layers_share"] for row in rows.values()] == [0.25] * 4


def test_what_stays_float_comes_by_its_time() -> None:
    assert [(row["layer"], row["why_not_int8"]) for row in bottleneck_rows(LAYERS)] == [
        ("c", "no kernel"),
        ("b", "not asked for"),
    ]


def test_two_engines_are_laid_side_by_side_by_node() -> None:
    other = (Layer("a + b", "Fused", Precision.FP16, ("a", "b"), weighted=True, ms=0.5),)
    rows = node_rows(EngineFile("one", "", LAYERS), EngineFile("two", "", other))
    assert [(row["node"], row["precision"], row["other_precision"], row["differs"]) for row in rows] == [
        ("a", "int8", "fp16", True),
        ("b", "fp16", "fp16", False),
        ("c", "fp32", None, True),
    ]


def test_two_engines_agree_by_their_layers_with_weights() -> None:
    hidden = replace(LAYERS[1], name="d", nodes=("d",), precision=None)
    other = (replace(LAYERS[0], name="a + c", nodes=("a", "c")), replace(LAYERS[1], precision=Precision.FP32), hidden)
    found = agreement(EngineFile("one", "", (*LAYERS[:3], hidden)), EngineFile("two", "", other))
    assert (found.weighted, found.same, found.hidden, found.differ) == (3, 1, 1, ("b",))
    assert "1 of 3 layers with weights run in the same precision in both (33.3%)" in found.text()


def test_the_command_prints_the_layers_and_their_sums() -> None:
    said = invoke("inspect", LISTING)
    assert said.exit_code == 0, said.output
    assert "layers of a TensorRT engine" in said.stdout
    assert "CaskPooling" in said.stdout
    assert "Not in INT8, the costliest first:" in said.stdout


def test_json_has_it_all() -> None:
    found = json.loads(invoke("inspect", LISTING, "--against", LISTING, "--json").stdout)
    assert {"precisions", "bottlenecks", "layers", "nodes"} <= found.keys()
    assert not any(row["differs"] for row in found["nodes"])
    assert found["agreement"]["same"] + found["agreement"]["hidden"] == found["agreement"]["weighted"] > 0
    assert "layers with weights run in the same precision" in invoke("inspect", LISTING, "--against", LISTING).stdout


def test_options_of_float_models_are_refused_for_an_engine() -> None:
    refused = invoke("inspect", LISTING, "--batch", 4)
    assert refused.exit_code == 2
    assert "--batch: this option is for float models" in refused.stderr


def test_csv_has_a_row_per_layer() -> None:
    lines = invoke("inspect", LISTING, "--csv").stdout.splitlines()
    assert len(lines) == 1 + len(json.loads(invoke("inspect", LISTING, "--json").stdout)["layers"])


def test_what_cannot_be_inspected_is_refused(tmp_path: Path) -> None:
    for arguments in (
        (str(tmp_path / "missing"),),
        (LISTING, "--against-profile", LISTING),
        (LISTING, "--json", "--csv"),
    ):
        said = invoke("inspect", *arguments)
        assert said.exit_code == 2
        assert said.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ('{"Layers": [', "expected JSON, as trtexec writes it"),
        ("[]", "it cannot be read"),
        ("{}", "it cannot be read"),
        ("no engine", "it is none of them"),
    ],
)
def test_a_file_that_is_broken_has_one_message(tmp_path: Path, content: str, says: str) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(content)
    for arguments in ((broken,), (LISTING, "--against", broken)):
        said = invoke("inspect", *arguments)
        assert (said.exit_code, said.stderr.count("error: ")) == (2, 1)
        assert str(broken) in said.stderr
        assert says in said.stderr


@pytest.mark.parametrize(
    "unknown", [Layer("e", "Conv", Precision.FP32, ("e",), weighted=True), Layer("f", "myelin", None, ("f",))]
)
def test_a_share_of_macs_is_not_told_where_some_are_unknown(unknown: Layer) -> None:
    """Three layers in INT8 of six whose MACs were known made 100 %."""
    rows = precision_rows((*LAYERS, unknown))
    assert {row["macs_share"] for row in rows} == {None}
    assert all(row["layers_share"] for row in rows)


def test_myelin_lists_no_weights_so_it_is_not_told_that_there_are_none() -> None:
    layers = json.loads(invoke("inspect", LISTING, "--json").stdout)["layers"]
    said = {layer["why_not_int8"] for layer in layers if "_myl" in layer["name"]}
    assert "the file does not tell whether it has weights; what feeds it is not in INT8" in said
    assert "it has no weights, and what feeds it is not in INT8" not in said
