"""What an export writes, what it checks, and what it does when the engine has to be built again."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from evaluators.calibration import cache as calibration_cache
from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import load
from search.values import Answer, Assignment, Evaluation, Failure, FailureKind, Precision, Ranges, Stage
from studies.export import checks, readme
from studies.export.checks import MeasuredEngine, check_latency, default_tolerance, failure_text
from studies.guard.metrics import LayerErrors
from studies.run import rebuild
from studies.run.work import Bench, Work
from studies.store.repositories.claims import Claims
from studies.store.store import Store
from studies.trials.ledger import Ledger
from tests.support import evaluator_jobs
from tests.support.command_line import DATABASE, copy_finished, environment, invoke, ok, run_sql, tree
from tests.support.forks.processes import fork_evaluators
from tests.support.networks import Net, images, save

pytestmark = pytest.mark.slow

INT8, FP32 = Precision.INT8, Precision.FP32


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def lose_engines() -> None:
    for (digest,) in run_sql("select digest from bf_artifact where kind = 'engine'"):
        (Path(f"{DATABASE}.artifacts") / digest).unlink(missing_ok=True)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_everything_that_belongs_to_an_engine(here: Path) -> None:
    ok("export", "small", "--trial", 1, "--out", "engine", "--triton", "small-net")
    folder = here / "engine"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    entry = "triton/small-net"
    assert files == {"model.onnx", "ranges.json", "calibration.cache", "manifest.json", "model.float.onnx",
                     "layers.json", "profile.json", "run.py", "README.md", "final_samples.json",
                     f"{entry}/config.pbtxt", f"{entry}/1/model.onnx"}  # fmt: skip
    found = manifest(folder)
    assert found["files"] == {name: digest(folder / name) for name in files - {"manifest.json"}}
    assert 'platform: "onnxruntime_onnx"' in (folder / entry / "config.pbtxt").read_text()
    assert (folder / entry / "1/model.onnx").samefile(folder / "model.onnx")
    assert found["check"]["outputs"] == "equal"
    assert 1 <= found["latency_check"]["tries"] <= 3
    assert found["evaluation"]["rebuilt"] is False
    check_cache(folder)


def test_the_accuracy_of_an_export_can_be_computed_again_from_its_files(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ok("export", "small", "--trial", 1, "--out", "engine")
    found, samples = manifest(here / "engine"), json.loads((here / "engine/final_samples.json").read_text())
    assert len(samples["rows"]) == found["final"]["samples"]
    assert samples["rows"] == sorted(set(samples["rows"]))
    monkeypatch.chdir(here / "engine")
    (script,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert printed_accuracy(script, capsys) == pytest.approx(found["final"]["value"])
    (here / "arrays").mkdir()
    with np.load(samples["data"]) as data:
        for name in data.files:
            np.save(here / "arrays" / name, data[name])
    Path("final_samples.json").write_text(json.dumps({**samples, "data": str(here / "arrays")}), encoding="utf-8")
    assert printed_accuracy(script, capsys) == pytest.approx(found["final"]["value"])
    # Samples of two shapes lie in two folders, each with the numbers of its own.
    with np.load(samples["data"]) as data:
        for place, start in ((here / "forms", 0), (here / "forms/form-1", 1)):
            place.mkdir()
            rows = np.arange(len(data["labels"]))[start::2]
            np.save(place / ".rows.npy", rows)
            for name in data.files:
                np.save(place / name, data[name][rows])
    Path("final_samples.json").write_text(json.dumps({**samples, "data": str(here / "forms")}), encoding="utf-8")
    assert printed_accuracy(script, capsys) == pytest.approx(found["final"]["value"])


def test_the_script_of_the_readme_gives_the_labels_of_each_output(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("export", "small", "--trial", 1, "--out", "engine")
    found, samples = manifest(here / "engine"), json.loads((here / "engine/final_samples.json").read_text())
    with np.load(samples["data"]) as data:
        names = {name: data[name] for name in data.files}
    labels = names.pop("labels")
    np.savez(here / "two.npz", **names, **{"labels.up": labels, "labels.down": -labels, "labelled": labels})
    (here / "engine/final_samples.json").write_text(json.dumps({**samples, "data": str(here / "two.npz")}))
    monkeypatch.chdir(here / "engine")
    found["final"]["metric"] = "own:metric"
    script = readme._how_to_check(found, {"run.py", "final_samples.json"})[2]
    told = run(script.removeprefix("```python\n").removesuffix("```"))
    assert told["labels"].keys() == {"up", "down"}
    np.testing.assert_array_equal(told["labels"]["down"], -labels[samples["rows"]])


def test_the_script_of_the_readme_scores_boxes_by_the_decoder_of_the_search(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ok("export", "small", "--trial", 1, "--out", "engine")
    found, samples = manifest(here / "engine"), json.loads((here / "engine/final_samples.json").read_text())
    with np.load(samples["data"]) as data:
        boxes = np.stack([0 * data["labels"]] * 2 + [0 * data["labels"] + 9] * 2 + [data["labels"]], axis=1)[:, None]
        np.savez(here / "boxes.npz", **{name: data[name] for name in data.files if name != "labels"}, labels=boxes)
    (here / "engine/final_samples.json").write_text(json.dumps({**samples, "data": str(here / "boxes.npz")}))
    (here / "engine/one_box.py").write_text(
        "import numpy as np\n\n\ndef decode(outputs):\n    (logits,) = outputs.values()\n"
        "    return [np.array([[0, 0, 9, 9, row.max(), row.argmax()]]) for row in logits]\n"
    )
    monkeypatch.chdir(here / "engine")
    monkeypatch.syspath_prepend(here / "engine")
    found["final"]["metric"] = "map"
    told = readme._how_to_check(found, {"run.py", "final_samples.json"}, "one_box:decode")
    run(told[2].removeprefix("```python\n").removesuffix("```"))
    assert 0.5 < float(capsys.readouterr().out.split("map ")[-1]) <= 1, "labels are what the float model says"
    assert len(told) == 3, "nothing is left to the reader"
    assert 'get_metric("map", "yolov8")' in readme._how_to_check(found, {"run.py", "final_samples.json"}, "yolov8")[2]
    assert 'get_metric("map")' in readme._how_to_check(found, {"run.py", "final_samples.json"})[2]


def test_the_readme_shows_how_the_class_of_the_script_is_called(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("export", "small", "--trial", 1, "--out", "engine")
    monkeypatch.chdir(here / "engine")
    call = re.findall(r"`(Engine\(.*?\))` gives", Path("README.md").read_text(encoding="utf-8"))[0]
    names = runpy.run_path("run.py")
    names["array"] = np.zeros(manifest(Path())["model"]["inputs"][0][2], np.float32)
    outputs = eval(call, names)
    assert [array.dtype for array in outputs.values()] == [np.float32]


def run(script: str) -> dict[str, Any]:
    """What the script of a README leaves, with its archives closed."""
    names: dict[str, Any] = {}
    exec(script, names)
    for archive in (names["data"], names["outputs"]):
        if isinstance(archive, np.lib.npyio.NpzFile):
            archive.close()
    return names


def printed_accuracy(script: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Run the script of the README, and return the number that it prints."""
    capsys.readouterr()
    run(script)
    return float(re.findall(r"^top1 (\S+)$", capsys.readouterr().out, re.MULTILINE)[-1])


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("run_search:psnr", "`psnr` of `run_search` scores them"),
        ("psnr@562e3682", "`psnr` scores them, which your program gave"),
        ("sqnr", 'get_metric("sqnr")'),
    ],
)
def test_the_readme_says_which_function_scores(metric: str, says: str) -> None:
    found = {"final": {"metric": metric, "samples": 8}, "model": {"inputs": [("image", "float32", [1, 3, 8, 8])]}}
    _, above, script, below = readme._how_to_check(found, {"run.py", "final_samples.json"})
    assert says in below
    assert "top1" not in script
    assert "folder of `.npy` files" in above


