"""What `bitfront show`, `front` and `report` tell of an engine and of what surrounds its measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search.values import AuditRow, EngineSummary, Failure, FailureKind, Latency, Precision, Stage
from studies.options.config import SearchConfig
from studies.show.trial_text import conditions_text, engine_text, short_formats
from studies.store.store import Store
from tests.support.assignments import THREE
from tests.support.command_line import copy_finished, invoke, ok
from tests.support.records import choice_record
from tests.support.study_rows import (
    AROUND,
    CONDITIONS,
    LAYERS,
    METRIC,
    MODEL,
    STUDY,
    TARGET,
    assignment,
    group,
    measured,
)

TENSORRT = replace(TARGET, backend="tensorrt", device="NVIDIA H200", statistic="median", relative=False)
WORDS = {
    "weights": "int8",
    "inputs": "Thirty-two wide channel vectorized row major Int8 format; Row major linear FP32",
    "outputs": "Channel major FP16 format where channel % 8 == 0",
    "sparse": "no",
    "beside": "Add, Relu: in the kernel",
}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study as a GPU leaves it: the FP32 baseline, a refused mix, and one with an opaque group."""
    monkeypatch.chdir(tmp_path)
    config = SearchConfig(model="model.onnx", data="data.npz", study="demo").to_json()
    with Store.open("sqlite:///bitfront.db", create=True) as store:
        new = STUDY.with_values(metric=METRIC, model=MODEL, config=config)
        study = store.studies.create(new, groups=[group(0), group(1)])
        target = store.targets.add(study, TENSORRT, "demo/h200")
        choices = [choice_record(f"g00{g}", p, p.id, True) for g in range(2) for p in THREE]
        store.spaces.set_choices(target, "c" * 64, choices)
        begin(store, target, 0, (0, 0), role="baseline:fp32", profile=LAYERS, latency=latency(3.0))
        refused = Failure(Stage.BUILD, FailureKind.REFUSED, "no implementation for /layer1/Conv")
        lost = store.claims.begin(target, assignment(2, 2), "e" * 64, "w0", None)
        store.claims.record(lost, measured(assignment(2, 2), failure=refused, audit=(), latency=None, accuracy=None))
        store.spaces.mark_unbuildable(target, "g001", Precision.INT8)
        audit = (
            AuditRow("g000", Precision.INT8, Precision.INT8, "sm80_xmma", WORDS),
            AuditRow("g001", Precision.FP16, None, "Myelin"),
        )
        accuracy = replace(measured(assignment(2, 1)).accuracy, samples=8, total=8, loss=0.0)
        begin(store, target, 1, (2, 1), audit=audit, latency=latency(1.5), accuracy=accuracy)
    return tmp_path


def latency(value_ms: float) -> Latency:
    times = np.full(4, value_ms)
    return Latency(value_ms, value_ms, 0.0, None, times, np.empty(0), ("slowed down: power cap",), AROUND, CONDITIONS)


def begin(store: Store, target: int, trial: int, codes: tuple[int, ...], **changes: Any) -> None:
    chosen, role = assignment(*codes), changes.pop("role", "")
    number = store.claims.begin(target, chosen, chosen.digest, "w0", trial, role)
    store.claims.record(number, measured(chosen, **changes))


def test_show_says_what_an_engine_is_made_of_and_what_surrounded_it(stored: Path) -> None:
    said = ok("show", "demo", 1)
    assert "warning: slowed down: power cap" in said
    assert "not in it: host to device 0.500 ms, device to host 0.250 ms, enqueue 0.125 ms" in said
    assert "device: SM 1980 → 1830 MHz, 41 → 44 °C, 310 → 696 W, slowed down by power cap" in said
    assert "made of 9 layers, 3 of them moves that take 0.125 ms of 1.50 ms (8 %), 1 opaque region" in said
    assert "2 layers on sparse weights" in said
    assert "note: note" in said
    assert "1 group opaque" in said
    assert "obeyed," not in said
    head, *rows = [line.split() for line in said.splitlines() if line.startswith(("group", "g00"))]
    assert head[-4:] == ["kernel", "weights", "formats", "beside"]
    shown = ["int8", "int8", "obeyed", "sm80_xmma", "int8", "int8", "CHW32;", "fp32", "→", "fp16", "HWC8"]
    assert rows[0][3:] == [*shown, "Add,", "Relu:", "in", "the", "kernel"]
    assert rows[1][3:] == ["fp16", "opaque", "Myelin"]


