"""One mix that a user names: read from rules and files, evaluated without a study, its loss explained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bitfront import verbs
from evaluators.calibration import cache
from evaluators.diagnose.group_error import GroupError
from search.errors import ConfigError
from search.graph.model import Model, load
from search.space.choices import Space, make_space
from search.values import Assignment, Capability, Evaluation, Failure, FailureKind, Precision, Stage
from studies.inspect.mix.bisection import Bisection, BisectionStep
from studies.inspect.mix.evaluate import choose_float, keep_sensitive
from studies.inspect.mix.read_mix import TargetMix, read_mix
from studies.inspect.mix.report import LossExplanation
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.options.config import SearchConfig
from studies.options.diagnosis.thresholds import Thresholds
from tests.support.command_line import copy_finished, invoke, ok, quick, tree, write_inputs
from tests.support.networks import Net, loaded, ranged, save
from tests.support.paths import DATA

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
REFUSED = (Stage.BUILD, FailureKind.REFUSED)
OPS = frozenset({"Conv", "Gemm"})
CPU = Capability({INT8: OPS})
GPU = Capability({FP16: OPS, INT8: OPS}, min_channels=16)


@pytest.fixture(scope="module")
def residual() -> Model:
    return loaded("residual")


@pytest.fixture(scope="module")
def cpu(residual: Model) -> Space:
    return make_space(residual, CPU)


def by_name(model: Model, given: TargetMix) -> dict[str, str]:
    return {group.name: given.assignment[group.id].label for group in model.groups}


# -- rules -------------------------------------------------------------------------------------------------------------


def test_of_several_rules_the_last_decides_and_the_rest_is_fp32(residual: Model, cpu: Space) -> None:
    assert set(read_mix("all=int8", residual.groups, cpu).assignment.values()) == {INT8}
    mixed = by_name(residual, read_mix("block=int8,conv1{0,1}$=fp32, g000=int8", residual.groups, cpu))
    assert {name for name, label in mixed.items() if label == "int8"} == {
        "stem",
        "block.0/conv2",
        "block.1/conv2",
        "block.1/down",
    }


def test_an_id_names_one_group_though_others_have_names_with_it(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", [net.conv("image", "img001/conv", 3, 16)], "relu")
    net.head(net.op("Relu", [net.conv(x, "last", 16, 16)], "other"), 16)
    model = load(save(net.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path / "net.onnx"))
    space = make_space(model, CPU)
    assert by_name(model, read_mix("g001=int8 , nothing|fc=int8 ", model.groups, space)) == {
        "img001/conv": "fp32",
        "last": "int8",
        "fc": "int8",
    }


def test_rules_may_be_longer_than_the_name_of_a_file(residual: Model, cpu: Space) -> None:
    rules = ",".join(f"{group.id}=int8" for group in residual.groups)
    found = read_mix(",".join([rules] * 50), residual.groups, cpu)
    assert set(found.assignment.values()) == {INT8}


@pytest.mark.parametrize("precision", sorted(Precision))
def test_every_precision_may_be_named(precision: Precision, residual: Model) -> None:
    space = make_space(residual, Capability(dict.fromkeys(Precision, OPS)))
    if precision.quantized and not precision.calibrated:  # for products, of which these convolutions have too few
        with pytest.raises(ConfigError, match=f"can run in {precision.label} here"):
            read_mix(f"all={precision.label}", residual.groups, space)
        return
    wanted = read_mix(f"all={precision.label}", residual.groups, space).assignment
    assert precision in set(wanted.values())


def test_what_a_group_is_not_offered_becomes_the_next_higher_with_a_note(residual: Model) -> None:
    space = make_space(residual, GPU)
    given = read_mix("all=int8", residual.groups, space)
    assert by_name(residual, given)["stem"] == "fp16"
    assert "1 of the groups (stem) run in fp16 instead of int8: 3 channels is below 16" in given.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int8", "it is neither a file nor a rule; write all=int8"),
        ("all=int8,stem", "expected REGEX=PRECISION, got 'stem'"),
        ("all=int9", "expected a precision, got 'int9'"),
        ("nothing=int8", "matches no layer name.*the first is 'stem'"),
        ("(=int8", "expected a regular expression"),
        ("all=fp16", "no layer that it matches can run in fp16 here: this target runs fp32, int8, not fp16"),
    ],
)
def test_bad_rules_are_refused(residual: Model, cpu: Space, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_mix(text, residual.groups, cpu)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"stem": "int8", "block.0/relu1": "int8"},
        {"g000": "int8", "g001": "int8"},
        {"precision": {"stem": "int8", "block.0/conv1": "int8", "fc": "fp32"}, "groups": [], "trial": 3},
        {"groups": [{"group": "g000", "asked": "int8"}, {"group": "g001", "asked": "int8"}], "trial": 3},
        {"best": {"trial": 3, "assignment": {"g000": "int8", "g001": "int8", "g002": "fp32"}}, "study": "small"},
    ],
    ids=["nodes", "groups", "manifest", "show", "front"],
)
def test_files_that_name_a_mix(residual: Model, cpu: Space, tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "mix.json"
    path.write_text(json.dumps(content))
    found = read_mix(str(path), residual.groups, cpu).assignment
    assert {group for group, precision in found.items() if precision is INT8} == {"g000", "g001"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json", "expected a JSON file"),
        ("[]", "there is no mix in it"),
        ('{"best": null}', "there is no mix in it"),
        ('{"stem": 8}', "there is no mix in it"),
        ('{"sten": "int8"}', "no group or node 'sten'; did you mean 'stem'"),
        ('{"stem": "int9"}', "stem: expected a precision"),
        ('{"fc": "int8", "stem": "int8", "fc": "fp32"}', "got the key 'fc' twice in one object"),
        ('{"stem": "int8", "g000": "fp32"}', "group g000 is named twice, in int8 and fp32"),
    ],
)
def test_bad_files_are_refused(residual: Model, cpu: Space, tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "mix.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_mix(str(path), residual.groups, cpu)


# -- what an old plan ran ----------------------------------------------------------------------------------------------


def listed_by_8_6(folder: Path) -> tuple[Path, dict[str, str]]:
    """A listing of TensorRT 8.6 on an H200, and the mix that was asked for and obeyed."""
    recorded = json.loads((DATA / "tensorrt_8_6_residual_mixed.json").read_text(), strict=False)
    (folder / "layers.json").write_text(recorded["inspector"])
    return folder / "layers.json", recorded["assignment"]


def test_the_layers_of_a_plan_are_a_mix(residual: Model, tmp_path: Path) -> None:
    listing, asked = listed_by_8_6(tmp_path)
    space = make_space(residual, Capability({FP16: OPS, INT8: OPS}))
    found = read_mix(str(listing), residual.groups, space)
    assert {group: precision.label for group, precision in found.assignment.items()} == asked
    assert found.notes == ()


def test_what_a_listing_does_not_tell_is_fp32_with_a_note(residual: Model, tmp_path: Path) -> None:
    listing, _ = listed_by_8_6(tmp_path)
    layers = json.loads(listing.read_text(), strict=False)
    layers["Layers"] = [each for each in layers["Layers"] if "block.0/conv2" not in each["Name"]]
    listing.write_text(json.dumps(layers))
    found = read_mix(str(listing), residual.groups, make_space(residual, Capability({FP16: OPS, INT8: OPS})))
    assert by_name(residual, found)["block.0/conv2"] == "fp32"
    assert "1 of the groups (block.0/conv2) run in fp32: the listing does not tell" in found.notes[0]


def test_a_calibration_cache_asks_for_int8_where_it_has_ranges(residual: Model, cpu: Space, tmp_path: Path) -> None:
    tensors = {name for group in residual.groups[:3] for name in (*group.inputs, group.output)}
    ranges = ranged("residual")
    known = replace(ranges, tensors={name: ranges.tensors[name] for name in tensors})
    (tmp_path / "old.cache").write_text(cache.write(known))
    found = read_mix(str(tmp_path / "old.cache"), residual.groups, cpu)
    assert [group.id for group in residual.groups if found.assignment[group.id] is INT8] == ["g000", "g001", "g002"]
    assert "4 of the groups" in found.notes[0]


def test_an_old_plan_of_another_model_is_refused(residual: Model, cpu: Space, tmp_path: Path) -> None:
    (tmp_path / "old.cache").write_text("TRT-8600-EntropyCalibration2\nsomething: 3c8f5c29\n")
    with pytest.raises(ConfigError, match="it has those of no layer"):
        read_mix(str(tmp_path / "old.cache"), residual.groups, cpu)
    other = loaded("unet")
    with pytest.raises(ConfigError, match="none of them tells the precision"):
        read_mix(str(DATA / "tensorrt_11_shape.json"), other.groups, make_space(other, CPU))


# -- what is kept in float ---------------------------------------------------------------------------------------------


def errors(model: Model, bad: set[tuple[str, Precision]]) -> Sensitivities:
    rows = tuple(
        GroupError(
            group.id, precision, error=0.1, flipped=None, sqnr_db=30.0, kl=9.0 if (group.id, precision) in bad else 0.0,
            overlap=1.0, saturated=0.0, samples=64,
        )
        for group in model.groups
        for precision in (FP16, INT8)
    )  # fmt: skip
    return Sensitivities("model", rows, {}, Thresholds())


def test_sensitive_groups_are_kept_in_the_coarsest_float_in_which_they_are_not(residual: Model) -> None:
    space = make_space(residual, Capability(GPU.ops))
    int8 = space.uniform(INT8)
    found = keep_sensitive(int8, errors(residual, {("g001", INT8), ("g002", INT8), ("g002", FP16)}), space)
    assert found == {"g001": FP16, "g002": FP32}
    half = space.uniform(FP16)
    assert keep_sensitive(half, errors(residual, {("g001", INT8), ("g002", FP16)}), space) == {"g002": FP32}


def test_float_is_fp16_where_the_target_has_it_natively_and_else_fp32(residual: Model, cpu: Space) -> None:
    gpu = make_space(residual, Capability(GPU.ops))
    assert [choose_float("g001", precision, gpu) for precision in (INT8, FP16, FP32)] == [FP16, FP32, FP32]
    assert choose_float("g001", INT8, cpu) is FP32


# -- the verb ----------------------------------------------------------------------------------------------------------


def uneven(batch: int = 4) -> onnx.ModelProto:
    """Five layers, of which the third makes one channel 4096 times as wide as the others: INT8 loses them all."""
    n = Net(5)
    x = "image"
    for name, channels in {"stem": 3, "even": 8, "wide": 8, "after": 8}.items():
        x = n.op("Relu", [n.conv(x, name, channels, 8)], f"{name}/relu")
    n.head(x, 8)
    factors = np.ones(8, np.float32)
    factors[0] = 4096
    by_layer = {"wide.w": factors[:, None, None, None], "wide.b": factors, "after.w": 1 / factors[None, :, None, None]}
    for place, weight in enumerate(n.weights):
        if weight.name in by_layer:
            changed = numpy_helper.to_array(weight) * by_layer[weight.name]
            n.weights[place] = numpy_helper.from_array(changed.astype(np.float32), weight.name)
    return n.model([batch, 3, 8, 8], "logits", [batch, 10])


@pytest.fixture(scope="module")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All INT8 of the uneven network, bisected: the folder of its inputs, and what the verb printed as JSON."""
    folder = tmp_path_factory.mktemp("uneven")
    write_inputs(folder, uneven(), samples=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        before = tree(folder)
        printed = ok("evaluate", "model.onnx", "--data", "data.npz", "--assign", "all=int8", "--recover", "none",
                     "--bisect", "--max-drop", "5%", "--json")  # fmt: skip
        assert tree(folder) == before  # no study, no database, no engine
    return folder, json.loads(printed)


@pytest.mark.slow
def test_a_mix_is_measured_beside_fp32_and_audited(bisected: tuple[Path, dict[str, Any]]) -> None:
    _, found = bisected
    assert found["mix"]["failure"] is None
    assert found["mix"]["audit"] == {"obeyed": 5}
    assert set(found["mix"]["assignment"].values()) == {"int8"}
    assert found["mix"]["latency_ms"] > 0
    assert found["fp32"]["speedup"] == pytest.approx(1.0)
    assert found["fp32"]["final"]["loss"] == 0.0
    for split in ("search", "final"):
        told = found["mix"][split]
        assert 0.2 < told["loss_low"] <= told["loss"] <= told["loss_high"]
    worst = {row["group"]: row for row in found["groups"][:2]}
    assert worst.keys() == {"g002", "g003"}
    assert all(row["sensitive"] and row["got"] == "int8" and row["error"] > 0.1 for row in worst.values())


@pytest.mark.slow
def test_bisection_names_the_uneven_layers_and_an_engine_confirms_it(bisected: tuple[Path, dict[str, Any]]) -> None:
    _, found = bisected
    told = found["bisection"]
    assert told["explained_by"] == ["g002", "g003"]
    assert told["confirmed"]
    assert told["evaluations"] == len(told["tried"])
    assert told["tried"][0]["kept_in_float"] == "nothing"
    assert told["engine"]["assignment"] == {
        g: "fp32" if g in ("g002", "g003") else "int8" for g in told["engine"]["assignment"]
    }
    assert told["engine"]["final"]["loss"] <= 0.05


@pytest.mark.slow
def test_sensitive_groups_are_kept_by_their_verdict(bisected: tuple[Path, dict[str, Any]]) -> None:
    """Of the mix that the verb itself wrote, by the function of Python."""
    folder, found = bisected
    (folder / "mix.json").write_text(json.dumps({"groups": found["groups"]}))
    config = SearchConfig(str(folder / "model.onnx"), str(folder / "data.npz"), recover="none")
    with quick():
        report = verbs.evaluate(config, str(folder / "mix.json"), keep_sensitive=True)
    assert report.recovery is None
    assert set(report.kept) >= {"g002", "g003"}
    assert report.mix.evaluation.assignment == Assignment(
        {group.id: FP32 if group.id in report.kept else INT8 for group in report.groups}
    )
    assert report.mix.final is not None
    assert report.mix.final.loss < found["mix"]["final"]["loss_low"]
    assert any(line.startswith("kept in float because they are sensitive: g002 (wide)") for line in report.verdicts())
    assert [row["engine"] for row in report.engine_texts()] == [
        "fp32",
        f"{5 - len(report.kept)} int8, {len(report.kept)} fp32",
    ]

    scale = replace(report.metric, name="sqnr", unit="dB", ratio=False, relative=True)
    relative = replace(report, metric=scale)
    assert relative.engine_columns == ("engine", "latency", "× fp32", "metric", "final", "audit")
    assert all(tuple(row) == relative.engine_columns for row in relative.engine_texts())
    assert all(" dB" in row["metric"] and " dB" in row["final"] for row in relative.engine_texts())

    kept = BisectionStep("a few", report.kept, None, "", undone=True)
    failed = replace(
        report.mix, final=None, evaluation=Evaluation(report.mix.evaluation.assignment, Failure(*REFUSED, "no kernel"))
    )
    more = replace(kept, name="more", kept=tuple(group.id for group in report.groups))
    explanation = LossExplanation(Bisection((replace(kept, undone=False), more), kept, stretch=more), failed, False)
    told = list(replace(report, explanation=explanation).verdicts())
    assert f"chosen as a stretch, {len(report.groups)} groups are needed: more" in told
    assert "NOT CONFIRMED: the engine with these groups in float fails: no kernel" in told


@pytest.mark.slow
def test_recovered_int8_is_what_is_evaluated(
    bisected: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = bisected
    monkeypatch.chdir(folder)
    printed = ok("evaluate", "model.onnx", "--data", "data.npz", "--assign", "all=int8", "--recover", "equalize",
                 "--bisect", "--max-drop", "5%", "--json")  # fmt: skip
    found = json.loads(printed)
    assert [step["name"] for step in found["recovery"]["steps"] if step["kept"]] == ["equalize"]
    assert set(found["mix"]["assignment"].values()) == {"int8"}
    assert found["mix"]["final"]["loss"] < plain["mix"]["final"]["loss_low"]
    assert found["bisection"]["lossless"]
    assert found["bisection"]["explained_by"] is None


@pytest.mark.slow
def test_a_mix_that_is_refused_is_told_with_exit_code_1(
    bisected: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = bisected
    monkeypatch.chdir(folder)
    result = invoke("evaluate", "model.onnx", "--data", "data.npz", "--assign", "all=int8", "--bisect", "--backend",
                    "fake", "--backend-option", "fake-fault=refuse:wide=int8", )  # fmt: skip
    assert result.exit_code == 1
    assert "failed at build (refused)" in result.stdout
    assert result.stderr.count("error: ") == 1
    assert "evaluating the mix: it failed at build: an invented fault: wide in int8" in result.stderr
    assert "WARNING: " in result.stderr  # of the fake backend: these numbers were never measured


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--assign", "all=fp16"), "no layer that it matches can run in fp16"),
        (("--assign", "all=int8", "--bisect", "--metric", "sqnr"), "--bisect with the metric sqnr"),
        (("--assign", "all=int8", "--max-kl", "many"), "--max-kl"),
        (("--assign", "all=int8", "--decode", "yolov8"), "--decode yolov8"),
    ],
)
def test_what_is_refused_is_refused_with_exit_code_2(
    bisected: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    folder, _ = bisected
    monkeypatch.chdir(folder)
    before = tree(folder)
    result = invoke("evaluate", "model.onnx", "--data", "data.npz", *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("error: ") == 1
    assert words in result.stderr
    assert tree(folder) == before


@pytest.mark.slow
def test_the_front_tells_the_assignment_of_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    found = json.loads(ok("front", "small", "--json"))
    shown = json.loads(ok("show", "small", found["best"]["trial"], "--json"))
    assert found["best"]["assignment"] == {row["group"]: row["asked"] for row in shown["groups"]}