def test_an_export_says_what_each_layer_runs_in_and_why_it_is_not_int8(here: Path) -> None:
    run_sql("update bf_choice set offered = 0, reason = 'it has no range' where \"group\" = 'g000' and precision = 2")
    ok("export", "small", "--trial", 0, "--out", "fp32")
    ok("export", "small", "--trial", 1, "--out", "int8")
    said = invoke("inspect", "fp32", "--against", "int8", "--json")
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    weighted = [layer for layer in found["layers"] if layer["weighted"]]
    assert weighted[0]["why_not_int8"] == "it was never offered in INT8: it has no range"
    assert {layer["why_not_int8"] for layer in weighted[1:]} == {"the exported mix asks for fp32 here"}
    assert all(layer["ms"] is not None for layer in weighted)
    assert found["kind"] == "engine of onnxruntime"
    nodes = {row["node"]: (row["precision"], row["other_precision"]) for row in found["nodes"]}
    assert ("fp32", "int8") in [nodes[node] for layer in weighted for node in layer["nodes"]]
    layers = LayerErrors.open(here / "int8", every_s=0)  # what a guard's metrics read of an export
    layers.offer({"image": images(4, shape=(3, 8, 8))})
    assert layers.errors().keys() == {"first", "second", "fc"}
    assert max(layers.errors().values()) > 0
    profile = json.loads((here / "fp32/profile.json").read_text())
    assert {row["name"] for row in profile[1:]} <= {layer["name"] for layer in found["layers"]}


