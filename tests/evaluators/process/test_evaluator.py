"""The way of one candidate, in this process: what is measured, how it fails, and what stays on disk."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from evaluators.measure.accuracy import subset_size
from evaluators.measure.latency import MIN_ROUNDS
from evaluators.process.evaluator import Evaluator
from evaluators.process.job import Job, StopLimits, discard
from evaluators.process.tasks.open_data import OpenData
from search.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    EvaluatorError,
    MetricError,
    ModelError,
    RunError,
    TargetError,
)
from search.values import Answer, Assignment, Evaluation, FailureKind, Precision, Ranges, Stage, TensorRange
from tests.support.evaluator_jobs import SAMPLES, Case, case, write_ranges
from tests.support.networks import Net, images, observed, residual_cnn, unet

FP32, INT8 = Precision.FP32, Precision.INT8
NOTHING = StopLimits()


class Warm:
    """An evaluator that is opened once for many tests, and what it has reported."""

    def __init__(self, opened: Case) -> None:
        self.case = opened
        self.events: list[tuple[str, Any]] = []
        self.evaluator = Evaluator(opened.job, lambda event, value: self.events.append((event, value)))
        self.data = data_of(self.evaluator)

    def evaluate(self, precision: Precision, limits: StopLimits = NOTHING) -> Evaluation:
        self.events.clear()
        return self.evaluator.candidates.evaluate(self.case.uniform(precision), self.case.out, limits)

    @property
    def stages(self) -> list[Any]:
        return [value for event, value in self.events if event == "stage"]


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A latency lock of our own, and quick measurements: nothing here depends on how long anything takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        patch.setattr("evaluators.measure.blocks.MAX_WARM_UP_S", 0.01)
        patch.setattr("evaluators.measure.latency.BLOCK_MS", 0.5)
        yield


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    return Warm(case(tmp_path_factory.mktemp("warm")))


def opened(job: Job, **changes: Any) -> Evaluator:
    return Evaluator(replace(job, **changes), lambda event, value: None)


def data_of(evaluator: Evaluator) -> OpenData:
    assert evaluator.data is not None
    return evaluator.data


# -- one that goes well ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_candidate_goes_all_the_way(warm: Warm) -> None:
    found = warm.evaluate(INT8)
    assert found.ok
    assert warm.stages == [stage.value for stage in Stage]
    assert {row.group for row in found.audit} == set(found.assignment)
    assert all(row.answer is Answer.OBEYED for row in found.audit)
    latency, accuracy = found.latency, found.accuracy
    assert latency is not None
    assert accuracy is not None
    assert latency.baseline_ms is not None
    assert len(latency.samples_ms) >= MIN_ROUNDS  # blocks of one inference, where the machine is slow
    assert len(latency.baseline_samples_ms) >= MIN_ROUNDS
    assert latency.value_ms == latency.raw_ms > 0  # nothing to scale by yet
    assert accuracy.complete
    assert accuracy.samples == len(accuracy.scores) == len(warm.data.search_indices)
    assert 0 <= accuracy.loss == pytest.approx(1 - accuracy.value)
    assert found.artifact == str(warm.case.out)
    assert found.size_bytes == warm.case.out.stat().st_size
    assert found.build_s is not None
    assert found.total_s is not None
    assert 0 <= found.build_s <= found.total_s
    assert warm.case.engines() == ["candidate.engine"]
    onnx.checker.check_model(str(warm.case.out))


@pytest.mark.slow
def test_without_an_engine_a_mix_scores_as_its_engine_does(warm: Warm) -> None:
    groups = [group.id for group in warm.case.model.groups]
    mixed = Assignment({group: INT8 if place % 2 else FP32 for place, group in enumerate(groups)})
    for assignment in (warm.case.uniform(FP32), warm.case.uniform(INT8), mixed):
        built = warm.evaluator.candidates.evaluate(assignment, warm.case.out, NOTHING).accuracy
        score = warm.evaluator.diagnoses.score_emulated(assignment)
        assert built is not None
        assert score.accuracy is not None
        assert score.failure == ""
        assert score.accuracy.samples == built.samples
        assert score.accuracy.loss == pytest.approx(built.loss, abs=0.02)  # kernels may round in another way


def test_without_an_engine_scoring_stops_where_more_is_lost_than_allowed(tmp_path: Path) -> None:
    made = case(tmp_path)
    narrow = {name: TensorRange(0.0, 1e-3) for name in observed(made.model).tensors}
    evaluator = opened(made.job, ranges=write_ranges(tmp_path / "narrow.json", Ranges("minmax", narrow, narrow, 1)))
    score = evaluator.diagnoses.score_emulated(made.uniform(INT8), allowed_drop=0.01)
    assert score.accuracy is not None
    assert not score.accuracy.complete
    assert score.accuracy.loss_low > 0.01


def test_fp32_is_scored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(tmp_path)
    evaluator, splits = opened(made.job), []
    batches = OpenData.scored_batches

    def noted(data: OpenData, split: str) -> Any:
        splits.append(split)
        return batches(data, split)

    monkeypatch.setattr(OpenData, "scored_batches", noted)
    first = evaluator.candidates.evaluate(made.uniform(FP32), made.out, NOTHING)
    assert splits == ["search"]
    again = evaluator.candidates.evaluate(made.uniform(FP32), made.out, NOTHING)
    assert splits == ["search", "search"]
    assert first.accuracy is not None
    assert again.accuracy is not None
    assert first.accuracy.complete
    assert first.accuracy.loss == again.accuracy.loss == 0
    assert first.stage_s["run"] > 0


@pytest.mark.slow
def test_fp32_loses_nothing(warm: Warm) -> None:
    found = warm.evaluate(FP32)
    assert found.accuracy is not None
    assert (found.accuracy.value, found.accuracy.loss) == (1.0, 0.0)


@pytest.mark.slow
def test_a_late_candidate_sees_only_the_subset(warm: Warm) -> None:
    accuracy = warm.evaluate(INT8, StopLimits(latency_ms=1e-6)).accuracy
    assert accuracy is not None
    total = len(warm.data.search_indices)
    batch = warm.case.model.batch
    assert accuracy.total == total
    assert accuracy.samples == math.ceil(subset_size(total) / batch) * batch < total


@pytest.mark.slow
def test_one_that_loses_too_much_is_stopped_early_and_stays_ok(tmp_path: Path) -> None:
    made = case(tmp_path)
    narrow = {name: TensorRange(0.0, 1e-3) for name in observed(made.model).tensors}
    evaluator = opened(made.job, ranges=write_ranges(tmp_path / "narrow.json", Ranges("minmax", narrow, narrow, 1)))
    found = evaluator.candidates.evaluate(made.uniform(INT8), made.out, StopLimits(drop=0.01))
    assert found.ok
    assert found.accuracy is not None
    assert found.accuracy.samples < found.accuracy.total
    assert found.accuracy.loss_low > 0.01
    assert found.artifact is not None


def test_the_description_is_what_the_study_stores(warm: Warm) -> None:
    told = warm.evaluator.setup.describe()
    assert (told.target.statistic, told.target.clock) == ("mean", "thread")
    assert told.capability.ops.keys() == {Precision.W8, Precision.INT8_DYNAMIC, INT8, Precision.W4}
    assert told.data is not None
    assert told.metric is not None
    assert told.data.search + told.data.final + told.data.calibration == SAMPLES
    assert told.data.digest == told.data.final_digest
    top1 = {"name": "top1", "unit": "share", "higher_is_better": True, "ratio": True, "kind": "per_sample", "notes": []}
    top1 |= {"relative": False, "undeclared": False}
    assert asdict(told.metric) == top1
    json.dumps([told.target.to_json(), told.capability.to_json(), asdict(told.data), told.knobs])


def test_splits_are_the_same_in_every_process_and_share_nothing(warm: Warm) -> None:
    again = opened(warm.case.job)
    mine = warm.data
    np.testing.assert_array_equal(mine.search_indices, data_of(again).search_indices)
    parts = [mine.search_indices, mine.final_indices, mine.calibration_indices]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))


def test_data_given_apart_are_used_whole(tmp_path: Path) -> None:
    made = case(tmp_path)
    np.savez(tmp_path / "apart.npz", image=images(10, seed=5), labels=np.zeros(10, np.int64))
    evaluator = opened(made.job, final_data=str(tmp_path / "apart.npz"), calibration_data=str(tmp_path / "apart.npz"))
    described = evaluator.setup.describe().data
    assert described is not None
    assert asdict(described) | {"digest": "", "final_digest": "", "calibration_digest": ""} == {
        "digest": "",
        "final_digest": "",
        "calibration_digest": "",
        "calibration": 10,
        "search": SAMPLES,
        "final": 10,
        "clusters": {},
    }


# -- calibration -------------------------------------------------------------------------------------------------------


def test_calibration_reports_progress_and_its_ranges_are_adopted(tmp_path: Path) -> None:
    cold = Warm(case(tmp_path, ranges=None))
    with pytest.raises(RunError, match="has not been calibrated"):
        cold.evaluate(INT8)
    found = cold.evaluator.calibrations.calibrate("minmax")
    runs = math.ceil(len(cold.data.calibration_indices) / cold.case.model.batch)
    progress = [value for event, value in cold.events if event == "progress"]
    assert progress == [[done + 1, runs] for done in range(runs)]
    cold.evaluator.setup.adopt({"ranges": write_ranges(tmp_path / "found.json", found.ranges)})
    cold.evaluator.builds.rebuild(cold.case.uniform(INT8), cold.case.out)
    keys = {cold.evaluator.calibrations.find_key(method) for method in ("minmax", "entropy")}
    assert len(keys) == 2


def test_new_ranges_make_new_engines(warm: Warm, tmp_path: Path) -> None:
    evaluator, out = opened(warm.case.job), tmp_path / "x.engine"
    evaluator.builds.rebuild(warm.case.uniform(INT8), out)
    before = out.read_bytes()
    wide = {name: TensorRange(-100.0, 100.0) for name in observed(warm.case.model).tensors}
    evaluator.setup.adopt({"ranges": write_ranges(tmp_path / "wide.json", Ranges("minmax", wide, wide, 1))})
    evaluator.builds.rebuild(warm.case.uniform(INT8), out)
    assert out.read_bytes() != before


# -- candidates that fail ----------------------------------------------------------------------------------------------


def divided(middle: str = "Reciprocal") -> onnx.ModelProto:
    """conv → 1 ÷ x → conv: finite in float, and infinite where INT8 makes a small number zero."""
    n = Net(seed=5)
    x = n.op("Abs", [n.conv("image", "first", 3, 8)], "first/abs")
    n.conv(n.op(middle, [x], "middle"), "second", 8, 4, 1)
    return n.model([4, 3, 8, 8], "map", [4, 4, 8, 8])


@pytest.mark.slow
def test_outputs_that_are_not_finite_name_the_groups(tmp_path: Path) -> None:
    made = case(tmp_path, divided(), metric="cosine")
    evaluator = opened(made.job)
    first, second = made.model.groups
    found = evaluator.candidates.evaluate(Assignment({first.id: INT8, second.id: FP32}), made.out, NOTHING)
    assert found.failure is not None
    assert (found.failure.stage, found.failure.kind) == (Stage.ACCURACY, FailureKind.NON_FINITE)
    assert "second (fp32)" in found.failure.message
    assert "first (int8)" not in found.failure.message
    assert found.latency is not None  # what was measured before is kept
    assert len(found.audit) == 2
    assert found.artifact is None
    assert made.engines() == []


@pytest.mark.slow
def test_a_float_model_that_is_not_finite_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    made = case(tmp_path, divided("Log"), metric="mse")  # the Abs of a padded zero image is zero somewhere
    data = dict(np.load(made.job.data))
    data["image"][:] = 0
    np.savez(made.job.data, **data)
    network = onnx.load(made.job.model)
    for weight in network.graph.initializer:
        if weight.name == "first.b":
            weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros(8, np.float32), "first.b"))
    onnx.save(network, made.job.model)
    evaluator = opened(made.job)
    with pytest.raises(DataError, match="FP32 model on the first samples: outputs hold NaN or infinite"):
        evaluator.setup.try_out()
    with pytest.raises(DataError, match="FP32 model on the search samples"):
        evaluator.candidates.evaluate(made.uniform(FP32), made.out, NOTHING)
    assert made.engines() == []


def indexed() -> onnx.ModelProto:
    """A Gather whose index comes from the data: ONNX Runtime refuses to run it on samples that point outside."""
    n = Net(seed=6)
    x = n.op("GlobalAveragePool", [n.conv("image", "first", 3, 8)], "pool")
    level = n.op("ReduceMean", ["image"], "level", keepdims=0)
    index = n.op("Cast", [level], "index", to=TensorProto.INT64)
    rows = n.op("Gather", [n.op("Flatten", [x], "flat"), index], "row", axis=1)
    n.op("Unsqueeze", [rows, n.const("one", np.array([1]))], "y")
    return n.model([4, 3, 8, 8], "y", [4, 1])


def test_a_refusal_is_an_answer_and_keeps_nothing(tmp_path: Path) -> None:
    made = case(tmp_path, indexed(), metric="mse")
    opened(made.job).setup.try_out()
    data = dict(np.load(made.job.data))
    data["image"] += 1000
    np.savez(made.job.data, **data)
    evaluator = opened(made.job)
    with pytest.raises(ModelError, match=r"running the float model on the first samples.*out of"):
        evaluator.setup.try_out()
    found = evaluator.candidates.evaluate(made.uniform(INT8), made.out, NOTHING)
    assert found.failure is not None
    assert (found.failure.stage, found.failure.kind) == (Stage.LATENCY, FailureKind.REFUSED)
    assert "out of" in found.failure.message
    assert made.engines() == []


def test_a_builders_refusal_is_told_with_its_own_words(tmp_path: Path) -> None:
    n = Net(seed=7)
    x = n.conv("image", "first", 3, 8)
    n.nodes.append(helper.make_node("Nonsense", [x], ["y"], name="odd", domain="com.microsoft"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [4, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8, 8, 8])
    graph = helper.make_graph(n.nodes, "net", [image], [y], n.weights)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    (tmp_path / "model.onnx").write_bytes(
        helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    )
    np.savez(tmp_path / "data.npz", image=images(20, shape=(3, 8, 8)))
    everything = {name: TensorRange(-9.0, 9.0) for name in ("image", "first_out", "y")}
    ranges = write_ranges(tmp_path / "ranges.json", Ranges("minmax", everything, everything, 1))
    evaluator = opened(
        Job(str(tmp_path / "model.onnx"), str(tmp_path / "data.npz"), str(tmp_path / "work"), metric="mse"),
        ranges=ranges,
    )
    with pytest.raises(ModelError, match="Nonsense"):
        evaluator.setup.try_out()
    out = tmp_path / "x.engine"
    assignment = Assignment({group.id: INT8 for group in evaluator.opened.model.groups})
    found = evaluator.candidates.evaluate(assignment, out, NOTHING)
    assert found.failure is not None
    assert (found.failure.stage, found.failure.kind) == (Stage.BUILD, FailureKind.REFUSED)
    assert "Nonsense" in found.failure.message
    assert not list(tmp_path.glob("x.engine*"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda ranges: ranges["tensors"].clear(), "calibration has no range"),
        (lambda ranges: ranges["tensors"].update({name: ["a", "b"] for name in ranges["tensors"]}), "TypeError"),
    ],
    ids=["lowering refuses", "nobody foresaw it"],
)
def test_an_error_over_one_candidate_is_recorded_and_the_next_goes_on(
    tmp_path: Path, spoil: Callable[[Any], None], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made = case(tmp_path)
    ranges = json.loads(Path(str(made.job.ranges)).read_text(encoding="utf-8"))
    spoil(ranges)
    evaluator = opened(made.job, ranges=write_ranges(tmp_path / "spoilt.json", ranges))
    found = evaluator.candidates.evaluate(made.uniform(INT8), made.out, NOTHING)
    assert found.failure is not None
    assert (found.failure.stage, found.failure.kind) == (Stage.LOWER, FailureKind.ERROR)
    assert words in found.failure.message
    assert ("Traceback" in capfd.readouterr().err) == (words == "TypeError")
    evaluator.builds.rebuild(made.uniform(FP32), made.out)


# -- before the first trial --------------------------------------------------------------------------------------------


def test_trying_out_finds_nothing_wrong_and_leaves_outputs_of_the_float_model(warm: Warm) -> None:
    before = set(Path(warm.case.job.folder).iterdir())
    warm.evaluator.setup.try_out()
    assert {path.name for path in set(Path(warm.case.job.folder).iterdir()) - before} <= {"float-outputs.npz"}


@pytest.mark.parametrize(
    ("metric", "samples", "words"),
    [
        ("top1", 4, "needs at least 2 final samples"),
        ("miou", 6, "more than 2 .one batch. final samples"),
    ],
)
def test_too_few_samples_for_an_interval_are_refused_at_once(
    tmp_path: Path, metric: str, samples: int, words: str
) -> None:
    network = residual_cnn(channels=8) if metric == "top1" else unet()
    made = case(tmp_path, network)
    labels = np.zeros(samples if metric == "top1" else (samples, 16, 16), np.int64)
    np.savez(made.job.data, image=images(samples), labels=labels)
    with pytest.raises(DataError, match=words):
        opened(made.job, metric=metric).setup.try_out()


def test_a_metric_that_does_not_fit_the_outputs_is_found(tmp_path: Path) -> None:
    made = case(tmp_path)
    with pytest.raises(DataError, match="needs shape"):
        opened(made.job, metric="miou").setup.try_out()
    with pytest.raises(ConfigError, match="Did you mean top1"):
        opened(made.job, metric="top11")
    with pytest.raises(TargetError, match="expected cpu, cuda"):
        opened(made.job, device="tpu")
    with pytest.raises(TargetError, match="starting backend onnxruntime: TypeError"):
        opened(made.job, options={"treads": 1})
    with pytest.raises(MetricError, match="gave nan"):
        opened(made.job, metric=f"{__name__}:nan_metric").setup.try_out()


def nan_metric(outputs: Any, labels: Any) -> Any:
    return np.full(len(next(iter(outputs.values()))), np.nan)


nan_metric.needs_labels = False  # type: ignore[attr-defined]


def test_labels_of_every_scored_sample_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    made = case(tmp_path)
    good = dict(np.load(made.job.data))
    fine = opened(made.job)
    for which, split in ((data_of(fine).final_indices[-1], "final"), (data_of(fine).search_indices[-1], "search")):
        np.savez(made.job.data, image=good["image"], labels=changed(good["labels"], int(which), 10))
        bad = split_like(opened(made.job), fine)
        with pytest.raises(DataError, match=f"{split} samples: sample {which}: .*label 10 is not one of .* 10 classes"):
            bad.setup.try_out()
    np.savez(made.job.data, **good)
    apart = str(tmp_path / "apart.npz")
    for labels, words in ((np.zeros(40), "got float64"), (np.full(40, -1), "label -1 is not one")):
        np.savez(apart, image=images(40, seed=5), labels=labels)
        with pytest.raises(DataError, match=f"the final samples: sample 0: .*{words}"):
            opened(made.job, final_data=apart).setup.try_out()
    opened(made.job).setup.try_out()


def changed(labels: NDArray[Any], place: int, label: int) -> NDArray[Any]:
    return np.where(np.arange(len(labels)) == place, label, labels)


def split_like(evaluator: Evaluator, other: Evaluator) -> Evaluator:
    """Data of another content are split in another way: have the same samples for the same."""
    mine, theirs = data_of(evaluator), data_of(other)
    mine.search_indices, mine.final_indices = theirs.search_indices, theirs.final_indices
    return evaluator


def test_label_maps_of_the_final_samples_are_checked(tmp_path: Path) -> None:
    made = case(tmp_path, unet(), metric="miou")
    maps = np.zeros((SAMPLES, 16, 16), np.int64)
    inputs = dict(np.load(made.job.data))["image"]
    np.savez(made.job.data, image=inputs, labels=maps)
    apart = str(tmp_path / "apart.npz")
    for labels, words in ((maps[:, :8], "shape"), (maps + 200, "label 200 is neither"), (maps[:, 0, 0], "shape")):
        np.savez(apart, image=inputs, labels=labels)
        with pytest.raises(DataError, match=f"the final samples: sample 0: .*{words}"):
            opened(made.job, final_data=apart).setup.try_out()
    maps[7, 3, 3] = 255  # counts for nothing
    np.savez(apart, image=inputs, labels=maps)
    opened(made.job, final_data=apart).setup.try_out()


def test_a_metric_of_the_users_own_is_tried_on_final_samples_too(tmp_path: Path) -> None:
    made = case(tmp_path, metric=f"{__name__}:names_metric")
    np.savez(tmp_path / "apart.npz", image=images(40, seed=5), labels=np.zeros((40, 2)))
    opened(made.job).setup.try_out()
    with pytest.raises(MetricError, match=r"^scoring the first final samples: .*ValueError on samples 0 to 3"):
        opened(made.job, final_data=str(tmp_path / "apart.npz")).setup.try_out()


def names_metric(outputs: Any, labels: Any) -> Any:
    return outputs["logits"].argmax(1) == labels.reshape(len(outputs["logits"]))


# -- many engines at once ----------------------------------------------------------------------------------------------


def test_finalists_are_measured_side_by_side_and_scored_on_final(warm: Warm) -> None:
    half = {group.id: INT8 if i % 2 else FP32 for i, group in enumerate(warm.case.model.groups)}
    candidates = {"8": warm.case.uniform(INT8), "half": Assignment(half), "32": warm.case.uniform(FP32)}
    folder = warm.case.folder / "finalists"
    folder.mkdir()
    for label, assignment in candidates.items():
        warm.evaluator.builds.rebuild(assignment, folder / label)
    assert sorted(path.name for path in folder.iterdir()) == sorted(candidates)
    warm.events.clear()
    found = warm.evaluator.scores.score_finalists({label: folder / label for label in candidates}, rounds=3)
    assert found.latency.keys() == found.accuracy.keys() == candidates.keys()
    assert found.failed == {}
    assert found.reference == 1.0
    assert [value for event, value in warm.events if event == "progress"] == [[1, 3], [2, 3], [3, 3]]
    for latency in found.latency.values():
        assert len(latency.samples_ms) % 3 == 0
        assert latency.baseline_ms == found.latency["8"].baseline_ms
    assert found.accuracy["32"].loss == 0
    assert all(accuracy.total == len(warm.data.final_indices) for accuracy in found.accuracy.values())
    flips = {label: accuracy.flips for label, accuracy in found.accuracy.items()}
    for label, accuracy in found.accuracy.items():  # labels are what the float model says
        assert flips[label] is not None
        assert flips[label].right == flips[label].samples == accuracy.total
        assert flips[label].lost.count == flips[label].count == np.count_nonzero(accuracy.scores == 0)
        assert set(flips[label].lost.first) <= set(warm.data.final_indices)
    assert flips["32"].count == 0


def test_no_sample_flips_where_no_classes_are_scored(tmp_path: Path) -> None:
    made = case(tmp_path, metric="sqnr")
    evaluator = opened(made.job)
    evaluator.builds.rebuild(made.uniform(INT8), tmp_path / "8.engine")
    assert evaluator.scores.score_engines({"8": tmp_path / "8.engine"}).accuracy["8"].flips is None
    compared = evaluator.diagnoses.compare(tmp_path / "8.engine", made.uniform(INT8), False, 16)
    assert compared.flips is None


def test_a_finalist_that_is_not_finite_on_final_does_not_spoil_the_others(tmp_path: Path) -> None:
    made = case(tmp_path, divided(), metric="cosine")
    evaluator = opened(made.job)
    first, second = made.model.groups
    evaluator.builds.rebuild(Assignment({first.id: INT8, second.id: FP32}), tmp_path / "bad.engine")
    evaluator.builds.rebuild(made.uniform(FP32), tmp_path / "good.engine")
    engines = {name: tmp_path / f"{name}.engine" for name in ("bad", "good")}
    found = evaluator.scores.score_finalists(engines, rounds=1)
    assert found.latency.keys() == {"bad", "good"}
    assert found.accuracy.keys() == {"good"}
    assert "NaN or infinite" in found.failed["bad"]


def test_an_engine_gives_the_same_outputs_when_loaded_again(warm: Warm) -> None:
    warm.evaluator.builds.rebuild(warm.case.uniform(INT8), warm.case.out)
    outputs = [evaluator.scores.run_final(warm.case.out) for evaluator in (warm.evaluator, opened(warm.case.job))]
    assert outputs[0].keys() == {"logits"}
    assert outputs[0]["logits"].shape == (64, 10)
    np.testing.assert_array_equal(outputs[0]["logits"], outputs[1]["logits"])


def test_outputs_without_axes_can_be_checked_too(tmp_path: Path) -> None:
    n = Net(seed=8)
    n.op("ReduceMean", [n.conv("image", "first", 3, 8)], "y", keepdims=0)
    made = case(tmp_path, n.model([4, 3, 8, 8], "y", []), metric="mse", ranges=None)
    evaluator = opened(made.job, ranges=write_ranges(tmp_path / "r.json", observed(made.model)))
    evaluator.builds.rebuild(made.uniform(INT8), made.out)
    assert evaluator.scores.run_final(made.out)["y"].shape == (16,)


@pytest.mark.slow
def test_timing_again_leaves_no_engine(warm: Warm) -> None:
    out = warm.case.folder / "again.engine"
    latency = warm.evaluator.timings.time_again(warm.case.uniform(INT8), out)
    assert latency.baseline_ms is not None
    assert not list(out.parent.glob("again.engine*"))


@pytest.mark.slow
def test_timing_an_engine_file_leaves_it(warm: Warm) -> None:
    out = warm.case.folder / "kept.engine"
    warm.evaluator.builds.rebuild(warm.case.uniform(INT8), out)
    before = out.read_bytes()
    latency = warm.evaluator.timings.time_engine(out)
    assert latency.baseline_ms is not None
    assert len(latency.samples_ms) > 0
    assert out.read_bytes() == before
    out.write_bytes(before[:100])
    with pytest.raises(EvaluatorError, match=r"timing the engine kept\.engine: it cannot be loaded or run here: Load"):
        warm.evaluator.timings.time_engine(out)
    discard(out)


def test_discard_takes_what_belongs_to_an_engine_and_nothing_else(tmp_path: Path) -> None:
    for name in ("1.engine", "1.engine.optimized.onnx", "11.engine", "[1].engine", "1.engines"):
        (tmp_path / name).touch()
    discard(tmp_path / "1.engine")
    discard(tmp_path / "[1].engine")
    discard(tmp_path / "missing" / "1.engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.engines", "11.engine"]


def test_no_folder_for_the_engine_is_an_artifact_error(warm: Warm, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="No such file or directory"):
        warm.evaluator.candidates.evaluate(warm.case.uniform(INT8), tmp_path / "missing" / "x.engine", NOTHING)
