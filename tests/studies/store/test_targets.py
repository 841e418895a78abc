"""Several targets of one study: joining, adding, naming them, and what the others are worth."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitfront.printing.output import print_cells
from search.errors import StudyError
from search.values import Target
from studies.judging.rounding import latency_text
from studies.options.read_options import change_config, read_changes
from studies.run.guidance.other_targets import rounding_key
from studies.run.session.study_rows import explicit_options
from studies.store import target_names, target_options
from studies.store.records import TargetRecord
from studies.store.store import Store
from tests.support.command_line import DATABASE, TEMPORARY, copy_finished, invoke, ok, run_sql
from tests.support.study_rows import STUDY, TARGET

pytestmark = pytest.mark.slow


@functools.cache
def with_two() -> Path:
    """The finished study with a second target: two threads. Copy it, do not write to it."""
    folder = Path(tempfile.mkdtemp(prefix="bitfront-test-", dir=TEMPORARY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy_finished(folder)
    where = ("--storage", f"sqlite:///{folder / DATABASE}")
    result = invoke("resume", "small", "--threads", 2, "--new-target", "--trials", 6, *where)
    assert result.exit_code == 0, result.output
    (folder / "said").write_text(result.stderr)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # wait for nobody else's measurements
    return tmp_path / "here"


@pytest.fixture
def two(here: Path) -> Path:
    """A working directory whose default database holds `small` with two targets."""
    shutil.copy(with_two() / DATABASE, here / DATABASE)
    shutil.copytree(with_two() / f"{DATABASE}.artifacts", here / f"{DATABASE}.artifacts")
    return here


def front(*arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("front", "small", "--json", *arguments))
    return found


def refused(*arguments: Any, says: list[str]) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    for text in says:
        assert text in result.stderr
    return result.stderr


def fingerprints() -> list[str]:
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        return [record.target.fingerprint for record in store.targets.of_study(store.studies.load("small").id)]


def test_another_target_is_refused_with_both_and_the_way_out(here: Path) -> None:
    copy_finished(here)
    before = run_sql("select config from bf_study")
    for verb in ("resume", "worker"):
        message = refused(verb, "small", "--threads", 2, "--trials", 9, says=["threads: 1 there, 2 here"])
        [mine] = fingerprints()
        assert f"  1  {mine[:12]}  onnxruntime on" in message
        assert "  here  " in message
        assert "`bitfront worker small --new-target`" in message
    assert run_sql("select config from bf_study") == before
    assert len(fingerprints()) == 1
    assert run_sql("select count(*) from studies") == [(1,)]


def test_a_new_target_has_its_own_numbers_and_reuses_what_holds(two: Path) -> None:
    first, second = fingerprints()
    assert first != second
    said = (with_two() / "said").read_text()
    assert "calibration: taken over from an earlier study with the same model and data" in said
    assert "sensitivity: taken over from another target of the study, which rounds in the same way" in said
    assert f"the forecasts start from 4 evaluations on another target, {first[:12]}" in said
    assert run_sql("select count(distinct ranges_digest), count(distinct space_digest) from bf_study_target") == [
        (1, 1)
    ]
    measures = '"group", precision, error, flipped, sqnr_db, samples'
    one, other = (run_sql(f"select {measures} from bf_sensitivity where study_target_id = ?", n) for n in (1, 2))
    assert one == other != []
    names = [name for (name,) in run_sql("select study_name from studies order by study_id")]
    assert names[0].startswith("small, onnxruntime on ")
    assert names[1].startswith(f"{names[0]}, threads 2"), "what sets it apart from the first"
    counts = run_sql("select study_target_id, count(*) from bf_evaluation group by study_target_id order by 1")
    assert counts == [(1, 4), (2, 6)]
    roles = "select role from bf_evaluation where study_target_id = 2 order by id limit 2"
    assert run_sql(roles) == [("baseline:fp32",), ("baseline:int8",)]
    # The study's own total stays what it was; the target has its own.
    assert json.loads(run_sql("select config from bf_study")[0][0])["trials"] == 4
    assert run_sql("select options from bf_study_target where id = 1") == [(None,)]
    assert json.loads(run_sql("select options from bf_study_target where id = 2")[0][0]) == {"threads": 2, "trials": 6}


def test_every_way_to_name_a_target(two: Path) -> None:
    _, second = fingerprints()
    for name in (2, second, second[:6], "threads 2", "THREADS 2"):
        assert front("--target", name)["target"]["options"]["threads"] == "2"
    for name in ((), ("--target", 1), ("--target", "threads 1")):
        assert front(*name)["target"]["options"]["threads"] == "1"
    listed = ["expected one target of study 'small'", f"  2  {second[:12]}  onnxruntime on "]
    for name in (0, 3, "h200", "zzzz"):
        refused("front", "small", "--target", name, says=["no target fits", *listed])
    refused("front", "small", "--target", "onnxruntime", says=["2 targets fit", *listed])


def test_reading_verbs_take_a_target(two: Path) -> None:
    assert (front()["evaluations"], front("--target", 2)["evaluations"]) == (4, 6)
    said = ok("front", "small", "--target", 2)
    assert said.startswith("Target 2: onnxruntime on ")
    assert ", threads 2, statistic p20, clock wall; give --target to see another" in said
    first, second = (json.loads(ok("show", "small", 0, "--target", n, "--json")) for n in (1, 2))
    assert first["role"] == second["role"] == "baseline:fp32"
    assert first["latency"] != second["latency"]
    refused("show", "small", 5, says=["There is no trial 5"])
    ok("show", "small", 5, "--target", 2)
    found = json.loads(ok("status", "--json"))["studies"][0]["targets"]
    assert [(row["number"], row["options"]["threads"]) for row in found] == [(1, "1"), (2, "2")]
    assert [row["fingerprint"] for row in found] == fingerprints()
    assert ", threads 1, statistic mean, clock thread; 2: onnxruntime on " in ok("status")
    assert "first" in ok("sensitivity", "small", "--target", 2)
    refused("sensitivity", "small", "--target", 3, says=["--target 3"])


def test_measuring_verbs_run_on_the_target_they_name(two: Path) -> None:
    said = ok("export", "small", "--target", 2, "--trial", 1, "--out", "engine")
    assert "exported trial 1" in said
    manifest = json.loads((two / "engine/manifest.json").read_text())
    assert manifest["target"]["options"]["threads"] == "2"
    ok("show", "small", 0, "--profile", "--target", 2)
    assert "on 18 samples of the final split" in ok("compare", "small", 0, "--target", 2)
    assert run_sql("select distinct study_target_id from bf_worker where state <> 'ended'") == []


def test_going_on_with_one_target_leaves_the_other(two: Path) -> None:
    said = ok("resume", "small", "--target", 2, "--trials", 7, "--latency-budget", "1s")
    assert "7 evaluations are done" in said
    assert "--target 2" in said
    assert (front()["evaluations"], front("--target", 2)["evaluations"]) == (4, 7)
    assert (front()["limits"]["latency_budget_ms"], front("--target", 2)["limits"]["latency_budget_ms"]) == (None, 1000)
    assert "5 evaluations are done" in ok("worker", "small", "--trials", 5)
    assert (front()["evaluations"], front("--target", 2)["evaluations"]) == (5, 7)
    # What is named has to be what this host is under the options given; and once is enough to add it.
    refused("resume", "small", "--target", 1, "--threads", 2, says=["threads: 1 there, 2 here"])
    refused("resume", "small", "--target", 2, "--new-target", says=["were both given"])
    result = invoke("worker", "small", "--threads", 2, "--new-target")
    assert (result.exit_code, len(fingerprints())) == (0, 2)
    assert f"this host is already a target of the study, {fingerprints()[1][:12]}" in result.stderr
    # A run's options find the target without its name.
    assert "8 evaluations are done" in ok("resume", "small", "--threads", 2, "--trials", 8)


def test_the_report_lays_targets_side_by_side(two: Path) -> None:
    ok("report", "small", "--out", "both.html")
    page = Path("both.html").read_text(encoding="utf-8")
    assert "Targets side by side" in page
    assert "assignments measured on both onnxruntime on " in page
    assert "rank correlation of their latencies" in page
    assert "All other sections are about target 1" in page
    table = page.split("<h2>Targets compared</h2>")[1].split("</section>")[0]
    for number in (1, 2):
        best = front("--target", number)["best"]
        [row] = [text for text in table.split("<tr>") if f">{number}  onnxruntime on " in text]
        assert f">{latency_text(best['latency_ms'])}<" in row
    figures = json.loads(page.split("const figures = ")[1].split(";\n")[0])
    assert [len(figures[name]["data"]) for name in ("targets", "latencies")] == [2, 1]
    shared = set.intersection(
        *({a for (a,) in run_sql("select assignment from bf_evaluation where study_target_id = ?", n)} for n in (1, 2))
    )
    assert len(figures["latencies"]["data"][0]["x"]) == len(shared) >= 2
    ok("report", "small", "--out", "one.html", "--target", 2)
    alone = Path("one.html").read_text(encoding="utf-8")
    assert "Targets side by side" not in alone
    assert "Targets compared" not in alone
    assert "threads 2" in alone
    ok("report", "small", "--out", "turned.html", "--target", 2, "--target", 1)
    assert "All other sections are about target 2" in Path("turned.html").read_text(encoding="utf-8")
    refused("report", "small", "--out", "r.html", "--target", "nope", says=["--target nope"])


def test_deleting_a_study_takes_every_target(two: Path) -> None:
    ok("delete", "small", "--yes")
    assert run_sql("select count(*) from studies") == run_sql("select count(*) from bf_study_target") == [(0,)]
    files = [path for path in Path(f"{DATABASE}.artifacts").iterdir() if len(path.name) == 64]
    assert files == []


# -- names and differences ---------------------------------------------------------------------------------------------


def record(number: int, target: Target) -> TargetRecord:
    return TargetRecord(id=number, study_id=1, target=target, details={}, options=None)


VERSIONS = {"tensorrt": "10.3", "compute_capability": "9.0"}
H200 = Target("tensorrt", "NVIDIA H200", VERSIONS, {"tf32": "true"}, "median", False)
L4 = replace(H200, device="NVIDIA L4", versions={**VERSIONS, "compute_capability": "8.9"})


def test_names_say_what_sets_targets_apart() -> None:
    older = replace(H200, versions={**H200.versions, "tensorrt": "8.6"})
    assert target_names.names([H200, L4]) == ["tensorrt on NVIDIA H200", "tensorrt on NVIDIA L4"]
    assert target_names.names([H200, older, L4]) == [
        "tensorrt on NVIDIA H200, tensorrt 10.3",
        "tensorrt on NVIDIA H200, tensorrt 8.6",
        "tensorrt on NVIDIA L4",
    ]
    assert target_names.differences(H200, L4) == [
        "device: NVIDIA H200 there, NVIDIA L4 here",
        "compute capability: 9.0 there, 8.9 here",
    ]


def test_a_device_is_named_by_a_part_of_it() -> None:
    known = [record(1, H200), record(2, L4)]
    assert [target_names.choose(known, name, "s").id for name in ("h200", "NVIDIA L4", " l4 ", "1", None)] == [
        1,
        2,
        2,
        1,
        1,
    ]
    with pytest.raises(StudyError, match="2 targets fit"):
        target_names.choose(known, "nvidia", "s")
    # What is a number is never a part of a name, and an empty text fits nothing.
    for name in ("4", "", "  "):
        with pytest.raises(StudyError, match="no target fits"):
            target_names.choose(known, name, "s")


def test_what_rounds_alike() -> None:
    versions = {"onnxruntime": "1.23", "provider": "cpu"}
    cpu = replace(TARGET, versions=versions, options={"threads": "1", "weight_bits": "8"})
    assert rounding_key(cpu) == rounding_key(
        replace(cpu, device="another", options={"threads": "4", "weight_bits": "8"})
    )
    assert rounding_key(cpu) != rounding_key(
        replace(cpu, options={"threads": "1", "weight_bits": "8", "weight_pairs": "128"})
    )
    assert rounding_key(H200) == rounding_key(L4) != rounding_key(cpu)


def test_a_run_stores_what_it_was_told_and_no_more(tmp_path: Path) -> None:
    """Others may have been told something else since it read the study."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        config = {"model": "/m.onnx", "data": "/d.npz", "study": "demo", "backend": "onnxruntime", "trials": 60}
        store.studies.create(STUDY.with_values(config=config))
        study = store.studies.load("demo")
        for name, target in (("a", H200), ("b", L4)):
            store.targets.add(study.id, target, name, options=None if name == "a" else {"threads": 2})
        first, second = store.targets.of_study(study.id)
        store.studies.add_options(study.id, {"trials": 500})

        def run(target: TargetRecord, *, moved: bool = True, **options: str) -> dict[str, Any]:
            given = explicit_options(change_config(target_options.config_of(study, target), read_changes(options)))
            target_options.remember(store, study, target, given, moved=moved)
            return store.studies.load("demo").config

        assert run(first) == {**config, "trials": 500}
        assert run(second) == {**config, "trials": 500}
        assert run(first, moved=False, model="/elsewhere.onnx", device="cuda:1") == {**config, "trials": 500}
        assert run(first, **{"max-drop": "1%"})["max_drop"] == {"value": 0.01, "unit": "", "percent": True}
        assert run(second, trials="90", data="/moved.npz")["trials"] == 500
        found = store.studies.load("demo")
        assert (found.config["data"], found.config["model"], found.model_path) == (
            "/moved.npz",
            "/m.onnx",
            "model.onnx",
        )
        assert run(first, model="/new.onnx")["model"] == store.studies.load("demo").model_path == "/new.onnx"
        assert [record.options for record in store.targets.of_study(study.id)] == [None, {"threads": 2, "trials": 90}]


