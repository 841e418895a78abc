"""An engine beside ONNX Runtime: how far they differ, what explains it, and where they part."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from evaluators.diagnose.compare import (
    EMULATED,
    ENGINE,
    FLOAT,
    PAIRS,
    Difference,
    DifferenceTally,
    TensorDifferences,
    fall_db,
    held_in,
    inputs_db,
)
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT
from evaluators.process.evaluator import Evaluator
from search.errors import EvaluatorError
from search.values import Assignment, Precision
from studies.inspect import comparison
from studies.inspect.compare_trial import differences, group_sides, output_sides
from studies.inspect.comparison import Comparison, GroupSide, OutputComparison
from tests.support.assignments import THREE
from tests.support.command_line import DATABASE, copy_finished, finished, invoke, ok, run_sql
from tests.support.evaluator_jobs import Case, case
from tests.support.networks import feeds, loaded, plain_session, ranged, residual_cnn, sqnr_db, transformer
from tests.support.records import group_record

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
ROWS = NDArray[Any]


def tallied(values: ROWS, reference: ROWS, parts: int = 1) -> Difference:
    tally = DifferenceTally("x")
    for mine, theirs in zip(np.array_split(values, parts), np.array_split(reference, parts), strict=True):
        tally.add(mine, theirs)
    return tally.difference()


# -- the numbers -------------------------------------------------------------------------------------------------------


def test_a_difference_is_what_it_says() -> None:
    found = tallied(np.array([[1.0, 2.0], [4.0, 3.0]]), np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert (found.max_abs, found.mean_abs, found.relative, found.values) == (2.0, 0.75, 0.5, 4)
    assert found.sqnr_db == pytest.approx(10 * math.log10(39 / 5))
    assert found.cosine == pytest.approx((1 + 4 + 12 + 15) / math.sqrt(39 * 30))
    assert found.agreement == 0.5  # of the rows' largest columns
    assert (found.non_finite, found.reference_non_finite) == (0, 0)


@pytest.mark.parametrize("shape", [(24,), (24, 5), (24, 3, 4)])
def test_streaming_changes_nothing(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal(shape).astype(np.float32)
    values = (reference + 0.01 * rng.standard_normal(shape)).astype(np.float16)
    whole, streamed = tallied(values, reference), tallied(values, reference, parts=7)
    assert vars(whole) == pytest.approx(vars(streamed))
    assert whole.sqnr_db == pytest.approx(sqnr_db(reference, values), abs=1e-6)
    assert (whole.agreement is None) == (len(shape) != 2)


def test_equal_and_hopeless() -> None:
    zeros, ones = np.zeros((2, 3)), np.ones((2, 3))
    equal = tallied(ones, ones)
    assert (equal.sqnr_db, equal.relative, equal.max_abs, equal.cosine) == (math.inf, 0, 0, pytest.approx(1))
    assert tallied(zeros, zeros).cosine == 1
    lost = tallied(ones, zeros)
    assert (lost.sqnr_db, lost.relative, lost.cosine) == (-math.inf, math.inf, 0)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    reference = np.array([1.0, 2.0, np.inf, 4.0])
    found = tallied(np.array([1.0, np.nan, np.inf, 5.0]), reference)
    assert (found.non_finite, found.reference_non_finite, found.values, found.max_abs) == (2, 1, 2, 1.0)
    assert found.level_db == -math.inf
    both = tallied(np.array([1.0, 2.0, np.inf, 4.0]), reference)
    assert both.level_db == both.sqnr_db == math.inf
    nothing = tallied(np.array([np.nan]), np.array([1.0]))
    assert (nothing.values, nothing.mean_abs) == (0, 0)


def test_integers_and_truth_values_are_numbers_too() -> None:
    assert tallied(np.array([250, 3], np.uint8), np.array([3, 250], np.uint8)).max_abs == 247
    assert tallied(np.array([True, False]), np.array([True, True])).mean_abs == 0.5


def test_other_shapes_are_refused() -> None:
    with pytest.raises(EvaluatorError, match=r"'x': its shape is \(2, 3\), that of the reference \(2, 4\)"):
        tallied(np.zeros((2, 3)), np.zeros((2, 4)))


def test_a_fall_is_measured_from_the_worst_input_and_what_is_normal() -> None:
    levels = {"a": 80.0, "b": 22.0, "c": 75.0, "d": 8.0}
    inputs = inputs_db(levels, {"c": ["a"], "d": ["a", "b"]})
    assert inputs == {"a": math.inf, "b": math.inf, "c": 80.0, "d": 22.0}
    assert fall_db(levels["d"], inputs["d"], INT8) == 14.0
    assert fall_db(levels["b"], inputs["b"], INT8) == INT8.ceiling_db - 22.0
    assert fall_db(levels["c"], inputs["c"], FP32) == 0  # five less, but as good as equal
    assert fall_db(-math.inf, 40.0, FP32) == math.inf
    assert fall_db(-math.inf, -math.inf, FP32) == 0  # it came from its inputs
    assert fall_db(math.inf, math.inf, FP16) == 0


# -- real engines ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A latency lock of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        yield


class Warm:
    """An evaluator and the engines it has built."""

    def __init__(self, opened: Case) -> None:
        self.case = opened
        self.evaluator = Evaluator(opened.job, lambda event, value: None)

    def built(self, assignment: Assignment) -> Path:
        self.evaluator.builds.rebuild(assignment, self.case.out)
        return self.case.out

    def sides(self, assignment: Assignment, samples: int = 20) -> tuple[comparison.GroupSide, ...]:
        found = self.evaluator.diagnoses.compare(self.case.out, assignment, True, samples)
        assert found.opened
        assert found.groups is not None
        assert self.evaluator.data is not None
        assert found.samples == min(samples, len(self.evaluator.data.final_indices))
        groups = {group.id: group for group in self.case.model.groups}
        rows, edges = found.groups, self.case.model.edges
        return group_sides(rows, groups, assignment, edges, 10.0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    return Warm(case(tmp_path_factory.mktemp("residual"), residual_cnn(channels=8)))


def mixed(made: Case) -> Assignment:
    return Assignment({group.id: INT8 if i % 2 else FP32 for i, group in enumerate(made.model.groups)})


def spoil(engine: Path, weights: tuple[str, ...], change: Any) -> None:
    """Change the weights of one layer in an engine file, whatever precision they are in."""
    network = onnx.load(engine)
    names = {form for name in weights for form in (name, f"{name}/int8")}
    found = [tensor for tensor in network.graph.initializer if tensor.name in names]
    assert found
    for tensor in found:
        array = change(numpy_helper.to_array(tensor).astype(np.float64))
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(kind), tensor.name))
    onnx.save(network, engine)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["fp32", "int8", "mixed"])
def test_a_good_engine_parts_nowhere(chosen: str, residual: Warm) -> None:
    made = residual.case
    assignment = mixed(made) if chosen == "mixed" else made.uniform(Precision.parse(chosen))
    residual.built(assignment)
    sides = residual.sides(assignment)
    assert [side.group.id for side in sides] == [group.id for group in made.model.groups]
    assert not any(side.parts for side in sides)
    [output] = residual.evaluator.diagnoses.compare(made.out, assignment, False, 20).outputs
    assert output.name == "logits"
    assert output.by_pair["engine-emulated"].sqnr_db > 60
    to_float, quantization = (output.by_pair[pair].sqnr_db for pair in ("engine-float", "emulated-float"))
    if chosen == "fp32":
        assert to_float > 100
        assert quantization == math.inf
    else:
        # What separates the engine from the float model is what the quantization explains.
        assert 15 < quantization < 60
        assert to_float == pytest.approx(quantization, abs=0.5)


@pytest.mark.parametrize("index", range(6))
def test_the_group_with_changed_weights_is_the_first_that_parts(index: int, residual: Warm) -> None:
    made = residual.case
    group = made.model.groups[index]
    assignment = mixed(made)
    spoil(residual.built(assignment), group.weights, lambda array: array[::-1])
    sides = residual.sides(assignment)
    assert next(side.group.id for side in sides if side.parts) == group.id
    assert not any(side.parts for side in sides[:index])
    for side in sides:
        if side.parts:
            assert side.fall_db > 10
        if side.group.id == group.id:
            assert side.differences["emulated-float"].sqnr_db > 20  # the references know nothing of it


def test_a_group_that_gives_nan_parts_and_what_it_feeds_does_not(residual: Warm) -> None:
    made = residual.case
    assignment = made.uniform(FP32)
    spoil(residual.built(assignment), made.model.groups[1].weights, lambda array: array * np.nan)
    sides = residual.sides(assignment)
    assert [side.group.id for side in sides if side.parts] == [made.model.groups[1].id]
    assert sides[1].differences["engine-emulated"].non_finite > 0


def test_samples_that_do_not_fill_a_batch(residual: Warm) -> None:
    assignment = residual.case.uniform(FP32)
    engine = residual.built(assignment)
    [output] = residual.evaluator.diagnoses.compare(engine, assignment, False, 5).outputs
    assert output.by_pair["engine-float"].values == 50  # ten classes each, filled-up rows left out


def test_an_engine_that_cannot_be_loaded_is_one_error(residual: Warm, tmp_path: Path) -> None:
    broken = tmp_path / "broken.engine"
    broken.write_bytes(b"no engine")
    with pytest.raises(EvaluatorError, match=r"comparing the engine broken\.engine: it cannot be loaded or run here"):
        residual.evaluator.diagnoses.compare(broken, residual.case.uniform(FP32), True, 4)


@pytest.mark.slow
def test_groups_of_a_transformer_are_compared_too(tmp_path: Path) -> None:
    warm = Warm(case(tmp_path, transformer()))
    assignment = warm.case.uniform(FP32)
    warm.built(assignment)
    sides = warm.sides(assignment, 8)
    assert len(sides) == len(warm.case.model.groups)
    assert all(side.differences["engine-float"].sqnr_db > 80 for side in sides)


def test_the_emulation_of_half_precision_rounds() -> None:
    """ONNX Runtime has no FP16 kernels on the CPU; casts written for TensorRT round all the same."""
    model = loaded("residual")
    half = lower(model, Assignment({group.id: FP16 for group in model.groups}), ranged("residual"), TENSORRT)
    from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend

    backend = OnnxRuntimeBackend("cpu")
    batch = feeds(model)
    emulated, exact = (backend.plain_session(graph).run(batch)["logits"] for graph in (half, model.graph))
    assert 40 < sqnr_db(exact, emulated) < 90
    assert sqnr_db(plain_session(onnx.load_from_string(model_bytes(model))).run(None, batch)[0], exact) == math.inf


def model_bytes(model: Any) -> bytes:
    import onnx_ir as ir

    return bytes(ir.to_proto(model.graph).SerializeToString())


def test_every_pair_has_a_name() -> None:
    assert [f"{mine}-{other}" for mine, other in PAIRS] == list(comparison.PAIRS)
    assert {ENGINE, FLOAT, EMULATED} == {who for pair in PAIRS for who in pair}


# -- the verb ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy_finished(tmp_path)
    return tmp_path


def strict(text: str) -> dict[str, Any]:
    """JSON without NaN and infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def engine_of_trial(trial: int) -> Path:
    query = "select artifact from bf_evaluation join bf_trial on evaluation_id = bf_evaluation.id where number = ?"
    return Path(f"{DATABASE}.artifacts") / run_sql(query, trial)[0][0]


