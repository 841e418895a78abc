"""Biases of the picks, corrected for their own mix: kept where that helps, in everything that is built of them."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from search.graph import onnx_file
from search.graph.model import Model, load
from search.values import (
    AuditRow,
    Failure,
    FailureKind,
    MixBias,
    Precision,
    Ranges,
    RecoveryRecord,
    Stage,
    StepRecord,
)
from studies.events import Quiet
from studies.judging.standing import Standing
from studies.options.limits import Limits
from studies.run.recovery.pick_biases import PickBiases, find_harm, rows_to_correct
from studies.run.session.join import join_study
from studies.run.session.setup import adopt_ranges, check_inputs
from studies.store.records import StoredEvaluation, StudyRecord, TargetRecord
from studies.store.statements import results
from studies.store.store import Store
from studies.store.target_options import config_of
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, quick, three_layers
from tests.support.networks import feeds, images, save, session_of
from tests.support.study_rows import evaluated

PLACEMENT = OnnxRuntimeBackend().placement  # without VNNI pairs of weights are limited

pytestmark = pytest.mark.slow

BIAS_STEP = StepRecord("bias", exact=False, kept=True, reason="", error_before=0.2, error_after=0.1, seconds=3.0)
LOUD = 150  # times as loud as the others is one channel of the images, so that INT8 hears the others hardly


def write_inputs(folder: Path, loud: float) -> None:
    """Images of which one channel sets the range, and a first convolution in which all channels count alike.

    In INT8 the others are lost before the first Relu, so that its mean falls. The layer behind it makes up for that by
    a bias, which is wrong where the first one runs in float.
    """
    folder.mkdir(exist_ok=True)
    network = three_layers()
    for weight in network.graph.initializer:
        if weight.name == "first.w":
            values = numpy_helper.to_array(weight).copy()
            values[:, 2] /= loud
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    model = load(save(network, folder / "model.onnx"))
    inputs = images(400, shape=model.inputs[0].shape[1:])
    inputs[:, 2] *= loud
    np.savez(folder / "data.npz", image=inputs)


def search(folder: Path, study: str, limit: float) -> list[Any]:
    model, data = folder / "model.onnx", folder / "data.npz"
    words = ["search", model, "--data", data, "--metric", "mse", "--study", study, "--recover", "bias"]
    return [*words, "--trials", 8, "--accuracy-limit", limit, "--keep-engines", "all", "-v"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study that was cut off while the pick's corrected engine was being stored, and was resumed.

    In between its best was exported without its engine file, so that an engine without the corrections was built again.
    `picks.json` has each trial that the resumed study corrected, with the trials that were picks when it did.
    """
    folder = tmp_path_factory.mktemp("biases")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, LOUD)
        with pytest.MonkeyPatch.context() as cut:
            cut.setattr(results, "delete_confirmation", interrupt)
            first = invoke(*search(folder, "s", 0.05))
        assert first.exit_code == 130, first.output
        (folder / "cut.json").write_text(json.dumps(dump()))
        early = pick()  # that of the end may be another one
        engine_of(early).rename("kept.engine")
        ok("export", "s", "--trial", early.trial, "--out", "early", "--quiet")
        Path("kept.engine").rename(engine_of(early))
        Path("early.json").write_text(json.dumps(early.trial), encoding="utf-8")
        with noted_picks() as corrected:
            (folder / "summary.txt").write_text(ok("resume", "s", "-v"))
        (folder / "picks.json").write_text(json.dumps(corrected))
        yield folder


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched)
    return searched


@contextmanager
def noted_picks() -> Iterator[list[tuple[int, list[int]]]]:
    """Each trial that is corrected meanwhile, with those that are picks at that time: latencies may change them."""
    noted: list[tuple[int, list[int]]] = []
    correct = PickBiases._correct

    def note(self: PickBiases, now: Standing, row: int, seconds: float) -> None:
        noted.append((int(now.table.trial[row]), [int(now.table.trial[each]) for each in now.picks.rows()]))
        correct(self, now, row, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PickBiases, "_correct", note)
        yield noted


def interrupt(*given: Any) -> None:
    raise KeyboardInterrupt


