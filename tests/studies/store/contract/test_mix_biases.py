"""Biases that were corrected for one mix: stored once, together with the result of the engine that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from search.values import Correction, LossEstimate, MixBias, StepRecord
from studies.artifacts.folder import Artifacts
from studies.options.limits import Limits
from studies.store.records import LostEvaluationError
from studies.store.statements import results
from studies.store.store import Store
from studies.trials.ledger import Ledger
from tests.support.study_rows import SQLITE_ALONE, add, evaluated, make_study, plain

STEP = StepRecord("bias", False, True, "the error is half as large", 0.02, 0.01, notes=("2 of 2 ops corrected",))
KEPT = MixBias(STEP, True, STEP.reason, LossEstimate(0.02, 0.01, 0.03, 8), LossEstimate(0.01, 0.0, 0.02, 8))
MEANS = {"/layer0/Conv": Correction(np.ones(2, np.float32), np.array([0.5, -0.5], np.float32))}


def confirmed(store: Store) -> tuple[int, int]:
    """A target and an evaluation of it that was measured again and scored on the final split."""
    target = make_study(store)
    number = add(store, target, 5, evaluated((1, 2), 2.0, 0.02, 0.01))
    record = store.evaluations.load(number)
    assert record.evaluation.latency is not None
    assert record.evaluation.accuracy is not None
    store.measurements.add_round(target, {number: record.evaluation.latency})
    store.evaluations.set_final(number, record.evaluation.accuracy)
    return target, number


def test_the_result_of_a_corrected_engine_takes_the_place_of_the_other_one_once(store: Store) -> None:
    target, number = confirmed(store)
    before = store.evaluations.load(number)
    better = evaluated((1, 2), 2.1, 0.01, 0.01)
    store.claims.replace_corrected(number, better, None, KEPT, MEANS, worker="w1")
    found = store.evaluations.load(number)
    assert plain(found.evaluation.accuracy) == plain(better.accuracy)
    assert plain(found.evaluation.latency) == plain(better.latency)
    assert (found.trials, found.digest, found.finished_at) == (before.trials, before.digest, before.finished_at)
    assert (found.final, [each.number for each in found.rounds]) == (None, [0]), "they were of the other engine"
    assert found.mix_bias == KEPT
    [stored] = store.evaluations.mix_biases(target)
    assert (stored.id, stored.assignment, stored.mix_bias) == (number, before.evaluation.assignment, KEPT)
    assert stored.mix_corrections is not None
    assert plain(stored.mix_corrections.corrections["/layer0/Conv"]) == plain(MEANS["/layer0/Conv"])
    with pytest.raises(LostEvaluationError):
        store.claims.replace_corrected(number, before.evaluation, None, KEPT, {}, worker="w2")
    with pytest.raises(LostEvaluationError):
        store.claims.set_mix_bias(number, KEPT)
    assert plain(store.evaluations.load(number).evaluation.accuracy) == plain(better.accuracy)


@SQLITE_ALONE
def test_the_engine_without_the_corrections_gives_way_to_the_other_one(store: Store, tmp_path: Path) -> None:
    target = make_study(store)
    study, artifacts = store.studies.load("s"), Artifacts(tmp_path / "engines")
    ledger = Ledger(store, artifacts, study, store.targets.of_study(study.id)[0], Limits(), {})
    evaluation = evaluated((1, 2), 2.0, 0.02, 0.01)
    plain_engine, corrected = tmp_path / "plain.onnx", tmp_path / "corrected.onnx"
    plain_engine.write_text("plain")
    corrected.write_text("corrected")
    number = store.claims.begin(target, evaluation.assignment, "d" * 64, "w1", 0)
    before = ledger.record(number, evaluation, plain_engine, worker="w1")
    ledger.correct(before, evaluation, corrected, KEPT, MEANS, worker="w1")
    after = store.evaluations.load(number)
    assert artifacts.read_bytes(after.artifact or "") == b"corrected"
    assert before.artifact not in artifacts


@SQLITE_ALONE
def test_what_is_not_kept_is_remembered_and_changes_nothing_else(store: Store) -> None:
    target, number = confirmed(store)
    before = store.evaluations.load(number)
    left = MixBias(STEP, False, "its engine failed", LossEstimate(0.02, 0.01, 0.03, 8))
    store.claims.set_mix_bias(number, left)
    found = store.evaluations.load(number)
    assert found.mix_bias == left
    assert plain(found.evaluation) == plain(before.evaluation)
    assert plain(found.final) == plain(before.final)
    [stored] = store.evaluations.mix_biases(target)
    assert stored.mix_corrections is None


def test_a_transaction_that_is_cut_off_leaves_everything_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, number = confirmed(store)
    before = store.evaluations.load(number)

    def cut(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "raise_revision", cut)  # the last statement
    with pytest.raises(KeyboardInterrupt):
        store.claims.replace_corrected(number, evaluated((1, 2), 2.1, 0.01, 0.01), None, KEPT, MEANS, worker="w1")
    found = store.evaluations.load(number)
    assert plain(found.evaluation) == plain(before.evaluation)
    assert (found.mix_bias, plain(found.final)) == (None, plain(before.final))
    assert store.evaluations.mix_biases(target) == ()
