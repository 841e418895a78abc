"""Which recovery steps are kept, on a real network whose channels are uneven."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations
from evaluators.data import Batch, Dataset, batches, open_data
from evaluators.metrics.registry import get_metric
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.recover import CalibrationSamples, Subject, recover
from evaluators.recovery.step import Proposal, RecoveryStep
from search.errors import EvaluatorError
from search.graph.model import load
from search.values import Ranges, RecoveryRecord, TensorRange
from tests.support.command_line import three_layers
from tests.support.extensions.toy_step import Balance, Break
from tests.support.networks import images, save, with_uneven_channels

SAMPLES = 72


@dataclass
class Final:
    """The same samples as final split."""

    dataset: Dataset
    batch: int
    opened: int = 0

    @property
    def count(self) -> int:
        return len(self.dataset)

    def open(self, count: int) -> Any:
        self.opened = max(self.opened, count)
        return nullcontext(batches(self.dataset, np.arange(count), self.batch))

    def clusters(self, count: int) -> NDArray[np.int64] | None:
        return None


class Case:
    """One network with its samples."""

    def __init__(self, folder: Path, garbage: int = 0, uneven: bool = True, metric: str = "mse") -> None:
        network = three_layers()
        if uneven:
            network = with_uneven_channels(network, "first", "second")
        model = load(save(network, folder / "model.onnx"))
        shown = images(SAMPLES, shape=model.inputs[0].shape[1:])
        if garbage:
            shown[:garbage] = 100 * np.random.default_rng(1).standard_normal(shown[:garbage].shape)
        np.savez(folder / "data.npz", image=shown)
        self.backend = OnnxRuntimeBackend("cpu")
        dataset = open_data(str(folder / "data.npz"), model.inputs)
        indices = np.arange(SAMPLES)
        self.ranges = activations.collect(model, dataset, indices, "minmax")
        samples = CalibrationSamples(dataset, indices)
        final = Final(dataset, model.batch)
        capability, placement = self.backend.capability(), self.backend.placement
        self.subject = Subject(model, capability, placement, get_metric(metric), samples, final, "minmax")

    def recover(
        self, steps: list[RecoveryStep], asked: str = "auto", seconds: float = 600.0
    ) -> tuple[Ranges, RecoveryRecord]:
        emulator = Emulator(self.backend, self.backend.placement)
        return recover(
            self.subject,
            emulator,
            asked,
            steps,
            self.ranges,
            seconds=seconds,
            done=lambda done, total: None,
            alive=lambda: None,
        )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


class Widen(RecoveryStep):
    """Makes every range four times as wide: a worse INT8."""

    name = "widen"
    summary = "wide ranges"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        wide = {name: TensorRange(4 * r.low, 4 * r.high) for name, r in ranges.tensors.items()}
        return Proposal(replace(ranges, tensors=wide))


class Idle(RecoveryStep):
    """Has nothing to do."""

    name = "idle"
    summary = "nothing"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        return None


class Spy(RecoveryStep):
    """Remembers the samples that it is shown."""

    name = "spy"
    summary = "samples"

    def __init__(self) -> None:
        self.fitting: list[Batch] = []
        self.held_out: list[Batch] = []

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        self.fitting, self.held_out = list(context.fitting()), list(context.held_out())
        return None


def test_a_step_that_helps_is_kept_with_what_it_did(case: Case) -> None:
    ranges, record = case.recover([Widen(), Balance(), Idle()])
    assert [(step.name, step.kept) for step in record.steps] == [("widen", False), ("balance", True), ("idle", False)]
    _, balance, idle = record.steps
    assert set(ranges.recovery.factors) == {"first.w", "first.b", "second.w"}
    assert balance.error_after < balance.error_before / 4
    assert balance.loss_before is not None
    assert balance.loss_after.loss <= balance.loss_before.loss
    assert balance.notes[0].endswith("channels scaled")
    assert "nothing for it to do" in idle.reason
    assert "not lower by more than chance" in record.steps[0].reason
    assert record.plain.samples == balance.final.samples == SAMPLES
    assert balance.final.loss < record.plain.loss


def test_exact_steps_alone_are_calibrated_on_all_samples(case: Case) -> None:
    ranges, _ = case.recover([Balance()])
    assert ranges.samples == SAMPLES
    plain, record = case.recover([Widen()])
    assert plain == case.ranges
    assert not record.kept


def test_a_step_that_changes_the_float_model_is_refused(case: Case) -> None:
    _, record = case.recover([Break(), Balance()])
    assert "does not give the outputs of the model" in record.steps[0].reason
    assert [step.name for step in record.kept] == ["balance"]
    with pytest.raises(EvaluatorError, match="recovering with --recover break: its float model"):
        case.recover([Break()], "break")


def test_steps_that_are_named_are_kept_whatever_they_do(case: Case) -> None:
    ranges, record = case.recover([Widen()], "widen")
    assert record.steps[0].kept
    assert record.steps[0].reason.startswith("as asked for; the error is")
    assert ranges != case.ranges


def test_samples_that_decide_are_none_that_steps_fit_to(case: Case) -> None:
    spy = Spy()
    case.recover([spy])
    fitted, held = (
        {batch.inputs["image"][row].tobytes() for batch in taken for row in range(batch.count)}
        for taken in (spy.fitting, spy.held_out)
    )
    assert (len(fitted), len(held)) == (48, 24)
    assert not fitted & held


def test_a_network_that_needs_nothing_is_left_alone(tmp_path: Path) -> None:
    case = Case(tmp_path, uneven=False)
    ranges, record = case.recover([Balance(), Widen()])
    assert not {step.name for step in record.kept} - {"balance"}
    assert record.steps[1].kept is False
    if not record.kept:
        assert ranges == case.ranges


def test_garbage_among_the_samples_decides_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, garbage=SAMPLES // 10)
    _, record = case.recover([Widen(), Balance()])
    assert [step.name for step in record.kept] == ["balance"]


def test_without_time_nothing_is_tried_and_few_samples_are_scored(case: Case) -> None:
    ranges, record = case.recover([Balance()], seconds=0.0)
    assert "the time for recovery was over" in record.steps[0].reason
    assert ranges == case.ranges
    assert record.plain.samples < SAMPLES


def test_a_metric_that_needs_labels_leaves_errors_to_decide(tmp_path: Path) -> None:
    _, record = Case(tmp_path, metric="top1").recover([Balance()])
    assert record.steps[0].kept
    assert record.steps[0].loss_before is None
    assert "losses on calibration samples are not known" in record.notes[0]


def test_the_record_comes_back_from_json(case: Case) -> None:
    _, record = case.recover([Widen(), Balance()])
    assert RecoveryRecord.from_json(record.to_json()) == record