def dump() -> list[dict[str, Any]]:
    """What is stored of every evaluation."""
    names = "id, digest, artifact, loss, raw_ms, mix_bias, mix_corrections, finished_at"
    query = f"select {names} from bf_evaluation where role != 'export' order by id"
    with sqlite3.connect(DATABASE) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(query)]
    connection.close()
    return found


def opened(study: str = "s") -> tuple[Store, StudyRecord, TargetRecord]:
    store = Store.open(f"sqlite:///{DATABASE}", write=False)
    record = store.studies.load(study)
    return store, record, store.targets.of_study(record.id)[0]


def pick(study: str = "s") -> StoredEvaluation:
    """The evaluation of the best."""
    [best] = [row for row in json.loads(ok("front", study, "--json"))["rows"] if "best" in row["picks"]]
    return evaluation(best["trial"], study)


def evaluation(trial: int, study: str = "s") -> StoredEvaluation:
    store, _, target = opened(study)
    with store:
        return store.trials.load(target.id, trial)


def every() -> list[StoredEvaluation]:
    """Those of the eight mixes, in order."""
    store, _, _ = opened()
    with store:
        return [store.evaluations.load(number) for number in range(1, 9)]


def engine_of(record: StoredEvaluation) -> Path:
    return Path(f"{DATABASE}.artifacts/{record.artifact}")


def plain_ranges(study: str = "s") -> Ranges:
    """The ranges of the study, without what single mixes have of their own."""
    store, _, target = opened(study)
    with store:
        return Ranges.from_json(
            json.loads(Path(f"{DATABASE}.artifacts/{target.ranges_digest}").read_text(encoding="utf-8"))
        )


def constants(model: ir.Model) -> dict[str, NDArray[Any]]:
    found = model.graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in found if value.const_value is not None}


def is_of(path: Path, record: StoredEvaluation, ranges: Ranges) -> bool:
    """Whether an engine file holds what the assignment is lowered to under these ranges."""
    wanted = constants(lower(load(Path("model.onnx")), record.evaluation.assignment, ranges, PLACEMENT))
    held = constants(ir.load(path))
    return held.keys() == wanted.keys() and all(np.array_equal(held[name], wanted[name]) for name in wanted)


def errors(path: Path, model: Model) -> NDArray[np.float64]:
    """(samples,) mean squared error of an engine file against the float model, on inputs that no search has seen."""
    engine, exact = session_of(onnx.load(path)), session_of(onnx.load("model.onnx"))
    given = [feeds(model, number) for number in range(900, 920)]
    for inputs in given:
        inputs["image"][:, 2] *= LOUD
    found = [np.square(engine.run(None, each)[0] - exact.run(None, each)[0]).mean(axis=1) for each in given]
    return np.concatenate(found).astype(np.float64)


def test_what_is_cut_off_while_it_is_stored_leaves_the_pick_as_it_was(here: Path) -> None:
    before = json.loads((here / "cut.json").read_text())
    assert [row["mix_bias"] for row in before] == [None] * 8
    changed = {new["id"]: (old, new) for old, new in zip(before, dump(), strict=True) if old != new}
    for old, new in changed.values():  # by the latencies of the machine, of more than one mix
        differing = {name for name in old if old[name] != new[name]}
        kept = {"artifact", "loss", "mix_corrections"} if new["mix_corrections"] else set()
        assert differing == {"mix_bias", *kept}
    old, new = changed[pick().id]
    assert new["loss"] < 0.05 * old["loss"]  # nearly all of it of samples beyond the calibrated ranges


def test_a_pick_has_the_biases_of_its_own_mix_and_is_confirmed_with_them(here: Path) -> None:
    record = pick()
    bias, accuracy = record.mix_bias, record.evaluation.accuracy
    assert bias is not None
    assert bias.kept
    assert bias.after is not None
    assert accuracy is not None
    assert (bias.after.loss, bias.after.samples) == (pytest.approx(accuracy.loss), accuracy.samples)
    assert bias.before.samples == bias.after.samples
    assert (bias.step.error_after or 0) < 0.01 * (bias.step.error_before or 0)
    assert record.final is not None
    # What a few samples have beyond the calibrated ranges is cut off, which no bias can repair: 7 of the 400 images
    # reach further than the pooled range, four of them final ones, and all but a thousandth of the loss is theirs.
    assert record.final.loss < 0.5 * bias.before.loss
    assert np.median(record.final.scores) < 0.01 * bias.before.loss
    assert len(record.rounds) == 2, "as evaluated and as confirmed"
    ranges = plain_ranges()
    assert ranges.recovery.mixes == {}
    store, _, target = opened()
    with store:
        stored = store.evaluations.mix_biases(target.id)
    own = ranges.with_mixes(
        {each.assignment.digest: each.mix_corrections.corrections for each in stored if each.mix_corrections}
    )
    assert is_of(engine_of(record), record, own)
    assert not is_of(engine_of(record), record, ranges)


