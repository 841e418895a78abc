"""A tenth of garbage among the calibration samples ruins plain INT8, but not recovered INT8; by the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from evaluators.data.opening import open_data
from evaluators.lowering.placement import ONNXRUNTIME_CPU
from evaluators.recovery.registry import steps_of
from evaluators.recovery.sample_choice import usual_samples
from search.graph.model import load
from search.values import RecoveryRecord
from tests.support.command_line import three_layers
from tests.support.networks import images, save
from tests.support.recovery_case import SAMPLES, Case

GARBAGE = SAMPLES // 10
# With weights of few bits biases and roundings matter as they do in hard networks with eight.
COARSE = replace(ONNXRUNTIME_CPU, weight_bits=4)


@dataclass(frozen=True)
class Losses:
    """Share of clean samples whose class all INT8 gets wrong: of plain calibration, and after the last kept step."""

    plain: float
    recovered: float


def losses(record: RecoveryRecord) -> Losses:
    assert record.plain is not None
    final = record.kept_steps[-1].final if record.kept_steps else record.plain
    assert final is not None
    return Losses(record.plain.loss, final.loss)


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(garbage, steps, options of the case) → losses."""

    def run(garbage: int, steps: str, **options: Any) -> Losses:
        folder = tmp_path_factory.mktemp("case")
        case = Case(folder, garbage=garbage, method="auto", metric="top1", final=400, **options)
        return losses(case.recover(steps_of(steps), steps)[1])

    return run


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
def test_recovered_int8_is_hardly_worse_where_plain_int8_is_ruined(uneven: bool, recovered: Any) -> None:
    clean, spoilt = recovered(0, "auto", uneven=uneven), recovered(GARBAGE, "auto", uneven=uneven)
    assert spoilt.plain > clean.plain + 0.05, "the ranges of plain calibration are ruined"
    assert spoilt.recovered < clean.recovered + 0.03
    assert spoilt.recovered < spoilt.plain / 2


@pytest.mark.slow
@pytest.mark.parametrize("step", ["bias", "round"])
def test_constants_that_are_fitted_beside_garbage_are_hardly_worse(step: str, recovered: Any) -> None:
    """The ranges are chosen first, as always."""
    before = recovered(0, "ranges", placement=COARSE)
    clean, spoilt = (recovered(garbage, f"ranges,{step}", placement=COARSE) for garbage in (0, GARBAGE))
    assert clean.recovered < 0.6 * before.recovered, "it does something"
    assert spoilt.recovered < 0.6 * before.recovered
    assert spoilt.recovered < clean.recovered + 0.1


def test_samples_far_from_usual_decide_nothing_unless_they_are_many(tmp_path: Any) -> None:
    model = load(save(three_layers(), tmp_path / "model.onnx"))
    shown = images(40, shape=(3, 8, 8))
    shown[[3, 20]] *= 100
    np.savez(tmp_path / "data.npz", image=shown)
    dataset, indices = open_data(str(tmp_path / "data.npz"), model.inputs), np.arange(40)
    assert sorted(set(indices) - set(usual_samples(dataset, indices, 4))) == [3, 20]
    hints = np.zeros((40, 3, 8, 8), np.float32)
    hints[:6] = shown[4]
    np.savez(tmp_path / "hints.npz", image=hints)
    assert len(usual_samples(open_data(str(tmp_path / "hints.npz"), model.inputs), indices, 4)) == 40, "most are empty"
    shown[:10] *= 100
    np.savez(tmp_path / "many.npz", image=shown)
    many = open_data(str(tmp_path / "many.npz"), model.inputs)
    assert len(usual_samples(many, indices, 4)) == 40