def check_cache(folder: Path) -> None:
    """It holds the ranges."""
    ranges = Ranges.from_json(json.loads((folder / "ranges.json").read_text()))
    found = calibration_cache.read_file(folder / "calibration.cache")
    assert found.keys() == ranges.tensors.keys()
    for name, range_ in ranges.tensors.items():
        assert found[name] == pytest.approx(range_.magnitude, rel=2**-23)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_a_trial_without_a_final_score_is_scored_first(here: Path) -> None:
    run_sql("delete from bf_score where split = 'final'")
    said = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert said.exit_code == 0, said.output
    assert "measuring one finalist again, beside the baseline, and scoring it on the final samples" in said.output
    assert manifest(here / "engine")["final"]["samples"] > 0


def test_without_hard_links_files_are_copied(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    ok("export", "small", "--out", "engine", "--triton", "net")
    copied, engine = here / "engine/triton/net/1/model.onnx", here / "engine/model.onnx"
    assert (copied.read_bytes() == engine.read_bytes(), copied.samefile(engine)) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--triton", "a/b"], "--triton: expected a model name"),
        (["--optimization-level", "5"], "backend onnxruntime, which has no such option"),
        (["--optimization-level", "high"], "expected a whole number from 0 to 5"),
    ],
)
def test_what_is_refused_leaves_nothing(here: Path, arguments: list[str], says: str) -> None:
    before = tree(here)
    refused = invoke("export", "small", "--out", "engine", *arguments)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert says in refused.stderr
    assert tree(here).keys() == before.keys()


# -- building again ----------------------------------------------------------------------------------------------------


def test_an_engine_that_is_gone_is_a_new_evaluation(here: Path) -> None:
    front = json.loads(ok("front", "small", "--json"))
    searched = "select id, digest, raw_ms, artifact from bf_evaluation where role != 'export' order by id"
    before = run_sql(searched)
    lose_engines()
    said = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert said.exit_code == 0, said.output
    assert "trial 1: its engine was not kept; building, auditing and measuring it again" in said.output

    new = run_sql("select id, status, role, assignment, artifact from bf_evaluation where role = 'export'")
    assert len(new) == 1
    number, status, _, assignment, artifact = new[0]
    (first,) = run_sql("select evaluation_id from bf_trial where number = 1")[0]
    assert (status, assignment) == ("ok", run_sql("select assignment from bf_evaluation where id = ?", first)[0][0])
    assert run_sql("select count(*) from bf_trial where evaluation_id = ?", number) == [(0,)]
    assert run_sql("select count(*) from bf_audit where evaluation_id = ?", number) == [(3,)]
    assert run_sql("select count(*) from bf_lease") == [(0,)]
    assert run_sql(searched) == before
    found = manifest(here / "engine")
    assert found["trial"] == 1
    assert found["evaluation"]["id"] == number
    assert found["evaluation"]["rebuilt"] is True
    assert found["final"]["samples"] > 0
    assert artifact == digest(here / "engine/model.onnx")

    # It is no part of the search: not counted, not on the front, and not let go by what comes later.
    assert json.loads(ok("front", "small", "--json")) == front
    assert json.loads(ok("status", "--json"))["studies"][0]["ok"] == 4
    assert "4 evaluations are done" in ok("resume", "small")
    assert (Path(f"{DATABASE}.artifacts") / artifact).exists()

    # ONNX Runtime's engines come out the same again, so the trial has its own back; otherwise the rebuilt one is taken.
    ok("export", "small", "--trial", 1, "--out", "own")
    assert manifest(here / "own")["evaluation"]["id"] == first
    run_sql("update bf_evaluation set artifact = null where id = ?", first)
    said = invoke("export", "small", "--trial", 1, "--out", "again")
    assert f"evaluation {number}, built for an earlier export, takes its place" in said.output
    assert manifest(here / "again")["evaluation"]["id"] == number
    assert run_sql("select count(*) from bf_evaluation where role = 'export'") == [(1,)]