def test_corrections_add_no_op_and_leave_the_digest(here: Path) -> None:
    record = pick()
    engine = ir.load(engine_of(record))
    plain = lower(load(here / "model.onnx"), record.evaluation.assignment, plain_ranges(), PLACEMENT)
    assert [node.op_type for node in engine.graph] == [node.op_type for node in plain.graph]
    assert len({each.digest for each in every()}) == 8
    store, _, target = opened()
    with store:
        assert target.ranges_digest is not None


def test_picks_alone_are_corrected_each_of_them_once(here: Path) -> None:
    noted = json.loads((here / "picks.json").read_text())
    corrected = {each.trial for each in every() if each.mix_bias}
    assert len(noted) == len(corrected)
    assert {trial for trial, _ in noted} == corrected
    assert all(trial in picks for trial, picks in noted)
    told = re.findall(r"^trial (\d+): biases corrected for this mix", (here / "summary.txt").read_text(), re.MULTILINE)
    assert set(map(int, told)) <= set(corrected), "the summary tells of those that still are picks"


def test_summary_show_and_report_tell_of_it(here: Path) -> None:
    told = "biases corrected for this mix are kept: the error falls to "
    record = pick()
    start = f"trial {record.trial}: {told}"
    line = next(text for text in (here / "summary.txt").read_text().splitlines() if text.startswith(start))
    assert " on the same 200 search samples" in line
    assert told in ok("show", "s", record.trial)
    shown = json.loads(ok("show", "s", record.trial, "--json"))["mix_bias"]
    assert MixBias.from_json(shown) == record.mix_bias
    ok("report", "s", "--out", "report.html")
    assert told in (here / "report.html").read_text()


def test_an_export_and_what_is_built_again_for_it_compute_the_corrected_outputs(here: Path) -> None:
    record, model = pick(), load(here / "model.onnx")
    ok("export", "s", "--out", "kept", "--for", "qat", "--quiet")
    engine_of(record).unlink()
    ok("export", "s", "--out", "again", "--quiet")
    onnx_file.write(lower(model, record.evaluation.assignment, plain_ranges(), PLACEMENT), here / "plain.onnx")
    kept = errors(here / "kept/model.onnx", model)
    assert np.median(kept) < 0.1 * np.median(errors(here / "plain.onnx", model))
    np.testing.assert_array_equal(errors(here / "again/model.onnx", model), kept)
    early = evaluation(json.loads((here / "early.json").read_text()))
    assert is_of(here / "early/model.onnx", early, plain_ranges()), "built again before the correction"
    for folder in (here / "kept", here / "again"):
        ranges = Ranges.from_json(json.loads((folder / "ranges.json").read_text()))
        assert is_of(folder / "model.onnx", record, ranges), "it is what the ranges beside it make of the model"
        assert not ranges.recovery.mixes
        assert json.loads((folder / "manifest.json").read_text())["mix_bias"]["kept"]


def test_comparisons_and_later_runs_take_the_corrected_engine(here: Path) -> None:
    """Also where it was not kept, and is built again."""
    record = pick()
    [output] = json.loads(ok("compare", "s", record.trial, "--json"))["outputs"]
    assert output["engine-emulated"]["relative"] < 1e-3, "they may differ where a value lies between two codes"
    before = dump()
    resumed = invoke("resume", "s")
    assert resumed.exit_code == 0, resumed.output
    assert "correcting biases" not in resumed.stderr
    assert [row["mix_corrections"] for row in dump()] == [row["mix_corrections"] for row in before]