@pytest.mark.slow
def test_an_fp32_engine_is_explained(studied: Path) -> None:
    before = run_sql("select count(*) from bf_evaluation")
    result = invoke("compare", "small", 0, "--samples", 8)
    assert result.exit_code == 0, result.output
    assert "trial 0: all fp32, on 8 samples of the final split" in result.stdout
    assert "logits: the engine agrees with its emulation" in result.stdout
    assert "warning" not in result.stdout + result.stderr
    found = strict(ok("compare", "small", 0, "--json"))
    assert (found["samples"], found["groups"], found["warnings"]) == (18, None, [])  # no more are there
    [output] = found["outputs"]
    assert output["explained"]
    assert output["engine-float"]["sqnr_db"] is None or output["engine-float"]["sqnr_db"] > 100
    assert output["emulated-float"]["equal"]
    assert output["engine-float"]["agreement"] == 1
    assert run_sql("select count(*) from bf_evaluation") == before


@pytest.mark.slow
@pytest.mark.parametrize("trial", [0, 1])
def test_a_spoilt_engine_is_found_out_and_located(studied: Path, trial: int) -> None:
    spoil(engine_of_trial(trial), ("second.w",), lambda array: array[::-1])
    found = strict(ok("compare", "small", trial, "--groups", "--json"))
    assert [row["parts"] for row in found["groups"]][:2] == [False, True]
    assert (found["first_group"], found["outputs"][0]["explained"]) == ("g001", False)
    assert any("was changed or damaged" in warning for warning in found["warnings"])
    said = ok("compare", "small", trial, "--groups")
    assert "the first group that differs is g001 (second, " in said
    assert "<- parts" in next(line for line in said.splitlines() if line.startswith("g001"))
    loose = ok("compare", "small", trial, "--groups", "--threshold", 500)
    assert "no group falls more than 500 dB below its inputs" in loose