def test_options_of_a_target_go_over_those_of_the_study(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        config = {"model": "m.onnx", "data": "d.npz", "study": "demo", "trials": 60, "threads": 1, "device": "auto"}
        store.studies.create(STUDY.with_values(config=config))
        study = store.studies.load("demo")
        told = {**config, "threads": 2, "device": "cuda:3", "quiet": True, "artifacts": "x", "model": "elsewhere"}
        options = target_options.options_of(study, told)
        assert options == {"threads": 2, "device": "cuda"}
        numbers = [store.targets.add(study.id, H200, "a"), store.targets.add(study.id, L4, "b", options=options)]
        assert store.targets.add(study.id, L4, "c", options={"threads": 9}) == numbers[1]
        first, second = store.targets.of_study(study.id)
        assert (target_options.config_of(study, first).threads, target_options.config_of(study, second).threads) == (
            1,
            2,
        )
        assert (target_options.config_of(study, second).device, target_options.config_of(study, first).device) == (
            "cuda",
            "auto",
        )


def test_a_row_that_no_terminal_is_wide_enough_for_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[processor] " * 50 + "end"
    print_cells(["targets", "state"], [[long, "done"], ["short", ""]])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed] == [["targets", "state"], [*long.split(), "done"], ["short"]]
    assert not any(line.endswith(" ") for line in printed)
