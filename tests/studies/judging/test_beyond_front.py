"""A pick that is not on the front, as ties are not transitive: shown, kept and reported like any other."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from bitfront.printing.study_results import print_finished
from studies.artifacts.folder import Artifacts
from studies.artifacts.leftovers import kept_engine
from studies.judging.standing import Standing, front_points, read_standing
from studies.options.limits import Limits
from studies.run.engines import prune
from studies.run.search_result import Mixes, SearchResult
from studies.show.report.builder import build_report
from studies.show.report.layers import precision_map
from studies.show.report.page import render_report
from studies.show.report.target_figures import side_by_side
from studies.store.store import Store
from tests.support.command_line import ok
from tests.support.study_rows import TARGET, evaluated, group, make_study

# Trial 0 has the least loss. Trial 2 is faster and ties with it, and so knocks it out.
POINTS = [(4.0, 0.0), (2.0, 0.10), (3.0, 0.009), (2.5, 0.015), (3.5, 0.05)]
ROLES = {1: "baseline:int8"}
CODES = [(0, 0, 0), (2, 2, 2), (0, 2, 2), (2, 0, 0), (0, 0, 2)]
FRONT, PICK = {1, 3}, 0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "engines")


@pytest.fixture
def filled(url: str, artifacts: Artifacts, tmp_path: Path) -> Iterator[Store]:
    """A study of these points with an engine each."""
    with Store.open(url, create=True) as store:
        fill(store, make_study(store, groups=[group(number) for number in range(3)]), artifacts, tmp_path)
        yield store


def fill(store: Store, target: int, artifacts: Artifacts, folder: Path) -> None:
    for trial, ((latency_ms, loss), codes) in enumerate(zip(POINTS, CODES, strict=True)):
        made = evaluated(codes, latency_ms, loss, 0.01)
        number = store.claims.begin(target, made.assignment, made.assignment.digest, "w0", trial, ROLES.get(trial, ""))
        engine = folder / f"{trial}.engine"
        engine.write_bytes(f"engine {target} {trial}".encode())
        with kept_engine(store, artifacts, engine) as digest:
            store.claims.record(number, made, digest)


def judged(store: Store, limits: Limits | None = None, target: int = 0) -> Standing:
    study = store.studies.load("s")
    return read_standing(store, study, store.targets.of_study(study.id)[target], limits or Limits())


def trials(rows: list[dict[str, Any]], mark: str) -> set[int]:
    return {int(row["trial"]) for row in rows if row[mark]}


# The reading verbs ----------------------------------------------------------------------------------------------------


def test_the_table_has_every_pick_and_says_what_it_ties_with(filled: Store, url: str) -> None:
    printed = ok("front", "s", "--storage", url).splitlines()
    lines = {found[1]: line for line in printed if (found := re.match(r".*?(\d+)  +[\d.]+ ms ", line))}
    assert list(lines) == ["1", "3", "0"], "the best, then fastest first; nothing that is neither front nor pick"
    assert lines["1"].startswith("best, fast, knee, INT8 ")
    assert lines["0"].startswith("accurate  ")
    assert lines["0"].endswith("all FP32        as accurate it ties with trial 2")
    assert "not on the front" not in "".join(lines.values()), "the tie explains it"


@pytest.mark.parametrize("whole", [True, False])
def test_rows_have_every_pick_and_true_front_flags(filled: Store, url: str, whole: bool) -> None:
    found = verbs.front("s", storage=url, every=whole)
    now, mixes = found.standing, found.mixes
    assert [int(now.table.trial[row]) for row in now.measures.fastest_first(now.judgement.front)] == [1, 3]
    assert [point.trial for point in front_points(now)] == [1, 3, PICK]
    assert mixes[int(now.table.id[now.picks.accurate])] == "all fp32"


def test_json_csv_and_status_agree(filled: Store, url: str) -> None:
    rows = json.loads(ok("front", "s", "--storage", url, "--json"))["rows"]
    assert trials(rows, "on_front") == FRONT
    picked = {name: row["trial"] for row in rows for name in row["picks"]}
    [target] = json.loads(ok("status", "s", "--storage", url, "--json"))["targets"]
    assert {name: point["trial"] for name, point in target["picks"].items()} == picked
    assert (picked["accurate"], target["front"]) == (PICK, len(FRONT))
    lines = list(csv.DictReader(io.StringIO(ok("front", "s", "--storage", url, "--csv"))))
    [line] = [line for line in lines if int(line["trial"]) == PICK]
    assert (line["picks"], line["on_front"]) == ("accurate", "False")


@pytest.mark.parametrize(
    ("limits", "label", "best"),
    [(Limits(), "Best, the knee of the front", 1), (Limits(max_drop=0.06), "Best within the limits", 3)],
)
def test_a_search_ends_with_a_table_that_has_the_trial_it_calls_best(
    filled: Store, capsys: pytest.CaptureFixture[str], limits: Limits, label: str, best: int
) -> None:
    now = judged(filled, limits)
    print_finished(SearchResult(now, "done", Mixes(filled.evaluations.assignments(now.target.id)), {}))
    printed = capsys.readouterr().out
    assert f"{label}: trial {best} takes " in printed
    assert re.search(rf"^best.* {best} .* ms", printed, re.MULTILINE)
    assert re.search(rf"^accurate.* {PICK} .*ties with trial 2", printed, re.MULTILINE)


# Engines --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "in_line"),
    [(Limits(), set()), (Limits(max_drop=0.01), {2}), (Limits(latency_budget_ms=2.2), set())],
)
@pytest.mark.parametrize(("keep", "kept"), [("front", {0, 1, 3}), ("none", set()), ("all", {0, 1, 2, 3, 4})])
def test_engines_of_picks_and_of_those_in_line_for_the_best_are_kept(
    filled: Store, artifacts: Artifacts, limits: Limits, in_line: set[int], keep: str, kept: set[int]
) -> None:
    """Under the present limits or without any, so that trial 0 stays where 2.2 ms leave nothing but trial 1."""
    kept = kept | in_line if keep == "front" else kept
    now = judged(filled, limits)
    assert (now.picks.accurate == PICK) == ("latency_budget_ms" not in limits)
    prune(filled, artifacts, now, keep=keep)
    after = judged(filled, limits)
    assert {int(trial) for trial in after.table.trial[after.table.artifact != ""]} == kept
    contents = {path.read_bytes() for path in artifacts.folder.iterdir() if len(path.name) == 64}
    assert contents == {f"engine {now.target.id} {trial}".encode() for trial in kept}


# The report -----------------------------------------------------------------------------------------------------------


def test_the_report_shows_the_pick_among_the_front(filled: Store) -> None:
    data = build_report(filled, judged(filled))
    assert [row.trial for row in data.front] == [1, 3]
    assert [row.trial for row in data.shown] == [1, 3, PICK]
    assert data.precisions == {1: ["int8"] * 3, 3: ["int8", "fp32", "fp32"], 0: ["fp32"] * 3}
    assert set(data.opaque) == set(data.precisions)
    [row] = [row for row in data.evaluations if row.trial == PICK]
    assert (row.on_front, row.picks, data.remarks[PICK][0]) == (
        False,
        ("accurate",),
        "picked: accurate; not on the front",
    )
    assert not any("not on the front" in remark for other in data.front for remark in data.remarks[other.trial])
    titles = [(column.number, column.title, column.trial) for column in precision_map(data).columns]
    assert titles == [(1, "best · fast · knee", 1), (2, "accurate", 0), (None, "#3", 3)]
    page = render_report(data)
    assert "The 2 on the front and 1 pick that is not, fastest first" in page
    assert "picked: accurate; not on the front" in page


def test_a_report_whose_picks_are_on_the_front_says_nothing_of_it(filled: Store) -> None:
    page = render_report(build_report(filled, judged(filled, Limits(latency_budget_ms=2.2))))
    assert "The 1 on the front, fastest first" in page
    assert "not on the front" not in page


def test_targets_side_by_side_have_what_is_picked_on_one(filled: Store, artifacts: Artifacts, tmp_path: Path) -> None:
    other = filled.targets.add(filled.studies.load("s").id, replace(TARGET, device="GPU"), "s@2")
    fill(filled, other, artifacts, tmp_path)
    beside = side_by_side(filled, [judged(filled), judged(filled, target=1)])
    assert [row.trials for row in beside.shared] == [(1, 1), (3, 3), (0, 0)]
    assert beside.shared_count == len(POINTS)
