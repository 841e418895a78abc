"""Why a lower precision is slower as a whole, in words. Figures of the encoder on an H200 with TensorRT 8.6.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search.values import EngineSummary, Precision
from studies.judging.findings.loss_resolution import is_certain_pick_slow
from studies.judging.sentences.gains import slower_texts
from studies.judging.standing import Standing, read_standing
from studies.options.config import SearchConfig
from studies.options.limits import Limits
from studies.run.hooks.announcements import SlowerNote
from studies.show.report.builder import build_report
from studies.store.store import Store
from tests.support.study_rows import METRIC, MODEL, STUDY, TARGET, assignment, measured

FP16_ENGINE = EngineSummary(3, 1, opaque=1, moves_ms=0.02619)
INT8_ENGINE = EngineSummary(126, 27, moves_ms=0.3969)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as opened:
        yield opened


def judged(
    store: Store,
    uniforms: Mapping[Precision, tuple[float, EngineSummary | None]],
    held: Sequence[Precision] = (),
    **options: Any,
) -> Standing:
    """A study of these uniform evaluations, latency in ms and engine, with groups that are held back beside them."""
    config = SearchConfig(model="model.onnx", data="data.npz").to_json()
    study = store.studies.create(STUDY.with_values(metric={**METRIC, "unit": "share"}, model=MODEL, config=config))
    target = store.targets.add(
        study, replace(TARGET, **{"relative": False, "backend": "tensorrt", **options}), "demo/gpu"
    )
    store.targets.settle(target, details={}, latency_band=0.01)
    for trial, (precision, (latency_ms, engine)) in enumerate(uniforms.items()):
        chosen = assignment(precision, precision, *held)
        latency = replace(measured(chosen).latency, raw_ms=latency_ms, baseline_ms=None)
        number = store.claims.begin(target, chosen, chosen.digest, "w0", trial, f"baseline:{precision.label}")
        store.claims.record(number, measured(chosen, latency=latency, engine=engine), None)
    record = store.studies.load(STUDY.name)
    return read_standing(store, record, store.targets.of_study(record.id)[0], Limits())


def test_a_region_that_int8_breaks_up_is_named(opened: Store) -> None:
    uniforms = {
        Precision.FP32: (1.69, replace(FP16_ENGINE, moves=2)),
        Precision.FP16: (0.9, FP16_ENGINE),
        Precision.INT8: (2.25, INT8_ENGINE),
    }
    now = judged(opened, uniforms)
    said = (
        "all int8 takes 2.50 times as long as all fp16: its engine runs 126 layers, 27 of them to move or convert data "
        "(0.3969 ms); that of all fp16 3 layers, 1 of them to move or convert data (0.02619 ms), which are "
        "fused in regions that the mix splits"
    )
    assert slower_texts(opened, now) == [said]
    assert f"A{said[1:]}." in build_report(opened, now).notes


def test_what_is_as_fast_or_ties_is_not_mentioned(opened: Store) -> None:
    uniforms = {Precision.FP32: (1.0, None), Precision.FP16: (0.5, FP16_ENGINE), Precision.INT8: (0.504, INT8_ENGINE)}
    assert slower_texts(opened, judged(opened, uniforms)) == []


def test_without_a_look_into_the_engines_the_ratio_is_told(opened: Store) -> None:
    now = judged(opened, {Precision.FP32: (1.0, None), Precision.INT8: (1.2, INT8_ENGINE)})
    assert slower_texts(opened, now) == ["all int8 takes 1.20 times as long as all fp32"]


def test_baselines_with_groups_held_back_are_named_by_their_mixes(opened: Store) -> None:
    uniforms = {Precision.FP32: (1.0, FP16_ENGINE), Precision.INT8: (1.13, INT8_ENGINE)}
    now = judged(opened, uniforms, [Precision.FP32])
    [said] = slower_texts(opened, now)
    assert said.startswith("2 int8, 1 fp32 takes 1.13 times as long as all fp32: its engine runs 126 layers, ")
    assert "; that of all fp32 3 layers, " in said
    assert "all int8" not in said
    assert f"{said}." in build_report(opened, now).notes


def test_the_faster_one_is_named_by_its_mix_too(opened: Store) -> None:
    uniforms = {Precision.FP16: (1.0, FP16_ENGINE), Precision.INT8: (1.5, INT8_ENGINE)}
    [said] = slower_texts(opened, judged(opened, uniforms, [Precision.FP32]))
    assert said.startswith("2 int8, 1 fp32 takes 1.50 times as long as 1 fp32, 2 fp16: its engine runs ")
    assert "; that of 1 fp32, 2 fp16 3 layers, " in said


CPU: dict[str, Any] = {"backend": "onnxruntime", "options": {"threads": "1", "weight_pairs": "128"}}


def test_on_a_processor_the_instructions_and_the_conversions_are_named(opened: Store) -> None:
    uniforms = {Precision.FP32: (1.0, EngineSummary(40, 0)), Precision.INT8: (1.75, EngineSummary(120, 60))}
    (text,) = slower_texts(opened, judged(opened, uniforms, **CPU))
    assert text.startswith(
        "all int8 takes 1.75 times as long as all fp32: its engine runs 120 layers, 60 of them to move"
    )
    assert "This processor has no VNNI instructions" in text
    assert "Conversions surround the operations that run in FP32" in text
    assert "HardSwish" not in text


@pytest.mark.parametrize(("moves_ms", "blamed"), [(0.02, False), (0.5, True)])
def test_where_the_kernels_themselves_are_slower_conversions_that_take_little_are_not_the_reason(
    opened: Store, moves_ms: float, blamed: bool
) -> None:
    fp32, int8 = EngineSummary(40, 0, moves_ms=0.0, profiled_ms=1.0), EngineSummary(60, 20, moves_ms=moves_ms)
    int8 = replace(int8, profiled_ms=1.7 + moves_ms)
    (text,) = slower_texts(opened, judged(opened, {Precision.FP32: (1.0, fp32), Precision.INT8: (1.75, int8)}, **CPU))
    assert ". Without these its layers still take 1.70 times as long (1.7 ms against 1 ms). This" in text
    assert ("Conversions surround" in text) is blamed


def test_where_only_conversions_are_slower_the_kernels_are_not_blamed(opened: Store) -> None:
    fp32, int8 = (EngineSummary(40, n, moves_ms=0.1 * n, profiled_ms=1.0 + 0.1 * n) for n in (0, 5))
    (text,) = slower_texts(opened, judged(opened, {Precision.FP32: (1.0, fp32), Precision.INT8: (1.5, int8)}, **CPU))
    assert "Without these" not in text
    assert "Conversions surround" in text


def test_a_processor_with_vnni_is_not_blamed(opened: Store) -> None:
    uniforms = {Precision.FP32: (1.0, EngineSummary(40, 0)), Precision.INT8: (1.75, EngineSummary(42, 2))}
    (text,) = slower_texts(opened, judged(opened, uniforms, **CPU | {"options": {"threads": "1"}}))
    assert "VNNI" not in text
    assert "HardSwish" not in text


def test_it_is_said_once_the_last_uniform_engine_is_measured(opened: Store) -> None:
    uniforms = {Precision.FP32: (1.0, EngineSummary(40, 0)), Precision.INT8: (1.75, EngineSummary(120, 60))}
    now, told = judged(opened, uniforms, **CPU), list[str]()

    def hear(baselines: int, row: int) -> list[str]:
        space = SimpleNamespace(baselines=[None] * baselines)
        parts = {"problem": SimpleNamespace(space=space), "ledger": SimpleNamespace(store=opened)}
        work: Any = SimpleNamespace(**parts, events=SimpleNamespace(note=told.append))
        SlowerNote(work).follow(opened.evaluations.load(int(now.table.id[row])), now)
        return told

    assert hear(3, 1) == [], "one is left"
    assert hear(2, 1) == slower_texts(opened, now) != []


@pytest.mark.parametrize(("int8_ms", "said"), [(1.2, "(1.20 ms in place of 1.00 ms)"), (0.5, "")])
def test_the_report_says_where_int8_as_a_whole_is_no_faster(opened: Store, int8_ms: float, said: str) -> None:
    """That is why layers stay in FP32, and no error of theirs."""
    data = build_report(opened, judged(opened, {Precision.FP32: (1.0, None), Precision.INT8: (int8_ms, INT8_ENGINE)}))
    assert said in data.slower
    assert bool(said) == bool(data.slower)
    assert 1 in data.precisions, "the column of INT8"


@pytest.mark.parametrize(
    ("int8_ms", "int8_upper", "limit", "slow"),
    [
        (0.5, 0.016, 0.01, True),
        (0.5, 0.008, 0.01, False),  # the final samples should show it
        (0.699, 0.016, 0.01, False),  # no faster than what is certain, but for noise
        (0.5, 0.016, 0.005, False),  # nothing but FP32 is certain
        (0.5, 0.016, None, False),
    ],
)
def test_a_pick_that_will_be_certain_may_be_slower_than_what_seems_good_enough(
    int8_ms: float, int8_upper: float, limit: float | None, slow: bool, opened: Store
) -> None:
    uniforms = {
        Precision.FP32: (1.0, 0.0, 0.004),
        Precision.FP16: (0.7, 0.0, 0.007),
        Precision.INT8: (int8_ms, 0.003, int8_upper),
    }
    config = SearchConfig(model="model.onnx", data="data.npz").to_json()
    data = {**STUDY.data, "search": 600, "final": 600}
    study = opened.studies.create(
        STUDY.with_values(metric={**METRIC, "ratio": True}, model=MODEL, config=config, data=data)
    )
    target = opened.targets.add(study, replace(TARGET, relative=False), "demo/gpu")
    opened.targets.settle(target, details={}, latency_band=0.01)
    for trial, (precision, (ms, loss, upper)) in enumerate(uniforms.items()):
        chosen = assignment(precision, precision)
        whole = measured(chosen)
        latency = replace(whole.latency, raw_ms=ms, baseline_ms=None)
        accuracy = replace(
            whole.accuracy,
            loss=loss,
            loss_low=loss - 0.006,
            loss_high=loss + 0.006,
            samples=600,
            total=600,
            loss_bounds=(upper,),
        )
        number = opened.claims.begin(target, chosen, chosen.digest, "w0", trial, precision.role)
        opened.claims.record(number, replace(whole, latency=latency, accuracy=accuracy), None)
    record = opened.studies.load(STUDY.name)
    now = read_standing(opened, record, opened.targets.of_study(record.id)[0], Limits(max_drop=limit))
    assert is_certain_pick_slow(now) is slow