def test_an_engine_that_is_built_again_is_no_further_choice(here: Path) -> None:
    [best] = [row for row in json.loads(ok("front", "small", "--json"))["rows"] if "best" in row["picks"]]
    lose_engines()
    ok("export", "small", "--out", "engine")
    found = manifest(here / "engine")
    assert (found["trial"], found["evaluation"]["rebuilt"]) == (best["trial"], True)
    assert (found["final"]["tried"], found["final"]["verdict"]) == (best["final_tries"], best["final"])


LATENCIES = "select id, raw_ms, baseline_ms, doubts from bf_evaluation where role <> 'export' order by id"


def test_an_export_of_a_trial_leaves_the_latencies_of_the_study_as_they_are(here: Path) -> None:
    """Also where the trial was not scored on the final split, and where its engine has to be built again."""

    def latencies() -> list[Any]:
        found = json.loads(ok("front", "small", "--all", "--json"))["rows"]
        names = ("trial", "latency_ms", "speedup", "warnings")
        return [[row[name] for name in names] for row in found]

    scored = "select e.id from bf_evaluation e join bf_score s on s.evaluation_id = e.id"
    before, stored = latencies(), run_sql(LATENCIES)
    assert len(before) == 4
    run_sql(f"delete from bf_score where evaluation_id in ({scored} where s.split = 'final')")
    for number in range(2):
        for trial in (1, 2):
            ok("export", "small", "--trial", trial, "--out", f"engine{number}{trial}")
            assert (latencies(), run_sql(LATENCIES)) == (before, stored)
        lose_engines()


def test_an_export_in_another_environment_names_both(here: Path) -> None:
    ((number, stored),) = run_sql("select id, environment from bf_study where name = 'small'")
    old = json.loads(stored)
    old["packages"]["numpy"] = "1.0"
    run_sql("update bf_study set environment = ? where id = ?", json.dumps(old), number)
    said = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert said.exit_code == 0, said.output
    found = manifest(here / "engine")
    assert found["study_environment"] == old
    assert found["environment"]["packages"]["numpy"] == np.__version__
    named = f"numpy 1.0, now {np.__version__}"
    assert [named in text for text in found["warnings"]] == [True]
    assert named in " ".join(said.stderr.split())
    ok("export", "small", "--trial", 2, "--out", "other", "--trial", 2)
    assert named in (here / "other/README.md").read_text()


def test_an_engine_that_is_gone_twice_is_built_twice_and_deleted_with_its_study(here: Path) -> None:
    for number in (1, 2):
        lose_engines()
        ok("export", "small", "--trial", 0, "--out", f"engine{number}")
        assert run_sql("select count(*), count(distinct digest) from bf_evaluation where role = 'export'") == [
            (number, number)
        ]
    assert digest(here / "engine1/model.onnx") == digest(here / "engine2/model.onnx")
    ok("delete", "small", "--yes")
    assert [path.name for path in Path(f"{DATABASE}.artifacts").iterdir() if path.suffix != ".lock"] == []


def test_a_rebuild_that_was_killed_is_made_anew(here: Path) -> None:
    lose_engines()
    ok("export", "small", "--trial", 0, "--out", "engine")
    run_sql("update bf_evaluation set status = 'running' where role = 'export'")
    lose_engines()
    ok("export", "small", "--trial", 0, "--out", "again")
    assert run_sql("select status from bf_evaluation where role = 'export'") == [("ok",)]