RUINED = Assignment({"g000": Precision.INT8})


def side_of(engine: ROWS, emulated: ROWS, exact: ROWS) -> OutputComparison:
    pairs = {
        "engine-float": (engine, exact),
        "engine-emulated": (engine, emulated),
        "emulated-float": (emulated, exact),
    }
    found = {name: tallied(*pair) for name, pair in pairs.items()}
    [side] = output_sides([TensorDifferences("logits", found)], RUINED, 10.0)
    return side


def test_where_int8_ruins_all_an_engine_that_answers_nothing_is_not_explained() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((8, 10))
    emulated = exact + 0.7 * rng.standard_normal((8, 10))
    assert tallied(emulated, exact).level_db < 6
    assert not side_of(np.zeros((8, 10)), emulated, exact).explained
    assert not side_of(rng.standard_normal((8, 10)), emulated, exact).explained
    assert side_of(emulated + 0.03 * rng.standard_normal((8, 10)), emulated, exact).explained


def test_an_engine_of_which_a_group_parts_is_not_said_to_be_explained() -> None:
    exact = np.ones((8, 10))
    side = side_of(exact, exact, exact)
    group = group_record("g000", "first", nodes=("first",), anchors=("first",))
    groups = (GroupSide(group, "int8", side.differences, 40.0, 12.0, True),)
    found = Comparison("s", 0, "m", 8, 10.0, (side,), groups, (), ())
    assert side.explained
    told, where = found.verdicts()
    assert told == "logits: the engine agrees with its emulation in this output, but not in every group"
    assert where.startswith("the first group that differs is g000")
    assert "agrees with its emulation, so" in replace(found, groups=None).verdicts()[0]


