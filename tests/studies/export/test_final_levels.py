"""Exports at another optimization level than the search's: shown beside the trials that they were made from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from studies.options.read_options import read_config
from tests.support.command_line import DATABASE, ok, quick, run_sql, write_inputs

pytestmark = pytest.mark.slow

TRIAL = 1  # a uniform baseline, so every front names it


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    with quick():
        monkeypatch.setenv("BITFRONT_TEST_TENSORRT", "8.6.1")
        yield tmp_path


def search(**more: str) -> None:
    """At level 2, every engine kept."""
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "backend": "tensorrt"}
    settings = {"sampler": "random", "trials": "4", "optimization-level": "2", "keep-engines": "all"}
    verbs.search(read_config({**options, **settings, **more}))


def lose_engines() -> None:
    for (digest,) in run_sql("select digest from bf_artifact where kind = 'engine'"):
        (Path(f"{DATABASE}.artifacts") / digest).unlink(missing_ok=True)


def exported(level: int, number: int = 0) -> tuple[int, float]:
    """Id and build seconds of an export at a level, in the order they were made."""
    query = "select id, build_s, engine from bf_evaluation where role = 'export' order by id"
    found = [(i, build_s) for i, build_s, engine in run_sql(query) if json.loads(engine)["optimization_level"] == level]
    return found[number]


def take(evaluation: int, ms: float) -> None:
    """Let all measurements of an evaluation be this: the pretended TensorRT runs every engine in 0.25 ms."""
    run_sql(f"update bf_evaluation set raw_ms = {ms} where id = {evaluation}")
    run_sql(f"update bf_sample set raw_ms = {ms} where evaluation_id = {evaluation} and role = 'candidate'")


def front() -> dict[int, dict[str, Any]]:
    return {row["trial"]: row for row in json.loads(ok("front", "s", "--json"))["rows"]}


def front_csv() -> dict[str, dict[str, str]]:
    return {row["trial"]: row for row in csv.DictReader(io.StringIO(ok("front", "s", "--csv")))}


def test_without_exports_there_are_no_columns_and_none_for_the_search_s_own_level(here: Path) -> None:
    search()
    lose_engines()
    said = ok("export", "s", "--trial", TRIAL, "--out", "again")
    assert len(run_sql("select id from bf_evaluation where role = 'export'")) == 1, "built again at the search's level"
    manifest = json.loads(Path("again/manifest.json").read_text(encoding="utf-8"))
    assert (manifest["final_level"], manifest["search_level"]) == (None, None)
    assert "at optimization level" not in said
    assert "built in" not in ok("front", "s")
    assert {(row["final_level"], *row["final_levels"]) for row in front().values()} == {(None,)}
    assert not [name for name in front_csv()[str(TRIAL)] if "level" in name]
    assert "exported at" not in ok("show", "s", TRIAL)
    assert json.loads(ok("show", "s", TRIAL, "--json"))["final_level"] is None
    ok("report", "s", "--out", "r.html")
    assert "another optimization level" not in Path("r.html").read_text(encoding="utf-8")


def test_an_export_at_another_level_stands_beside_its_trial(here: Path) -> None:
    search()
    take(run_sql(f"select evaluation_id from bf_trial where number = {TRIAL}")[0][0], 0.5)
    before = front()
    assert before[TRIAL]["latency_ms"] == 0.5
    said = ok("export", "s", "--trial", TRIAL, "--optimization-level", "4", "--out", "out")
    number, build_s = exported(4)
    assert build_s > 0
    final = {"level": 4, "latency_ms": 0.25, "build_s": build_s, "obeyed": True}

    manifest = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))
    of_trial = json.loads(ok("show", "s", TRIAL, "--json"))
    assert manifest["final_level"] == final
    searched = {"level": 2, "latency_ms": before[TRIAL]["latency_ms"], "build_s": of_trial["build_s"], "obeyed": True}
    assert manifest["search_level"] == searched
    line = next(line for line in said.splitlines() if line.startswith("at optimization level 4: "))
    assert line.count(" ms, built in") == 2
    assert line.count("built in") == 2
    assert "in the search, at level 2: " in line

    take(number, 0.125)
    final = final | {"latency_ms": 0.125}
    shown = front()
    of_trial = json.loads(ok("show", "s", TRIAL, "--json"))
    assert {trial: row["final_level"] for trial, row in shown.items()} == {
        trial: final if trial == TRIAL else None for trial in before
    }
    assert shown[TRIAL]["latency_ms"] == before[TRIAL]["latency_ms"], "the front stays at the search's level"
    table = ok("front", "s").splitlines()
    assert "level 4  " in table[0]
    assert "built in" in table[0]
    assert of_trial["final_level"] == final
    assert of_trial["final_levels"] == [final]
    assert "exported at optimization level 4: " in ok("show", "s", TRIAL)
    cells = front_csv()
    assert cells[str(TRIAL)]["level_4_build_s"] == str(build_s)
    assert (cells["0"]["level_4_latency_ms"], cells["0"]["level_4_obeyed"]) == ("", "")
    assert "final_level" not in cells["0"]


def test_the_report_has_the_columns_of_the_final_level_of_the_study(here: Path) -> None:
    search(**{"final-optimization-level": "4"})
    said = ok("export", "s", "--out", "out")
    assert "at optimization level 4: " in said
    trial = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))["trial"]
    assert front()[trial]["final_level"]["level"] == 4
    assert json.loads(ok("front", "s", "--json"))["best"]["final_level"]["level"] == 4
    ok("report", "s", "--out", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert '<th class="n">level 4</th><th class="n">built in</th>' in page
    assert "at optimization level 4: " in page, "in the hover text"


def test_of_several_levels_each_has_its_newest_export_and_what_was_not_obeyed_is_marked(here: Path) -> None:
    search()
    ok("export", "s", "--trial", TRIAL, "--optimization-level", "4", "--out", "one")
    ok("export", "s", "--trial", TRIAL, "--optimization-level", "1", "--out", "two")
    lose_engines()
    ok("export", "s", "--trial", TRIAL, "--optimization-level", "4", "--out", "three")
    newest, _ = exported(4, 1)
    run_sql(f"update bf_evaluation set build_s = 77, not_obeyed = 2 where id = {newest}")
    row = front()[TRIAL]
    assert row["final_level"] == row["final_levels"][1]
    assert [(each["level"], each["build_s"] == 77, each["obeyed"]) for each in row["final_levels"]] == [
        (1, False, True),
        (4, True, False),
    ]
    table = ok("front", "s")
    header = table.splitlines()[0]
    assert header.index("level 1") < header.index("level 4")
    assert header.count("built in") == 2
    assert "(2 not obeyed)" in table
    assert "1m17s" in table
    assert {name for name in front_csv()["0"] if name.startswith("level_")} == {
        f"level_{level}_{name}" for level in (1, 4) for name in ("latency_ms", "build_s", "obeyed")
    }
    lines = [line for line in ok("show", "s", TRIAL).splitlines() if line.startswith("exported at")]
    assert len(lines) == 2
    assert "(2 not obeyed)" in lines[1]
