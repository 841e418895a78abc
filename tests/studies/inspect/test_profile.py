"""Per-layer times: read from ONNX Runtime's trace, added up by group, stored, and put side by side."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.profile import is_move, layer_times
from search.values import Assignment, AuditRow, LayerTime, Precision
from studies.artifacts.folder import Artifacts
from studies.inspect.profile import Profile, delta_rows, headline
from studies.store.records import GroupRecord
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, run_sql
from tests.support.networks import feeds, loaded, ranged
from tests.support.records import group_record

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8

# -- ONNX Runtime's trace ----------------------------------------------------------------------------------------------


def event(name: str, us: int, cat: str = "Node") -> dict[str, Any]:
    return {"cat": cat, "name": name, "dur": us, "ts": 0, "args": {}}


def graph(*nodes: tuple[str, str]) -> onnx.GraphProto:
    made = [helper.make_node(op, ["x"], ["y"], name=name) for op, name in nodes]
    return helper.make_graph(made, "net", [], [])


def times(trace: list[dict[str, Any]], net: onnx.GraphProto, skip: int = 0, count: int = 1) -> tuple[LayerTime, ...]:
    owners = {"conv": "g000", "conv/q": "g000"}
    return layer_times(json.dumps(trace), net, lambda node: owners.get(node.name), {"conv", "t"}, skip, count)


def test_times_are_in_the_order_of_the_graph_and_shrug_off_an_interruption() -> None:
    trace = [event("model_run", 999, "Session"), event("conv_fence_before", 5)]
    for us in (500, 10, 7000, 30):  # the first warms up
        trace += [event("relu_kernel_time", us // 10), event("conv_kernel_time", us)]
    found = times(trace, graph(("Conv", "conv"), ("Relu", "relu"), ("Shape", "gone")), skip=1, count=3)
    assert found == (LayerTime("conv", "Conv", "g000", False, 0.03), LayerTime("relu", "Relu", None, False, 0.003))


def test_a_node_that_runs_several_times_an_inference_counts_whole() -> None:
    trace = [event("body_kernel_time", us) for us in (9, 9, 9, 1, 2, 3)]
    [found] = times(trace, graph(("Add", "body")), skip=1, count=1)
    assert found.ms == pytest.approx(0.006)
    [seldom] = times(trace, graph(("Add", "body")), skip=0, count=4)
    assert seldom.ms == pytest.approx(0.033 / 4)


def test_nameless_nodes_are_found_by_what_the_trace_calls_them() -> None:
    trace = [event(f"{name}_kernel_time", us) for name, us in (("Mul_7", 3), ("Mul_120", 1), ("Mul_121", 2))]
    found = times(trace, graph(("Mul", ""), ("Mul", "Mul_7"), ("Mul", "")))
    assert [(layer.name, round(layer.ms * 1000)) for layer in found] == [("Mul_120", 1), ("Mul_7", 3), ("Mul_121", 2)]


def test_a_transpose_moves_unless_the_model_has_it() -> None:
    moved = [is_move(node, {"t"}) for node in graph(("Transpose", "t"), ("Transpose", "Transpose_token_3")).node]
    assert moved == [False, True]
    assert [is_move(node, ()) for node in graph(("Cast", "c"), ("ReorderInput", "r"), ("Conv", "n")).node] == [
        True,
        True,
        False,
    ]


def test_what_is_no_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the list of events"):
        times({}, graph())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["residual", "transformer", "activations", "conditional"])
@pytest.mark.parametrize("precision", [FP32, INT8])
def test_a_real_profile_has_every_layer_and_every_group(name: str, precision: Precision, tmp_path: Path) -> None:
    model = loaded(name)
    backend = OnnxRuntimeBackend()
    builder = backend.builder(model, ranged(name))
    offered = backend.capability().ops.get(precision, frozenset())
    assignment = Assignment({g.id: precision if g.op in offered and not g.pinned else FP32 for g in model.groups})
    engine = builder.build(builder.lower(assignment), tmp_path / "x.engine")
    summary = builder.audit(engine, assignment).summary
    layers = builder.profile(engine.path, feeds(model), 3)
    assert len(layers) == summary.layers
    assert sum(layer.moves for layer in layers) == summary.moves
    assert len({layer.name for layer in layers}) == len(layers)
    assert {group.id for group in model.groups} <= {layer.group for layer in layers if not layer.moves}
    assert all(layer.ms >= 0 for layer in layers)
    assert sum(layer.ms for layer in layers) > 0
    assert precision is FP32 or summary.moves
    assert [path.name for path in tmp_path.iterdir()] == ["x.engine"]


# -- adding up ---------------------------------------------------------------------------------------------------------

LAYERS = (
    LayerTime("in/q", "Reformat", None, True, 1.0),
    LayerTime("a + relu", "Conv", "g000", False, 3.0),
    LayerTime("a again", "Conv", "g000", False, 1.0),
    LayerTime("b/q", "Reformat", "g001", True, 0.5),
    LayerTime("softmax", "Softmax", None, False, 2.5),
)


def group(number: int) -> GroupRecord:
    return group_record(f"g{number:03}", f"conv{number}")


def profiled(layers: tuple[LayerTime, ...] = LAYERS, latency_ms: float | None = 4.0, **got: Any) -> Profile:
    audit = {name: AuditRow(name, INT8, precision, "k") for name, precision in got.items()}
    groups = {g.id: g for g in (group(0), group(1))}
    return Profile("s", 3, "all int8", layers, latency_ms, audit, groups, again=False)


def test_layers_add_up_to_groups_moves_and_the_rest() -> None:
    found = profiled(g000=INT8, g001=None)
    assert (found.sum_ms, found.scale) == (8.0, 0.5)
    rows = found.group_rows()
    keys = ("group", "asked", "got", "kernels", "ms", "scaled_ms", "share")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("g000", "int8", "int8", 2, 4.0, 2.0, 0.5),
        ("g001", "int8", "opaque", 0, 0, 0.0, 0.0),
    ]
    parts = {row["part"]: (row["layers"], row["ms"]) for row in found.part_rows()}
    assert parts == {"groups": (2, 4.0), "moves": (2, 1.5), "other": (1, 2.5)}
    assert sum(row["scaled_ms"] for row in found.layer_rows()) == found.latency_ms
    assert sum(row["share"] for row in found.part_rows()) == 1
    assert any("1 groups have no layer of their own" in line for line in headline(found))


def test_rows_are_sorted_as_asked() -> None:
    found = profiled()
    assert [row["position"] for row in found.layer_rows("order")] == [0, 1, 2, 3, 4]
    assert [row["position"] for row in found.layer_rows("time")] == [1, 4, 0, 2, 3]
    faster = replace(LAYERS[3], moves=False, ms=9.0)
    assert [row["group"] for row in profiled((*LAYERS[:3], faster)).group_rows("time")] == ["g001", "g000"]


def test_without_a_latency_nothing_is_scaled() -> None:
    found = profiled(latency_ms=None)
    assert found.scale is None
    assert all(row["scaled_ms"] is None for row in found.layer_rows())
    assert "its latency is not known" in headline(found)[0]
    assert profiled(layers=()).part_rows()[0]["share"] == 0


def test_side_by_side_adds_up_to_the_difference_of_latencies() -> None:
    first = profiled(g000=INT8, g001=INT8)
    second = profiled(LAYERS[1:], latency_ms=3.5, g000=INT8, g001=FP16)
    rows = delta_rows(first, second)
    assert [(row["group"], row["changed"]) for row in rows] == [
        ("g000", False), ("g001", True), ("moves", True), ("other", False)
    ]  # fmt: skip
    assert sum(row["delta_ms"] for row in rows) == pytest.approx(3.5 - 4.0)
    assert (rows[1]["got"], rows[1]["got_against"]) == ("int8", "fp16")
    bare = delta_rows(first, replace(second, latency_ms=None))
    assert sum(row["delta_ms"] for row in bare) == pytest.approx(second.sum_ms - first.sum_ms)
    changes = [abs(row["delta_ms"]) for row in delta_rows(first, second, "time")[:2]]
    assert changes == sorted(changes, reverse=True)


# -- the verb ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy_finished(tmp_path)
    run_sql("delete from bf_profile")
    return tmp_path


def shown(*arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("show", "small", *arguments, "--profile", "--json"))
    return found


@pytest.mark.slow
def test_a_profile_is_measured_stored_and_shown_again_without_the_device(studied: Path) -> None:
    first = shown(1, "--count", 5)
    assert first["profiled_now"]
    assert [row["node"] for row in first["groups"]] == ["first", "second", "fc"]
    assert all(row["kernels"] == 1 and row["got"] == "int8" and row["ms"] > 0 for row in first["groups"])
    row = next(row for row in json.loads(ok("front", "small", "--json"))["rows"] if row["trial"] == 1)
    assert sum(row["scaled_ms"] for row in first["parts"]) == pytest.approx(first["latency_ms"])
    assert first["latency_ms"] == pytest.approx(row["latency_ms"])
    assert first["sum_ms"] == pytest.approx(sum(row["ms"] for row in first["layers"]))
    assert run_sql("select count(*) from bf_profile") == [(len(first["layers"]),)]
    # No model and no data are needed to show what is stored, and nothing is measured anew.
    second = shown(1, "--model", "nowhere.onnx")
    assert second == {**first, "profiled_now": False}
    refused("show", "small", 1, "--profile", "--again", "--model", "nowhere.onnx", says="nowhere.onnx")
    third = shown(1, "--again", "--count", 2)
    assert third["profiled_now"]
    assert run_sql("select count(*) from bf_profile") == [(len(third["layers"]),)]


def test_the_baselines_of_a_search_have_their_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    for trial in (0, 1):
        assert not shown(trial, "--model", "nowhere.onnx")["profiled_now"]


@pytest.mark.slow
def test_tables_for_people(studied: Path) -> None:
    said = ok("show", "small", 0, "--profile", "--count", 3, "--sort", "time")
    assert said.startswith("trial 0: all fp32; measured ")
    assert "profiling makes every layer slower; the scaled times add up to the measured latency" in said
    for word in ("position", "kernels", "moves", "other", "second"):
        assert word in said
    rows = list(csv.DictReader(io.StringIO(ok("show", "small", 0, "--profile", "--csv"))))
    assert [int(row["position"]) for row in rows] == list(range(len(rows)))
    assert {row["part"] for row in rows} <= {"groups", "moves", "other"}


@pytest.mark.slow
def test_two_trials_side_by_side(studied: Path) -> None:
    found = shown(0, "--against", 1, "--count", 3)
    assert (found["trial"], found["against"]["trial"]) == (0, 1)
    assert [(row["got"], row["got_against"]) for row in found["delta"][:3]] == [("fp32", "int8")] * 3
    total = found["against"]["latency_ms"] - found["latency_ms"]
    assert sum(row["delta_ms"] for row in found["delta"]) == pytest.approx(total)
    assert "changed" in ok("show", "small", 0, "--profile", "--against", 1)
    rows = list(csv.DictReader(io.StringIO(ok("show", "small", 0, "--profile", "--against", 1, "--csv"))))
    assert [row["group"] for row in rows] == ["g000", "g001", "g002", "moves", "other"]


@pytest.mark.slow
def test_an_engine_that_was_not_kept_is_built_again(studied: Path) -> None:
    [(digest,)] = run_sql("select artifact from bf_evaluation where role = 'baseline:int8'")
    (Path(f"{DATABASE}.artifacts") / digest).unlink()
    found = shown(1, "--count", 3)
    said = "trial 1: its engine was not kept; it was built again for this profile"
    assert found["notes"] == [said]
    assert found["layers"]
    # What is shown later is that engine's, so it says so still; a profile of the engine itself does not.
    assert shown(1) == {**found, "profiled_now": False}
    assert f"profile: {said}" in json.loads(ok("show", "small", 1, "--json"))["notes"]
    ok("export", "small", "--trial", 1, "--out", "engine")  # the engine comes out the same again
    assert shown(1, "--again", "--count", 2)["notes"] == []
    assert json.loads(ok("show", "small", 1, "--json"))["notes"] == []


def refused(*arguments: Any, says: str, code: int = 2) -> None:
    before = run_sql("select count(*) from bf_profile")
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert says in result.stderr
    assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == 1
    assert run_sql("select count(*) from bf_profile") == before


def test_refusals(studied: Path) -> None:
    refused("show", "nothing", 0, "--profile", says="There is no study 'nothing'")
    refused("show", "small", 99, "--profile", says="There is no trial 99")
    refused("show", "small", 0, "--profile", "--against", 99, says="There is no trial 99")
    refused("show", "small", 0, "--profile", "--count", 0, says="--count 0: expected 1 to")
    refused("show", "small", 0, "--profile", "--sort", "name", says="--sort: expected one of order, time")
    refused("show", "small", 0, "--profile", "--json", "--csv", says="were both given")
    run_sql("update bf_evaluation set status = 'failed', stage = 'build', kind = 'refused', message = 'x' where id = 2")
    refused(
        "show", "small", 1, "--profile", says="profiling trial 1: it failed at build (refused), so there is no engine"
    )
    run_sql("update bf_evaluation set status = 'running' where id = 2")
    refused("show", "small", 1, "--profile", says="its evaluation is not finished")


@pytest.mark.slow
def test_another_target_is_refused(studied: Path) -> None:
    [(description,)] = run_sql("select description from bf_target")
    run_sql("update bf_target set description = ?", description.replace('"onnxruntime": "', '"onnxruntime": "0.'))
    refused("show", "small", 0, "--profile", says="onnxruntime: 0.")


@pytest.mark.slow
def test_an_engine_that_cannot_be_loaded_is_one_message(studied: Path) -> None:
    digest = Artifacts(Path(f"{DATABASE}.artifacts")).put_bytes(b"of another version", "engine")
    run_sql("update bf_evaluation set artifact = ? where role = 'baseline:int8'", digest)
    refused("show", "small", 1, "--profile", says="it cannot be loaded or run here", code=1)


@pytest.mark.slow
def test_a_damaged_engine_is_built_again(studied: Path) -> None:
    [(digest,)] = run_sql("select artifact from bf_evaluation where role = 'baseline:int8'")
    (Path(f"{DATABASE}.artifacts") / digest).write_bytes(b"cut short")
    assert shown(1)["notes"] == ["trial 1: its kept engine is damaged; it was built again for this profile"]