@pytest.mark.slow
def test_what_is_not_as_recorded_is_warned_of(studied: Path) -> None:
    [(environment,)] = run_sql("select environment from bf_study")
    changed = json.loads(environment)
    changed["packages"]["numpy"] = "0.9"
    changed["memory_bytes"] = 1
    run_sql("update bf_study set environment = ?", json.dumps(changed))
    [(description,)] = run_sql("select description from bf_target")
    run_sql("update bf_target set description = ?", description.replace('"onnxruntime": "', '"onnxruntime": "0.'))
    result = invoke("compare", "small", 1, "--samples", 4)
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert told[0].startswith("warning: target versions.onnxruntime: was 0.")
    assert told[1:] == [f"warning: environment packages.numpy: was 0.9, is {np.__version__}"]
    assert len(strict(ok("compare", "small", 1, "--json"))["warnings"]) == 2


def test_changes_are_told_in_words() -> None:
    recorded = {"python": "3.10", "gpus": [{"name": "H200", "driver": "580"}], "cpu": {"usable_threads": 2}}
    now = {"python": "3.10", "gpus": [], "cpu": {"usable_threads": 1}, "packages": {"onnx": "1.18"}}
    assert differences(recorded, now) == [
        "gpus: was H200 580, is none",
        "packages.onnx: was not there, is 1.18",
    ]