def test_ctrl_c_just_as_a_rebuild_begins_leaves_no_row(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Claims.begin

    def interrupted(*args: Any) -> int:
        begin(*args)
        raise KeyboardInterrupt

    lose_engines()
    monkeypatch.setattr(Claims, "begin", interrupted)
    assert invoke("export", "small", "--trial", 0, "--out", "engine").exit_code == 130
    assert run_sql("select count(*) from bf_evaluation where role = 'export'") == [(0,)]
    assert not (here / "engine").exists()


def test_another_level_is_a_new_evaluation_of_a_kept_engine(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime has no levels; what is told apart is what the builder says it builds with."""

    def at_level_5(work: Work, options: Mapping[str, Any]) -> Work:
        return replace(work, ledger=replace(work.ledger, knobs={**work.ledger.knobs, "optimization_level": "5"}))

    monkeypatch.setattr(rebuild, "at_final_level", at_level_5)
    said = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert "its engine was not built at optimization level 5; building" in said.output
    found = manifest(here / "engine")
    assert found["knobs"]["optimization_level"] == "5"
    assert found["evaluation"]["rebuilt"] is True
    ok("export", "small", "--trial", 1, "--out", "again")
    assert manifest(here / "again")["evaluation"] == found["evaluation"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    ok("export", "small", "--trial", 1, "--out", "own")
    assert manifest(here / "own")["evaluation"]["rebuilt"] is False


def test_a_rebuild_that_fails_is_stored_and_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(keeper: EvaluatorProcess, assignment: Assignment, out: Path, limits: object) -> Evaluation:
        return Evaluation(assignment, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel for it"))

    lose_engines()
    monkeypatch.setattr(EvaluatorProcess, "evaluate", refuse)
    failed = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert failed.exit_code == 1
    assert "building it again failed, build (refused): no kernel for it" in failed.stderr
    assert not (here / "engine").exists()
    assert run_sql("select status, message from bf_evaluation where role = 'export'") == [
        ("failed", "no kernel for it")
    ]
    assert json.loads(ok("status", "--json"))["studies"][0]["failed"] == 0


def test_a_rebuild_that_was_not_obeyed_does_not_end_the_report(here: Path) -> None:
    lose_engines()
    ok("export", "small", "--trial", 1, "--out", "engine")
    rebuilt = "select id from bf_evaluation where role = 'export'"
    assert len(run_sql(rebuilt)) == 1
    ok("report", "small", "--out", "before.html")
    other = f"case asked when {INT8.id} then {FP32.id} else {INT8.id} end"
    run_sql(f"update bf_audit set got = {other} where evaluation_id in ({rebuilt})")
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        number = store.targets.of_study(store.studies.load("small").id)[0].id
        assert Answer.NOT_OBEYED in {row.answer for _, row in store.engines.audits(number)}
    ok("report", "small", "--out", "after.html")
    assert (here / "after.html").read_text() == (here / "before.html").read_text()


def test_the_level_reaches_the_process_that_builds() -> None:
    opened: list[dict[str, Any]] = []
    keeper = SimpleNamespace(
        job=SimpleNamespace(options={"optimization_level": 3}),
        reopen=lambda options: opened.append(options),
        ask=lambda doing: SimpleNamespace(setup=SimpleNamespace(knobs=lambda: {"optimization_level": "5"})),
    )
    work = stub_work(keeper, knobs={"optimization_level": "3"})
    assert rebuild.at_final_level(work, {"optimization_level": 3}) is work
    assert opened == []
    assert rebuild.at_final_level(work, {"optimization_level": 5}).ledger.knobs == {"optimization_level": "5"}
    assert opened == [{"optimization_level": 5}]


def stub_work(keeper: Any, knobs: dict[str, str]) -> Work:
    nothing: Any = None
    ledger = Ledger(nothing, nothing, nothing, nothing, nothing, knobs)
    return Work(nothing, ledger, Bench(keeper, nothing, nothing), nothing, nothing)


# -- the latency of what was written -----------------------------------------------------------------------------------


def test_an_export_that_never_ties_is_kept_and_marked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITFRONT_TEST_EVER_SLOWER", "1")
    said = invoke("export", "small", "--out", "engine", "--latency-tolerance", "5%", "--quiet")
    assert said.exit_code == 0, said.output
    assert "WARNING: checking the latency of the exported engine: expected" in said.stderr
    check = manifest(here / "engine")["latency_check"]
    assert check["holds"] is False
    assert (check["tolerance"], check["tries"]) == (0.05, 3)
    assert check["latency_ratios"] == pytest.approx([1 / 1.1] * 3)
    assert digest(here / "engine/model.onnx") == manifest(here / "engine")["files"]["model.onnx"]


def test_a_tolerance_that_is_asked_for_is_held_to(here: Path) -> None:
    said = invoke("export", "small", "--out", "engine", "--latency-tolerance", "100%")
    assert said.exit_code == 0, said.output
    check = manifest(here / "engine")["latency_check"]
    assert (check["holds"], check["tolerance"]) == (True, 1.0)
    assert "WARNING" not in said.stderr


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "2ms", "much"])
def test_a_tolerance_that_is_none_is_refused(here: Path, text: str) -> None:
    said = invoke("export", "small", "--out", "engine", f"--latency-tolerance={text}")
    assert said.exit_code == 2
    assert "--latency-tolerance: expected" in said.stderr
    assert not (here / "engine").exists()


def test_an_export_whose_outputs_differ_is_removed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "identical", lambda one, other: False)
    failed = invoke("export", "small", "--out", "deep/engine")
    assert failed.exit_code == 1
    assert "differ from those of the engine that was measured. The export was removed" in failed.stderr
    assert list((here / "deep").iterdir()) == []


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluatorProcess]:
    folder = tmp_path_factory.mktemp("timing")
    case = evaluator_jobs.case(folder)
    with pytest.MonkeyPatch.context() as patch, EvaluatorProcess(case.job, folder / "log") as keeper:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        patch.setenv("BITFRONT_TEST_REAL_CLOCK", "1")
        fork_evaluators(patch)
        keeper.ask().builds.rebuild(case.uniform(Precision.FP32), folder / "light.onnx")
        save(heavy(case.model.inputs[0].shape, case.model.outputs[0].shape), folder / "heavy.onnx")
        yield keeper


def heavy(image: tuple[int, ...], logits: tuple[int, ...]) -> onnx.ModelProto:
    """Same inputs, some hundred times the work."""
    n = Net(0)
    x = n.conv("image", "wide", image[1], 256)
    for number in range(6):
        x = n.conv(x, f"more{number}", 256, 256)
    n.head(x, 256)
    return n.model(list(image), "logits", list(logits))


def test_three_engines_are_timed_in_turn(process: EvaluatorProcess) -> None:
    light = process.log.parent / "light.onnx"
    times = process.ask().timings.compare_latency(light, light, rounds=2)
    assert times.baseline_ms is not None
    assert all(np.isfinite(ms) and ms > 0 for ms in (times.engine_ms, times.measured_ms, times.baseline_ms))


def test_a_much_slower_engine_is_found_out(process: EvaluatorProcess) -> None:
    folder = process.log.parent
    check = check_latency(process, MeasuredEngine(folder / "light.onnx", 1.0, 1.0), folder / "heavy.onnx", 0.5)
    assert (check["holds"], check["tries"]) == (False, 3)
    assert re.search(r"within 50\.0%; in 3 tries it was .* times that", failure_text(check))


def test_the_tie_band_is_the_studys_own() -> None:
    assert default_tolerance(0.034) == 0.034
    assert default_tolerance(0.0) == 0.01


def test_an_engine_that_was_damaged_in_the_artifacts_is_one_that_is_gone(here: Path) -> None:
    digest_before = engine_of(1)
    kept = here / f"{DATABASE}.artifacts" / digest_before
    kept.write_bytes((here / f"{DATABASE}.artifacts" / engine_of(0)).read_bytes())
    said = invoke("export", "small", "--trial", 1, "--out", "engine")
    assert said.exit_code == 0, said.output
    assert "trial 1: its kept engine is damaged; building, auditing and measuring it again" in said.output
    assert manifest(here / "engine")["evaluation"]["rebuilt"] is True
    assert digest(here / "engine/model.onnx") == digest_before  # ONNX Runtime's come out the same again


def engine_of(trial: int) -> str:
    query = "select e.artifact from bf_evaluation e join bf_trial t on t.evaluation_id = e.id where t.number = ?"
    return str(run_sql(query, trial)[0][0])


def test_the_source_of_an_engine(process: EvaluatorProcess) -> None:
    """ONNX Runtime's engine is its own source; it keeps no timing cache."""
    folder = process.log.parent
    assignment = Assignment({group.id: Precision.FP32 for group in load(folder / "model.onnx").groups})
    process.ask().builds.write_source(assignment, folder / "source.onnx")
    assert (folder / "source.onnx").read_bytes() == (folder / "light.onnx").read_bytes()
    assert process.ask().builds.write_timing_cache(folder / "timing.cache") is False
    assert not (folder / "timing.cache").exists()
