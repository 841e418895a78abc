"""Whole searches through the command line: search, resume, front, show, export, report, delete."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from bitfront import verbs
from studies.judging.study_lookup import read_studies
from tests.support.command_line import (
    DATABASE,
    child,
    copy_finished,
    finished,
    invoke,
    ok,
    run_sql,
    three_layers,
    write_inputs,
)
from tests.support.networks import Net, finish, images, mobile_cnn, plain_session, save, sqnr_db, transformer, unet
from tests.support.quantized_files import quantized

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # wait for nobody else's measurements
    return tmp_path / "here"


@pytest.fixture
def studied(here: Path) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    copy_finished(here)
    return here


def search(folder: Path, *arguments: Any) -> str:
    """Search the inputs of `folder/in` into the default database."""
    return ok("search", folder / "in/model.onnx", "--data", folder / "in/data.npz", *arguments)


def front(study: str, *arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("front", study, "--json", *arguments))
    return found


def test_the_whole_way(here: Path) -> None:
    """One study through every verb, as a user would type them."""
    write_inputs(here / "in")
    said = search(here, "--trials", 3, "--study", "way", "--max-drop", "30%")
    assert "3 evaluations are done" in said
    assert "bitfront export way --out engine/" in said
    assert "Audit of every engine" not in said
    assert [row["role"] for row in front("way")["rows"] if row["role"]]

    said = ok("resume", "way", "--trials", 5)
    assert "5 evaluations are done" in said
    assert json.loads(ok("status", "--json"))["studies"][0] | {"created_at": "", "targets": 1} == {
        "name": "way", "state": "done", "ok": 5, "failed": 0, "running": 0, "targets": 1, "created_at": "",
        "model_path": str(here / "in/model.onnx"),
    }  # fmt: skip
    assert "way" in ok("status")
    assert ok("resume", "way").startswith("5 evaluations are done")

    found = front("way")
    assert found["evaluations"] == 5
    assert found["limits"]["max_drop"] == 0.3
    best = next(row for row in found["rows"] if "best" in row["picks"])
    assignment = found["best"].pop("assignment")
    assert found["best"] == best
    table = list(csv.DictReader(io.StringIO(ok("front", "way", "--csv"))))
    assert [row["trial"] for row in table] == [str(row["trial"]) for row in found["rows"]]
    assert "all FP32" in ok("front", "way")

    shown = json.loads(ok("show", "way", best["trial"], "--json"))
    assert [group["node"] for group in shown["groups"]] == ["first", "second", "fc"]
    assert all(group["answer"] == "obeyed" for group in shown["groups"])
    assert [group["asked"] for group in shown["groups"]] == list(assignment.values())
    assert shown["final"]["samples"] == 18
    assert f"trial {best['trial']}: {best['mix']}, ok" in ok("show", "way", best["trial"])

    said = ok("export", "way", "--out", "engine")
    assert f"exported trial {best['trial']} to engine" in said
    check_export(here / "engine", best["trial"], here / "in/data.npz")
    assert ok("report", "way", "--out", "way.html") == "Wrote way.html.\n"
    page = Path("way.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)
    assert "first" in page

    assert ok("delete", "way", "--yes") == "Deleted study 'way'.\n"
    assert ok("status") == "The database has no study yet.\n"
    assert run_sql("select count(*) from trials") == [(0,)]
    kept = [path for path in Path(f"{DATABASE}.artifacts").iterdir() if path.suffix != ".lock"]
    assert kept == []


def check_export(folder: Path, trial: int, data: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["trial"] == trial
    assert set(manifest["precision"]) == {"first", "second", "fc"}
    assert manifest["target_fingerprint"]
    assert manifest["final"]["limits_hold"] is True
    written = {path.name for path in folder.iterdir()}
    engine = {"manifest.json", "model.onnx", "layers.json", "profile.json", "run.py", "README.md"}
    assert written == {*engine, "model.float.onnx", "ranges.json", "calibration.cache", "final_samples.json"}
    onnx.checker.check_model(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"image": np.load(data)["image"][:4]})[0].shape == (4, 10)


def test_a_small_space_is_searched_whole_and_repeats_are_not_evaluated_again(here: Path) -> None:
    write_inputs(here / "in")
    said = search(here, "--trials", 50, "--study", "all", "--sampler", "random")
    assert "every one of the 8 assignments has been evaluated" in said
    assert run_sql("select count(*), count(distinct digest) from bf_evaluation") == [(8, 8)]
    reused = run_sql("select number, evaluation_id from bf_trial where reused")
    assert reused  # a random sampler repeats itself in a space of eight
    trial, evaluation = reused[0]
    first = run_sql("select min(number) from bf_trial where evaluation_id = ?", evaluation)[0][0]
    shown = json.loads(ok("show", "all", trial, "--json"))
    assert (shown["trial"], trial in shown["trials"]) == (first, True)
    # Optuna was told of the repetition what it was told of the first.
    assert told(trial) == told(first) != []


def told(trial: int) -> list[Any]:
    return run_sql(
        "select objective, value from trial_values join trials using (trial_id) where number = ? order by objective",
        trial,
    )


def test_limits_are_judged_when_read(studied: Path) -> None:
    everybody = front("small")
    slowest = max(row["latency_ms"] for row in everybody["rows"])
    fastest = min(row["latency_ms"] for row in everybody["rows"])
    nobody = front("small", "--latency-budget", f"{fastest / 2}ms")
    assert not any(row["on_front"] or row["feasible"] for row in nobody["rows"])
    assert "× the budget of" in nobody["nearest"][0]
    assert "no evaluation keeps the limits; the nearest:" in ok("front", "small", "--latency-budget", "1ns")
    loose = front("small", "--latency-budget", f"{2 * slowest}ms", "--max-drop", "none")
    assert any(row["on_front"] for row in loose["rows"])
    assert front("small")["limits"]["max_drop"] == 0.2  # looking changes nothing
    small = front("small", "--max-memory", "1B")
    assert not any(row["feasible"] for row in small["rows"])
    ok("report", "small", "--out", "r.html", "--latency-budget", "1ns")
    assert "No evaluation keeps the limits" in Path("r.html").read_text(encoding="utf-8")


def test_resume_takes_new_limits(studied: Path) -> None:
    said = ok("resume", "small", "--latency-budget", "1ns", "--max-drop", "none")
    assert "no evaluation keeps the limits; the nearest:" in said
    assert front("small")["limits"] == {
        "latency_budget_ms": 1e-06, "max_drop": None, "accuracy_limit": None, "max_memory_bytes": None,
        "max_size_bytes": None, "rate_budget_ms": None,
    }  # fmt: skip
    refused = invoke("export", "small", "--out", "engine")
    assert (refused.exit_code, "The nearest: trial" in refused.stderr) == (2, True)
    assert "exported" in ok("export", "small", "--out", "engine", "--latency-budget", "none")


def test_a_budget_nobody_meets_ends_well(here: Path) -> None:
    write_inputs(here / "in", samples=1000)
    said = search(here, "--trials", 4, "--study", "hard", "--latency-budget", "1ns", "--max-drop", "50%")
    assert "no evaluation keeps the limits; the nearest:" in said
    assert "× the budget of" in said
    stopped = run_sql("select role, samples = total_samples from bf_evaluation order by id")
    assert stopped[:2] == [("baseline:fp32", 1), ("baseline:int8", 1)]
    assert stopped[2:] == [("", 0), ("", 0)]  # too slow anyway: a small subset was enough
    # Baselines are scored whole, so other limits have a front, and the hypervolume a reference.
    assert any(row["on_front"] for row in front("hard", "--latency-budget", "none")["rows"])


def test_resume_finds_moved_files(studied: Path) -> None:
    (studied / "moved").mkdir()
    for name in ("model.onnx", "data.npz"):
        (studied / "moved" / name).write_bytes((finished() / "in" / name).read_bytes())
    moved = ("--model", "moved/model.onnx", "--data", "moved/data.npz")
    ok("resume", "small", "--trials", 5, *moved)
    # Where they are now is remembered, from whichever folder the next command runs.
    [study] = json.loads(ok("status", "--json"))["studies"]
    assert study["model_path"] == str(studied / "moved/model.onnx")
    config = json.loads(run_sql("select config from bf_study")[0][0])
    assert (config["model"], config["data"]) == (
        str(studied / "moved/model.onnx"),
        str(studied / "moved/data.npz"),
    )


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_samplers_by_name(here: Path, sampler: str) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(here, "--trials", 6, "--study", sampler, "--sampler", sampler, "--seed", 3, "--max-drop", "5%")
    assert run_sql("select status, count(*) from bf_evaluation group by status") == [("ok", 6)]
    assert run_sql("select role from bf_evaluation order by id limit 2") == [("baseline:fp32",), ("baseline:int8",)]


def test_keep_rules_hold_in_every_evaluation(here: Path) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(here, "--trials", 5, "--study", "kept", "--keep", "stem=fp32", "--keep", "mb.0/.*=int8")
    for number, *_ in run_sql("select number from bf_trial"):
        groups = {g["node"]: g["asked"] for g in json.loads(ok("show", "kept", number, "--json"))["groups"]}
        assert groups["stem"] == "fp32"
        assert {groups[f"mb.0/{part}"] for part in ("expand", "depthwise", "project")} == {"int8"}
    reasons = dict(run_sql("select reason, count(*) from bf_choice where not offered group by reason"))
    assert "kept by the rule 'stem=fp32'" in reasons


def test_blocks_move_together(here: Path) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(here, "--trials", 6, "--study", "blocks", "--granularity", "block")
    for number, *_ in run_sql("select number from bf_trial"):
        groups = json.loads(ok("show", "blocks", number, "--json"))["groups"]
        for block in ("mb.0/", "mb.1/"):
            assert len({g["asked"] for g in groups if g["node"].startswith(block)}) == 1
    layers = json.loads(ok("inspect", here / "in/model.onnx", "--json", "--granularity", "block"))
    assert len({row["block"] for row in layers["groups"]}) < len(layers["groups"])


def test_calibration_and_final_data_apart(here: Path) -> None:
    write_inputs(here / "in")
    write_inputs(here / "other", samples=40)
    apart = here / "other/data.npz"
    search(here, "--trials", 2, "--study", "apart", "--calibration-data", apart, "--final-data", apart)
    data = json.loads(run_sql("select data from bf_study")[0][0])
    assert (data["calibration"], data["search"], data["final"]) == (40, 60, 40)
    assert data["final_digest"] == data["calibration_digest"] != data["digest"]
    assert {row["final_loss"] is not None for row in front("apart")["rows"] if row["picks"]} == {True}


def test_a_metric_of_ones_own(here: Path) -> None:
    write_inputs(here / "in")
    (here / "mine.py").write_text(
        "import numpy as np\n"
        "def margin(outputs, labels):\n"
        "    top = np.sort(outputs['logits'] if isinstance(outputs, dict) else outputs, axis=1)\n"
        "    return top[:, -1] - top[:, -2]\n"
        "margin.unit = 'logit'\n"
        "margin.higher_is_better = True\n"
    )
    search(here, "--trials", 3, "--study", "own", "--metric", "mine:margin")
    found = front("own")["metric"]
    assert found["name"] == "mine:margin"
    refused = invoke("front", "own", "--accuracy-limit", "1%")
    assert (refused.exit_code, "mine:margin" in refused.stderr) == (2, True)
    assert front("own", "--max-drop", "0.5")["limits"]["max_drop"] == 0.5


def test_segmentation_with_miou(here: Path) -> None:
    network = unet()
    write_inputs(here / "in", network)
    session = onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    pictures = images(24)
    masks = [session.run(None, {"image": pictures[i : i + 2]})[0].argmax(axis=1) for i in range(0, 24, 2)]
    np.savez(here / "in/data.npz", image=pictures, labels=np.concatenate(masks))
    search(here, "--trials", 4, "--study", "masks", "--metric", "miou", "--max-drop", "10%")
    found = front("masks")
    fp32 = next(row for row in found["rows"] if row["role"] == "baseline:fp32")
    assert (found["metric"]["name"], fp32["metric"]) == ("miou", 1.0)
    assert all(0 <= row["loss"] < 0.5 for row in found["rows"] if row["loss"] is not None)
    # ConvTranspose has no INT8 kernel on the CPU: it stays in FP32 in every evaluation, and `layers` says why.
    layers = json.loads(ok("inspect", here / "in/model.onnx", "--json"))
    [up] = [row for row in layers["groups"] if row["op"] == "ConvTranspose"]
    assert up["may"] == ["fp32"]
    assert "ConvTranspose" in up["why_not"]["int8"]


def test_a_transformer_encoder(here: Path) -> None:
    """The second real case: attention, LayerNorm, GELU; no labels, so agreement with FP32 is the metric."""
    save(transformer(), here / "vit.onnx")
    np.savez(here / "vit.npz", image=images(48))
    ok("search", "vit.onnx", "--data", "vit.npz", "--trials", 5, "--max-drop", "20%")
    found = front("vit")
    assert found["metric"]["name"] == "agreement"
    assert found["evaluations"] == 5
    assert "exported" in ok("export", "vit", "--out", "engine")
    session = onnxruntime.InferenceSession("engine/model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"image": images(4)})[0].shape == (4, 10)


def test_a_dynamic_batch(here: Path) -> None:
    save(three_layers(batch="N"), here / "model.onnx")
    np.savez(here / "data.npz", image=images(30, shape=(3, 8, 8)))
    ok("search", "model.onnx", "--data", "data.npz", "--trials", 2, "--shape", "image:1x3x8x8:6x3x8x8:8x3x8x8")
    model = json.loads(run_sql("select model from bf_study")[0][0])
    assert model["inputs"] == [["image", "float32", [6, 3, 8, 8]]]
    ok("resume", "model", "--trials", 3)
    ok("export", "model", "--out", "engine")


def test_a_study_from_a_file(here: Path) -> None:
    write_inputs(here / "in")
    (here / "study.toml").write_text(
        'model = "in/model.onnx"\ndata = "in/data.npz"\nstudy = "filed"\ntrials = 2\nmax-drop = "20%"\n'
        'keep = ["fc=fp32"]\nsampler = "random"\nquiet = true\n'
    )
    result = invoke("search", "--config", "study.toml", "--trials", 3)
    assert (result.exit_code, result.output) == (0, "")
    found = front("filed")
    assert (found["evaluations"], found["limits"]["max_drop"]) == (3, 0.2)


def test_the_python_functions_do_what_the_verbs_do(studied: Path) -> None:
    found = verbs.front("small")
    now, mixes = found.standing, found.mixes
    assert [mixes[int(now.table.id[row])] for row in now.measures.baselines] == ["all fp32", "all int8"]
    assert [summary.name for summary in read_studies()] == ["small"]
    trial = int(now.table.trial[now.measures.fastest_first(now.judgement.front)[0]])
    assert verbs.show("small", trial).record.trial == trial
    assert verbs.report("small", studied / "r.html").is_file()
    verbs.delete("small")
    assert read_studies() == ()


def test_an_engine_that_was_not_kept_is_built_again(here: Path) -> None:
    write_inputs(here / "in")
    search(here, "--trials", 3, "--study", "bare", "--keep-engines", "none", "--max-drop", "50%")
    assert run_sql("select count(*) from bf_evaluation where artifact is not null") == [(0,)]
    result = invoke("export", "bare", "--out", "engine", "--trial", 1)
    assert result.exit_code == 0
    assert "was not kept" in result.stderr
    assert (here / "engine" / "model.onnx").stat().st_size > 0


def test_only_engines_of_the_front_are_kept(here: Path) -> None:
    write_inputs(here / "in")
    search(here, "--trials", 8, "--study", "front")
    kept = run_sql("select artifact from bf_evaluation where artifact is not null")
    files = {path.name for path in Path(f"{DATABASE}.artifacts").iterdir() if len(path.name) == 64}
    calibrated = {
        digest for row in run_sql("select ranges_digest, statistics_digest from bf_study_target") for digest in row
    }
    assert files - calibrated == {digest for (digest,) in kept}
    assert 1 <= len(kept) <= 8


def test_two_studies_share_the_ranges_of_one_calibration(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(studied / "cache"))  # where none are kept: they are the database's
    inputs = finished() / "in"
    result = invoke("search", inputs / "model.onnx", "--data", inputs / "data.npz", "--study", "two", "--trials", 2)
    assert result.exit_code == 0
    assert "calibration: taken over from an earlier study" in result.stderr
    ok("delete", "small", "--yes")
    assert front("two")["evaluations"] == 2
    ok("resume", "two", "--trials", 3)
    ok("export", "two", "--out", "engine")


def test_a_study_without_its_target_is_told_as_damaged(studied: Path) -> None:
    """Study, groups and target are written in one transaction: no process that was killed leaves one without."""
    connection = sqlite3.connect(DATABASE)
    for table in ("bf_study_target", "bf_group"):
        connection.execute(f"delete from {table}")
    connection.commit()
    connection.close()
    for verb in (["front", "small"], ["report", "small", "--out", "r.html"], ["show", "small", 0], ["resume", "small"]):
        refused = invoke(*verb)
        assert refused.exit_code == 2
        assert "reading study 'small': it has no target. Delete it, and make it again." in refused.stderr
    ok("status")
    ok("delete", "small", "--yes")


def test_quiet_prints_nothing(studied: Path) -> None:
    for arguments in (["resume", "small", "--trials", 5, "--quiet"], ["export", "small", "--out", "e", "--quiet"]):
        result = invoke(*arguments)
        assert (result.exit_code, result.output) == (0, "")


def test_doctor_and_layers_in_a_process(here: Path) -> None:
    write_inputs(here / "in")
    assert "native precisions: fp32, w8, int8-dynamic, int8, w4" in child("doctor", cwd=here).stdout
    done = child("inspect", "in/model.onnx", "--data", "in/data.npz", "--threads", 1, cwd=here)
    assert "3 groups, 3 edges, 3 decisions, 8 assignments" in done.stdout, done.stderr
    assert {path.name for path in here.iterdir()} == {"in"}


def recurrent_step(here: Path) -> Path:
    """A step of a recurrent model, whose state has its batch on the second axis."""
    n = Net()
    n.op("Squeeze", ["state", n.const("zero", np.array([0]))], "before")
    n.op("Add", [n.linear("x", "read", 8, 16), n.linear("before_out", "keep", 16, 16)], "sum")
    n.op("Tanh", ["sum_out"], "after")
    n.op("Unsqueeze", ["after_out", "zero"], "state/next")
    n.nodes[-1].output[0] = "next"
    n.linear("after_out", "head", 16, 5)
    n.nodes[-1].output[0] = "y"
    shapes: dict[str, list[int | str | None]] = {"y": ["N", 5], "next": [1, "N", 16]}
    return save(finish(n, {"x": ["N", 8], "state": [1, "N", 16]}, shapes), here / "step.onnx")


def test_a_recurrent_model_is_searched_by_its_sequences(here: Path) -> None:
    step = plain_session(onnx.load(recurrent_step(here)))
    script = Path(__file__).parents[2] / "examples/recurrent/unroll.py"
    subprocess.run([sys.executable, script, "step.onnx", "16"], check=True)  # writes sequence.onnx
    x = np.random.default_rng(0).normal(size=(64, 16, 8)).astype(np.float32)
    state = first = np.zeros((1, 64, 16), np.float32)
    rows = []
    for i in range(16):
        y, state = step.run(["y", "next"], {"x": x[:, i], "state": state})
        rows.append(y)
    whole = plain_session(onnx.load("sequence.onnx")).run(None, {"x": x, "state": first})[0]
    np.testing.assert_allclose(whole, np.stack(rows, axis=1), atol=1e-4)
    np.savez("sequences.npz", x=x, state=np.moveaxis(first, 1, 0))
    ok(
        "search",
        "sequence.onnx",
        "--data",
        "sequences.npz",
        "--batch",
        1,
        "--accuracy-limit",
        "10dB",
        "--trials",
        2,
        "--study",
        "sequence",
    )
    groups = json.loads(ok("show", "sequence", 0, "--json"))["groups"]
    assert [group["node"] for group in groups] == ["read/0", "keep/0", "head/0"]
    assert "exported trial" in ok("export", "sequence", "--out", "engine")


def test_a_step_with_its_state_runs_through_to_an_export(here: Path) -> None:
    recurrent_step(here)
    random = np.random.default_rng(0)
    x, state = (random.normal(size=shape).astype(np.float32) for shape in ((64, 8), (64, 1, 16)))
    np.savez("steps.npz", x=x, state=state)
    ok(
        "search",
        "step.onnx",
        "--data",
        "steps.npz",
        "--batch",
        1,
        "--accuracy-limit",
        "10dB",
        "--trials",
        2,
        "--study",
        "step",
    )
    ok("export", "step", "--trial", 0, "--out", "engine")
    session = onnxruntime.InferenceSession("engine/model.onnx")
    found = session.run(["y", "next"], {"x": x[:1], "state": state[:1]})
    given = plain_session(onnx.load("step.onnx")).run(
        ["y", "next"], {"x": x[:1], "state": np.moveaxis(state[:1], 1, 0)}
    )
    np.testing.assert_allclose(found[0], given[0], atol=1e-4)
    np.testing.assert_allclose(found[1], np.moveaxis(given[1], 1, 0), atol=1e-4)


def test_a_quantized_file_is_searched_and_the_file_as_given_is_measured_beside(here: Path) -> None:
    write_inputs(here / "in")
    path = quantized(onnx.load(here / "in/model.onnx"), here)
    said = ok("inspect", path, "--backend", "onnxruntime")
    assert "INT8 of 3 of 3 groups has the file's own scales" in " ".join(said.split())
    result = invoke(
        "search", path, "--data", here / "in/data.npz", "--trials", 3, "--study", "own", "--recover", "bias"
    )
    assert result.exit_code == 0, result.output
    assert result.stderr.count("which no recovery step changes; `bitfront recover FILE") == 1
    assert "--recover bias changes no layer that has them" in result.stderr
    strict = ("--max-error-ratio", 0.01, "--min-error", 0, "--sensitivity-time", "1s", "--recover", "none", "--json")
    told = ok("sensitivity", path, "--data", here / "in/data.npz", *strict)
    assert {tuple(remedy["steps"]) for remedy in json.loads(told)["remedies"]} == {()}
    said = " ".join(ok("recover", path, "--data", here / "in/data.npz", "--out", "anew").split())
    assert said.endswith("Search model.float.onnx to calibrate and recover INT8 anew.")
    found = front("own")
    assert re.search(r"The file as given takes [\d.]+ ms \([\d.]+ × FP32\) and loses ", " ".join(found["notes"]))
    said = ok("front", "own")
    assert "The file as given takes" in said
    assert "× file" in said
    assert all(row["speedup_over_file"] / row["speedup"] > 0 for row in found["rows"])
    int8 = next(row["trial"] for row in found["rows"] if row["role"] == "baseline:int8")
    ok("export", "own", "--trial", int8, "--out", "engine")
    batch = {"image": np.load(here / "in/data.npz")["image"][:4]}
    given, own = (onnxruntime.InferenceSession(file).run(None, batch)[0] for file in (path, Path("engine/model.onnx")))
    assert sqnr_db(given, own) > 25