@pytest.mark.slow
def test_other_data_are_warned_of(studied: Path) -> None:
    arrays = dict(np.load(finished() / "in/data.npz"))
    arrays["image"] = arrays["image"] + 1
    np.savez("other.npz", **arrays)
    result = invoke("compare", "small", 0, "--data", "other.npz", "--samples", 4)
    assert result.exit_code == 0, result.output
    assert "warning: the data have other content than those of the study" in result.stderr


@pytest.mark.slow
def test_an_engine_that_was_not_kept_is_built_again(studied: Path) -> None:
    engine_of_trial(1).unlink()
    found = strict(ok("compare", "small", 1, "--groups", "--json"))
    assert "the engine was not kept, so it was built again; the new build may use other kernels" in found["notes"]
    assert found["outputs"][0]["explained"]


@pytest.mark.slow
def test_an_engine_of_a_late_failure_can_be_compared_and_of_an_early_one_not(studied: Path) -> None:
    failed = "update bf_evaluation set status = 'failed', stage = ?, kind = 'non_finite', message = 'x' where id = 2"
    run_sql(failed, "accuracy")
    assert strict(ok("compare", "small", 1, "--json", "--samples", 4))["outputs"]
    run_sql(failed, "build")
    refused("compare", "small", 1, says="comparing trial 1: it failed at build (non finite), so there is no engine")


def refused(*arguments: Any, says: str, code: int = 2) -> None:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert says in result.stderr
    assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_refusals(studied: Path) -> None:
    refused("compare", "smal", 0, says="Did you mean 'small'?")
    refused("compare", "small", 99, says="There is no trial 99")
    refused("compare", "small", 0, "--samples", 0, says="--samples 0: expected at least 1")
    refused("compare", "small", 0, "--threshold", 0, says="--threshold 0: expected decibels, more than zero")
    network = onnx.load(finished() / "in/model.onnx")
    network.graph.node[0].name = "other"
    onnx.save(network, "other.onnx")
    refused("compare", "small", 0, "--model", "other.onnx", says="has other content than that of the study")
    run_sql("update bf_evaluation set status = 'running' where id = 1")
    refused("compare", "small", 0, says="its evaluation is not finished")


@pytest.mark.slow
def test_a_file_that_is_no_engine_ends_with_one_message(studied: Path) -> None:
    engine_of_trial(0).write_bytes(b"cut short")
    refused("compare", "small", 0, says="it cannot be loaded or run here", code=1)


@pytest.mark.slow
def test_ranges_that_are_gone_are_named(studied: Path) -> None:
    [(digest,)] = run_sql("select ranges_digest from bf_study_target")
    (Path(f"{DATABASE}.artifacts") / digest).unlink()
    refused("compare", "small", 0, says=f"Artifact {digest} is not in", code=1)


def test_an_output_may_be_held_in_what_its_readers_compute_in():
    fp32, fp16, int8 = THREE
    assignment = {"a": fp32, "b": fp16, "c": int8, "d": fp32}
    assert held_in(assignment, {"b": ["a"], "c": ["b"], "d": ["c"]}) == {"a": fp16, "b": int8, "c": int8, "d": fp32}