def test_a_worker_learns_what_another_one_corrected_meanwhile(here: Path, tmp_path: Path) -> None:
    record, ranges = pick(), plain_ranges()
    with quick(), Store.open(f"sqlite:///{DATABASE}") as store:
        study = store.studies.load("s")
        [target] = store.targets.of_study(study.id)
        with check_inputs(config_of(study, target, store.url)) as good, join_study(store, good, study, Quiet()) as work:
            adopt_ranges(good.keeper, good.folder, ranges)  # as if it had joined before
            for name in ("before", "after"):
                out = tmp_path / f"{name}.onnx"
                good.keeper.ask().builds.write_source(record.evaluation.assignment, out)
                assert is_of(out, record, ranges) == (name == "before")
                PickBiases(work).adopt_stored()


def test_what_does_not_help_leaves_the_pick_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one float layer is the last, so that those before it are corrected as they were in all INT8."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path, loud=1)
    found = invoke(*search(tmp_path, "even", 0.005))
    assert found.exit_code == 0, found.output
    record = pick("even")
    bias, accuracy = record.mix_bias, record.evaluation.accuracy
    assert bias is not None
    assert accuracy is not None
    assert record.final is not None
    assert not bias.kept
    assert bias.reason == "the error stays as it was"
    assert bias.before.loss == pytest.approx(accuracy.loss)
    assert all(row["mix_corrections"] is None for row in dump())
    assert is_of(engine_of(record), record, plain_ranges("even"))
    told = f"trial {record.trial}: biases corrected for this mix are not kept: {bias.reason}"
    assert told in found.stderr
    assert told in found.stdout


def test_a_study_without_recovery_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert all(row["mix_bias"] is None for row in dump())
    assert json.loads(ok("show", "small", 1, "--json"))["mix_bias"] is None


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([StepRecord("ranges", False, True, "", 0.2, 0.1, seconds=9), BIAS_STEP], 3.0),
        ([replace(BIAS_STEP, kept=False)], 3.0),  # what does not help all INT8 may still help a mix
        ([replace(BIAS_STEP, kept=False, error_after=None)], None),
        ([StepRecord("ranges", False, True, "", 0.2, 0.1, seconds=9)], None),
        (None, None),
    ],
)
def test_picks_are_corrected_if_all_int8_was_tried(steps: list[StepRecord] | None, seconds: float | None) -> None:
    record = None if steps is None else RecoveryRecord("auto", tuple(steps), None, (), 12.0)
    target = SimpleNamespace(recovery=record)
    work: Any = SimpleNamespace(ledger=SimpleNamespace(target=target), pace=SimpleNamespace(pick_s=None))
    PickBiases(work).note_correction_time()
    assert work.pace.pick_s == seconds


@pytest.mark.parametrize(("limits", "rows"), [(Limits(max_drop=0.01), [1, 2, 3]), (Limits(), [0, 1, 2, 3])])
def test_picks_that_lose_nothing_are_left_alone(limits: Limits, rows: list[int]) -> None:
    """Without a limit nobody says how much would be nothing; where no interval is known, it may be a loss."""
    low, high = [-0.001, 0.002, -0.01, math.nan], [0.001, 0.004, 0.02, math.nan]
    table = SimpleNamespace(loss_low=np.array(low), loss_high=np.array(high))
    now: Any = SimpleNamespace(limits=limits, table=table, picks=SimpleNamespace(rows=lambda: [0, 1, 2, 3]))
    assert rows_to_correct(now) == rows


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"loss": 0.03}, "its engine's loss on the same search samples is larger"),
        ({"failure": Failure(Stage.BUILD, FailureKind.TIMEOUT, "too slow")}, "its engine failed, build: too slow"),
        ({"ms": 2.03}, "its engine takes 2.03 ms, where 2.02 ms would be as fast"),
        ({"disobeyed": True}, "more groups of its engine do not run in the requested precision"),
    ],
)
def test_an_engine_that_is_worse_is_not_taken(changes: dict[str, Any], why: str) -> None:
    before = evaluated((2, 0), 2.0, 0.02, 0.01)
    after = evaluated((2, 0), changes.get("ms", 2.02), changes.get("loss", 0.02), 0.01)
    if changes.get("disobeyed"):
        after = replace(after, audit=(AuditRow("g000", Precision.INT8, Precision.FP32, "kernel"), *after.audit[1:]))
    assert find_harm(before, replace(after, failure=changes.get("failure")), 2.02) == why
