"""`--deliver`: from the search to two engines behind a guard and a gate, in one command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitfront.printing import study_results
from bitfront.verbs import analyses, deliveries
from search.errors import EvaluatorError
from studies.export import manifest
from studies.guard import Guard
from tests.support.command_line import invoke, ok, quick, write_inputs
from tests.support.networks import mobile_cnn

pytestmark = pytest.mark.slow
NO_GAIN = "No mix is faster"
SEARCH = ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", "3", "--max-drop", "50%")


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which a search delivered into `out/put`, and what it printed."""
    folder = tmp_path_factory.mktemp("delivered")
    write_inputs(folder / "in", mobile_cnn())
    with pytest.MonkeyPatch.context() as patch, quick():
        patch.chdir(folder)
        patch.setattr(study_results, "no_gain_text", lambda now: NO_GAIN)
        patch.setattr(manifest, "no_gain_text", lambda now: NO_GAIN)
        (folder / "told").write_text((found := invoke(*SEARCH, "--deliver", "out/put")).output)
        assert found.exit_code == 0, found.output
        return folder, found.stdout


def test_what_the_search_says_is_not_said_again_by_the_export(delivered: tuple[Path, str]) -> None:
    told = " ".join((delivered[0] / "told").read_text().split())
    assert (told.count("samples at a time and no other number"), told.count(NO_GAIN)) == (1, 1)
    assert told.count("what --deliver writes follows it") == 1


@pytest.fixture
def here(delivered: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(delivered[0])
    return delivered[0]


def lines_of(delivered: tuple[Path, str]) -> dict[str, str]:
    pairs = (line.partition(": ") for line in delivered[1].splitlines())
    return {label: text for label, _, text in pairs}


def test_what_is_found_lies_ready_with_a_safe_engine_and_a_report(delivered: tuple[Path, str], here: Path) -> None:
    assert sorted(path.name for path in Path("out/put").iterdir()) == ["engine", "report.html", "safe"]
    manifests = [
        json.loads(Path(f"out/put/{name}/manifest.json").read_text(encoding="utf-8")) for name in ("engine", "safe")
    ]
    assert manifests[0]["pick"] == "best"
    assert set(manifests[1]["precision"].values()) == {"fp32"}
    assert lines_of(delivered)["Report"].endswith("out/put/report.html")


def test_the_lines_for_a_server_and_a_pipeline_work_as_they_are_printed(
    delivered: tuple[Path, str], here: Path
) -> None:
    said = lines_of(delivered)
    names: dict[str, Any] = {}
    exec(said["In a server"], names)
    guard: Guard = names["guard"]
    with np.load("in/data.npz") as data:
        name = re.findall(r"'(\w+)': …", said["For each request"])
        outputs = guard.run({each: data[each][:4] for each in name})
    guard.close()
    assert outputs
    program, *words = shlex.split(said["In a pipeline"].replace("FRESH.npz", "in/data.npz"))
    assert "bitfront" in program
    assert words[words.index("--max-drop") + 1] == "50%", "as the study has it"
    judged = invoke(*words)
    assert judged.exit_code in (0, 1, 3), judged.output
    assert invoke(*shlex.split(said["Why layers lose"])[1:]).exit_code == 0


def test_it_says_why_layers_lose(delivered: tuple[Path, str]) -> None:
    assert re.search(r"\d+ groups, \d+ pairs of group and precision: ", delivered[1])


@pytest.mark.parametrize(
    ("skipped", "left"),
    [(("report", "safe", "diagnosis"), ["engine"]), (("engine",), ["report.html"])],
    ids=["all but the engine", "the engine"],
)
def test_each_part_can_be_skipped(here: Path, tmp_path: Path, skipped: tuple[str, ...], left: list[str]) -> None:
    words = [word for step in skipped for word in ("--skip", step)]
    found = json.loads(ok("resume", "s", "--deliver", f"{tmp_path / 'part'}", *words, "--json"))["delivered"]
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == left
    assert (found["causes"] is None) is ("diagnosis" in skipped)
    assert (found["report"] is None) is ("report" in skipped)


def test_layers_that_cannot_be_measured_take_nothing_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise EvaluatorError("planted")

    monkeypatch.setattr(analyses, "sensitivity", refuse)
    said = invoke("resume", "s", "--deliver", "unknown")
    assert said.exit_code == 0, said.output
    assert "why layers lose could not be measured: planted" in said.output
    assert sorted(path.name for path in Path("unknown").iterdir()) == ["engine", "report.html", "safe"]


def test_what_cannot_be_skipped_is_refused(here: Path) -> None:
    for words, told in (
        (("--deliver", "no", "--skip", "search"), "expected diagnosis or engine or safe or report, got 'search'"),
        (("--skip", "report"), "Add --deliver DIR"),
        (("--remeasure", "all", "--skip", "report"), "does not go with --remeasure"),
    ):
        said = invoke("resume", "s", *words)
        assert (said.exit_code, told in said.stderr) == (2, True), said.output
    assert not Path("no").exists()


def test_a_study_that_is_done_delivers_what_it_has(here: Path) -> None:
    resumed = invoke("resume", "s", "--deliver", "again", "--json")
    assert " ".join(resumed.stderr.split()).count("at a time and no other number") == 1, "of two exports"
    found = json.loads(resumed.stdout)
    assert found["delivered"]["folder"].endswith("again/engine")
    assert found["delivered"]["safe"].endswith("again/safe")
    assert Path(found["delivered"]["report"]).is_file()


def test_a_folder_that_holds_something_is_refused_before_anything_is_searched(here: Path) -> None:
    Path("full").mkdir(exist_ok=True)
    Path("full/notes.txt").touch()
    for words in ((*SEARCH[:4], "--study", "other"), ("resume", "s"), ("resume", "s", "--remeasure", "all")):
        said = invoke(*words, "--deliver", "full")
        assert (said.exit_code, "--deliver" in said.stderr) == (2, True), said.output
    file = invoke("resume", "s", "--deliver", "full/notes.txt")
    assert (file.exit_code, "notes.txt: it is a file" in file.stderr) == (2, True), file.output
    assert "other" not in ok("status")


def test_an_interrupted_one_leaves_nothing_and_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(deliveries, "report", interrupt)
        stopped = invoke("resume", "s", "--deliver", "late/put")
    assert "resume s --deliver late/put" in stopped.stderr
    assert [path.name for path in Path("late").rglob("*")] == ["put"]
    ok("resume", "s", "--deliver", "late/put")
    assert Path("late/put/engine/run.py").is_file()


def test_where_nothing_keeps_the_limits_the_report_alone_is_written(here: Path) -> None:
    found = json.loads(ok("resume", "s", "--latency-budget", "0.0001ms", "--deliver", "none", "--json"))
    assert (found["delivered"]["folder"], found["delivered"]["safe"]) == (None, None)
    assert [path.name for path in Path("none").iterdir()] == ["report.html"]