def test_show_as_json_has_everything(stored: Path) -> None:
    shown = json.loads(ok("show", "demo", 1, "--json"))
    assert shown["engine"] == {
        "layers": 9, "moves": 3, "opaque": 1, "sparse": 2, "moves_ms": 0.125, "profiled_ms": 1.5,
        "build_threads": None, "optimization_level": None,
    }  # fmt: skip
    assert (shown["latency"]["around_ms"], shown["latency"]["conditions"]) == (AROUND, CONDITIONS)
    assert shown["rounds"][0]["warnings"] == ["slowed down: power cap"]
    assert [(row["asked"], row["got"]) for row in shown["groups"]] == [("int8", "int8"), ("fp16", None)]
    assert shown["groups"][0]["details"] == WORDS
    assert shown["profile"] == []
    layers = json.loads(ok("show", "demo", 0, "--json"))["profile"]
    assert [(row["name"], row["moves"], row["ms"]) for row in layers] == [
        ("conv + relu", False, 0.25),
        ("Reformatting CopyNode", True, 0.125),
    ]


def test_front_tells_moves(stored: Path) -> None:
    rows = json.loads(ok("front", "demo", "--json"))["rows"]
    assert {row["trial"]: (row["moves"], row["opaque"]) for row in rows} == {0: (3, 0), 1: (3, 1)}
    assert ",moves," in ok("front", "demo", "--csv").splitlines()[0]


def test_the_report_tells_moves_doubts_and_what_is_opaque(stored: Path) -> None:
    ok("report", "demo", "--out", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "3 of 9 layers, 0.125 ms (8.33 %)" in page
    assert "slowed down: power cap\nnote" in page
    assert "A question mark is an opaque layer" in page
    assert "Not buildable on this target: g001 <code>/layer1/Conv</code> in int8." in page


def test_on_onnxruntime_there_are_no_empty_columns_or_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    said = ok("show", "small", 1)
    head = next(line for line in said.splitlines() if line.startswith("group"))
    assert head.split() == ["group", "node", "op", "asked", "got", "answer", "kernel"]
    assert not any(line.strip().startswith(("device:", "not in it:")) for line in said.splitlines())
    shown = json.loads(ok("show", "small", 1, "--json"))
    assert (shown["latency"]["around_ms"], shown["latency"]["conditions"]) == ({}, {})
    assert shown["engine"]["layers"] >= 3
    assert f"made of {shown['engine']['layers']} layers" in said
    assert invoke("report", "small", "--out", "r.html").exit_code == 0


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Row major linear FP32", "fp32"),
        ("Row major linear FP16 format", "fp16"),
        ("Row major Int8 format", "int8"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8 CHW32"),
        ("Sixteen wide channel vectorized row major FP16 format", "fp16 CHW16"),
        ("Channel major FP32 format where channel % 4 == 0", "fp32 HWC4"),
        ("Row major linear FP16 format; Row major Int8 format", "fp16; int8"),
        ("kLINEAR Half", "kLINEAR Half"),
        ("", ""),
    ],
)
def test_formats_in_few_letters(text: str, short: str) -> None:
    assert short_formats(text) == short


def test_an_engine_and_its_conditions_in_words() -> None:
    assert engine_text(EngineSummary(5, 0)) == "5 layers, 0 of them moves"
    assert engine_text(EngineSummary(5, 1, opaque=2)) == "5 layers, 1 of them moves, 2 opaque regions"
    assert engine_text(EngineSummary(5, 1, build_threads=16)) == "5 layers, 1 of them moves, built on 16 threads"
    steady = {"sm_clock_mhz": 1980, "temperature_c": 40, "other_processes": 1, "throttled": []}
    same = {"before": steady, "after": steady, "throttled": []}
    assert conditions_text(same) == "SM 1980 MHz, 40 °C, other processes: 1"
    assert conditions_text({"before": {}, "after": {"power_w": 310.4}}) == "310 W"
