"""Causes: each is planted in a small network, and the groups it was planted in are told by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.data import Batch
from evaluators.diagnose.distributions import weight_divergence
from evaluators.diagnose.group_error import GroupError
from evaluators.diagnose.local_noise import Network
from evaluators.diagnose.sensitivity import sensitivity
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT
from search.graph.model import Model, load
from search.values import Assignment, LossEstimate, Precision, Ranges, RecoveryRecord, StepRecord, TensorRange
from studies.judging.findings.causes import CAUSES, find_causes
from studies.judging.findings.remedies import Remedy
from studies.judging.findings.sensitivity_table import Sensitivities, text_of
from studies.options.diagnosis.thresholds import Thresholds
from studies.store.records import GroupRecord
from tests.support.networks import Net, observed, plain_session, save
from tests.support.records import group_record

INT8 = Precision.INT8
Change = Callable[[NDArray[Any]], NDArray[Any]]


class Case:
    """Three convolutions, `first`, `middle` and `last`, whose constants and inputs a test changes."""

    def __init__(self) -> None:
        self.net = n = Net(5)
        x = n.op("Relu", [n.conv("image", "first", 3, 64)], "first/relu")
        x = n.op("Relu", [n.conv(x, "middle", 64, 64, 1)], "middle/relu")
        n.conv(x, "last", 64, 64, 1)
        self.image = np.random.default_rng(6).standard_normal((16, 3, 8, 8)).astype(np.float32)

    def change(self, name: str, change: Change) -> None:
        """Change a constant by its name."""
        for place, tensor in enumerate(self.net.weights):
            if tensor.name == name:
                made = change(numpy_helper.to_array(tensor)).astype(np.float32)
                self.net.weights[place].CopyFrom(numpy_helper.from_array(made, name))

    def found(self, folder: Any, cut: float = 1.0) -> Sensitivities:
        """What the pass finds; ranges cover the images, and are `cut` times as wide as these need."""
        path = save(self.net.model([16, 3, 8, 8], "mask", [16, 64, 8, 8]), folder / "m.onnx")
        model = load(path)
        groups = {g.id: GroupRecord.of_group(g) for g in model.groups}
        ranges = _ranges(model, self.image, cut)
        found = sensitivity(
            Emulator(OnnxRuntimeBackend("cpu", threads=1), TENSORRT),
            Network(model, ranges, TENSORRT),
            [(group.id, INT8) for group in model.groups],
            np.arange(16),
            lambda indices: iter([Batch({"image": self.image}, None, 16)]),
            seconds=60.0,
            done=lambda done, total: None,
        )
        rows = tuple(GroupError(**asdict(row)) for row in found.rows)
        return Sensitivities("m", rows, groups, Thresholds())


def _ranges(model: Model, image: NDArray[Any], cut: float) -> Ranges:
    proto = ir.to_proto(model.graph)
    for info in proto.graph.value_info:
        proto.graph.output.append(info)
    session = plain_session(proto)
    names = [output.name for output in session.get_outputs()]
    arrays = {"image": image, **dict(zip(names, session.run(names, {"image": image}), strict=True))}
    found = {name: TensorRange(cut * float(a.min()), cut * float(a.max())) for name, a in arrays.items()}
    return Ranges("minmax", found, found, len(image))


def causes(found: Sensitivities) -> dict[str, list[str]]:
    """Name of a group → causes that show in it."""
    return {found.groups[row["group"]].name: row["causes"] for row in found.table()}


def test_a_network_without_a_fault_has_no_cause(tmp_path: Any) -> None:
    case = Case()
    found = case.found(tmp_path)
    assert {row.group for row in found.rows} == found.groups.keys()
    assert not any(row["sensitive"] for row in found.table()), "one of them has the largest error all the same"
    assert any(
        row["sensitive"] for row in replace(found, thresholds=Thresholds(max_error_ratio=1.0, min_error=0.0)).table()
    )
    loose = replace(found, thresholds=Thresholds(max_error_ratio=100.0))
    assert causes(loose) == {"first": [], "middle": [], "last": []}
    assert (loose.cause_rows(), loose.remedies()) == ([], [])


def test_uneven_channels_are_told_by_who_reads_and_who_writes_them(tmp_path: Any) -> None:
    case = Case()
    factors = np.ones((64, 1, 1, 1), np.float32)
    factors[::8] = 200.0
    case.change("first.w", lambda array: factors * array)
    case.change("middle.w", lambda array: array / factors.reshape(1, -1, 1, 1))
    found = case.found(tmp_path)
    told = causes(found)
    assert told["middle"][:2] == ["uneven channels", "lost weights"]
    [rows] = [row for row in found.cause_rows() if row["node"] == "middle" and row["cause"] == "uneven channels"]
    assert "× as wide as the median one" in rows["evidence"]
    [remedy] = [remedy for remedy in found.remedies() if remedy.cause.name == "uneven channels"]
    assert remedy.cause.steps[0] == "equalize"
    assert "Recovery steps for this: equalize, smooth." in remedy.text


def test_far_values_are_told_where_a_speck_stretches_the_range(tmp_path: Any) -> None:
    case = Case()
    case.image[3, 1, 4, 4] = 300.0
    assert "far values" in causes(case.found(tmp_path))["first"]


def test_values_that_a_range_cuts_off_are_told(tmp_path: Any) -> None:
    assert "cut-off values" in causes(Case().found(tmp_path, cut=0.3))["middle"]


def test_weights_that_vanish_beside_larger_ones_are_told(tmp_path: Any) -> None:
    case = Case()

    def spoil(array: NDArray[Any]) -> NDArray[Any]:
        made = array.copy()
        made[:, 0] *= 500
        return made

    case.change("last.w", spoil)
    found = case.found(tmp_path)
    assert not any(row["sensitive"] for row in found.table()), (
        "the channel that is left carries nearly all of the output"
    )
    assert "lost weights" in causes(replace(found, thresholds=Thresholds(min_error=0.0)))["last"]


@pytest.mark.parametrize("form", ["conv", "linear", "gemm"])
def test_weights_diverge_by_what_rounding_leaves_of_them(form: str, tmp_path: Any) -> None:
    n = Net(7)
    if form == "conv":
        n.conv("image", "only", 3, 64)
        shape, out = [2, 3, 8, 8], [2, 64, 8, 8]
    else:
        getattr(n, form)("image", "only", 64, 48)
        shape, out = [2, 64], [2, 48]
    model = load(save(n.model(shape, "y", out), tmp_path / "m.onnx"))
    [group] = model.groups
    lowered = lower(model, Assignment({group.id: INT8}), observed(model), TENSORRT)
    found = weight_divergence(model.graph, lowered, group.anchors)
    assert found is not None
    assert 0 < found < 0.05, "eight bits of Gaussian weights"
    assert weight_divergence(model.graph, model.graph, group.anchors) == 0.0


ROW = GroupError("g000", INT8, 0.5, 0.0, 30.0, 0.0, 1.0, 0.0, 64, 1e-3, 0.0, 0.0, 0.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "amplified error"),
        ({"sqnr_db": 12.0}, "coarse rounding"),
        ({"sqnr_db": 12.0, "shift": 0.6}, "constant shift"),
        ({"overlap": 0.75}, "truncated activations"),
        ({"overlap": 0.75, "channel_ratio": 9.0}, "uneven channels"),
        ({"saturated": 0.01}, "cut-off values"),
        ({"saturated": 0.01, "precision": Precision.FP16}, "overflow"),
        ({"error": None}, "overflow"),
        ({"tails": 0.03}, "far values"),
        ({"peak": 40.0}, "far values"),
        ({"weight_kl": 0.4}, "lost weights"),
    ],
)
def test_a_sign_points_to_its_cause(changes: dict[str, Any], name: str) -> None:
    [finding] = find_causes(replace(ROW, **changes), Thresholds())
    assert finding.cause.name == name
    assert finding.evidence


def test_thresholds_decide() -> None:
    row = replace(ROW, channel_ratio=9.0, overlap=0.75)
    groups = {"g000": group_record("g000", "a")}
    found = Sensitivities("m", (row,), groups, Thresholds(max_error_ratio=9.0))
    [shown] = found.table()
    assert (shown["sensitive"], shown["verdict"], shown["causes"]) == (False, "truncated", ["uneven channels"])
    assert text_of(shown)["verdict"] == "truncated"
    assert "1 truncated" in found.headline()
    other = replace(found, thresholds=Thresholds(max_error_ratio=9.0, max_channel_ratio=10.0))
    assert other.table()[0]["causes"] == ["truncated activations"]
    none = replace(found, thresholds=Thresholds(max_error_ratio=9.0, full_overlap=0.7))
    assert none.table()[0]["causes"] == []


@pytest.mark.parametrize("sign", [{"overlap": 0.75}, {"overlap": 0.5}, {"sqnr_db": 12.0}, {"weight_kl": 0.4}])
def test_what_does_no_harm_has_no_verdict(sign: dict[str, Any]) -> None:
    groups = {"g000": group_record("g000", "a")}
    for row, harmful in ((replace(ROW, error=9e-4), False), (replace(ROW, error=9e-4, flipped=0.1), True)):
        found = Sensitivities("m", (replace(row, **sign),), groups, Thresholds())
        [shown] = found.table()
        assert bool(shown["verdict"]) is bool(shown["causes"]) is harmful


def test_every_remedy_names_steps_that_there_are() -> None:
    names = {"equalize", "smooth", "ranges", "bias", "narrow", "round", "samples"}
    assert all(set(cause.steps) <= names and cause.steps for cause in CAUSES)
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)


def test_what_a_remedy_won_here_stands_beside_it() -> None:
    plain, after, last = (LossEstimate(loss, loss - 0.01, loss + 0.01, 500) for loss in (0.1, 0.02, 0.02))
    steps = (
        StepRecord("equalize", True, True, "the error is 0.01 times as large", final=after),
        StepRecord("smooth", True, False, "the error is 1.2 times as large"),
        StepRecord("bias", False, True, "the error is 0.9 times as large", final=last),
    )
    record = RecoveryRecord("auto", steps, plain)
    row = replace(ROW, channel_ratio=9.0)
    groups = {"g000": group_record("g000", "a")}
    found = Sensitivities("m", (row,), groups, Thresholds(max_error_ratio=0.1), recovery=record)
    [remedy] = found.remedies()
    assert [(each.step, each.kept, each.won_back) for each in remedy.results] == [
        ("equalize", True, pytest.approx(0.8)),
        ("smooth", False, None),
    ]
    assert remedy.text.endswith(
        "Here equalize is applied and won back 80 % of the loss; "
        "smooth was tried and not kept, because the error is 1.2 times as large."
    )
    assert found.to_json()["remedies"][0]["results"][0]["step"] == "equalize"
    unscored = replace(found, recovery=replace(record, plain=None))
    assert "equalize is applied: the error is 0.01 times as large" in unscored.remedies()[0].text
    assert "Here" not in replace(found, recovery=None).remedies()[0].text


def test_no_step_is_proposed_for_layers_with_the_scales_of_a_quantized_file() -> None:
    rows = tuple(replace(ROW, group=group, channel_ratio=9.0) for group in ("g000", "g001"))
    groups = {group: group_record(group, "a") for group in ("g000", "g001")}

    def remedy(*own: str) -> Remedy:
        record = RecoveryRecord("none", own=own)
        limits = Thresholds(max_error_ratio=0.1)
        [found] = Sensitivities(
            "m", rows, groups, limits, recovery=RecoveryRecord.from_json(record.to_json())
        ).remedies()
        return found

    told = remedy("g000", "g001")
    assert "Recovery steps" not in told.text
    assert "`bitfront recover FILE --data DATA --out DIR` writes the float model" in told.text
    assert told.to_json()["steps"] == []
    assert "Recovery steps for this: equalize, smooth." in remedy("g000").text, "the other layer may have them"
