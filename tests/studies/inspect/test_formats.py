"""`doctor --measure`: small networks in every format of a backend, built, audited, timed and held against FP32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search.graph.model import load
from studies.inspect import formats
from studies.inspect.format_networks import NETWORKS, write_network
from studies.options.read_options import check_config
from tests.support.command_line import invoke, ok

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_format_of_the_processor_is_built_audited_and_timed() -> None:
    said = ok("doctor", "--measure", "formats.json", "--backend", "onnxruntime")
    told = json.loads(Path("formats.json").read_text(encoding="utf-8"))
    rows = {(row["network"], row["format"]): row for row in told["rows"]}
    labels = {label for _, label in rows}
    assert {"fp32", "int8", "int8-dynamic"} <= labels
    assert len(rows) == len(NETWORKS) * len(labels)
    for (network, label), row in rows.items():
        if row["layers"] == 0:
            assert row["why"], (network, label)
            continue
        assert (row["obeyed"], row["opaque"], row["why"]) == (row["layers"], 0, None)
        assert row["latency_ms"] > 0
        assert row["speedup"] == pytest.approx(1, abs=0.0) if label == "fp32" else row["sqnr_db"] > 10
    assert rows["convolutions", "int8-dynamic"]["layers"] == 0
    assert rows["one row", "int8"]["bytes"] < 0.3 * rows["one row", "fp32"]["bytes"]
    assert told["targets"][0]["backend"] == "onnxruntime"
    assert "one row" in said


def test_a_refusal_and_a_layer_that_does_not_obey_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "NETWORKS", {"one row": NETWORKS["one row"]})
    faults = {"backend_options": ("fake-fault=refuse:matmul0=int8", "fake-fault=disobey:matmul2=fp16")}
    monkeypatch.setattr(formats, "check_config", lambda config: check_config(config.with_values(faults)))
    ok("doctor", "--measure", "formats.json", "--backend", "fake")
    rows = {row["format"]: row for row in json.loads(Path("formats.json").read_text(encoding="utf-8"))["rows"]}
    assert rows["int8"]["why"].startswith("build: ")
    assert (rows["fp16"]["layers"], rows["fp16"]["obeyed"]) == (4, 3)


def test_a_backend_that_is_not_here_is_told_with_exit_code_1() -> None:
    done = invoke("doctor", "--measure", "formats.json", "--backend", "tensorrt")
    if done.exit_code == 1:
        assert "tensorrt on cuda could not be measured: " in " ".join(done.stdout.split())
        assert json.loads(Path("formats.json").read_text(encoding="utf-8"))["failed"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_built() -> None:
    refused = invoke("doctor", "--measure", "missing/formats.json")
    assert refused.exit_code == 2
    assert "expected a path in an existing folder" in " ".join(refused.stderr.split())


def test_the_networks_are_made_of_what_they_are_called_after(tmp_path: Path) -> None:
    ops = {}
    for name in NETWORKS:
        model, _ = write_network(name, tmp_path)
        groups = load(model).groups
        ops[name] = {group.op for group in groups}
    assert ops == {"convolutions": {"Conv", "MatMul"}, "products": {"MatMul"}, "one row": {"MatMul"}}
