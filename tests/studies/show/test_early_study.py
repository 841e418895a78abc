"""What screens say of a study of which little was measured, or little that is sure."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import bitfront
from bitfront import verbs
from search.values import LossEstimate, RecoveryRecord, StepRecord
from studies.judging.findings.study_rescue import emulation_gap_notes, study_rescue
from studies.judging.sentences.no_pick import only_fp32_text
from studies.judging.standing import Standing
from studies.judging.status.early_end import early_end
from studies.judging.status.study_status import study_status
from studies.run.noise.remeasurement import Remeasured, change_text
from studies.show.status_text import styled_lines
from studies.show.terminal.front_table import front_table
from studies.store.records import TIME_LIMIT
from studies.store.store import Store
from studies.store.suggestions import command
from tests.support.command_line import ok
from tests.support.study_rows import add, evaluated, fresh_url, make_study


def begun(store: Store, **options: str) -> int:
    """A study of which only FP32 was measured; its target."""
    target = make_study(store, **options)
    add(store, target, 0, evaluated((0, 0), 44.28, 0.0, 0.004), "baseline:fp32")
    return target


def text_of(store: Store) -> str:
    return "\n".join(line.plain for line in styled_lines(study_status(store, "s"), None))


def test_a_study_that_its_time_limit_ended_says_so_and_how_to_continue(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = begun(store, trials="16")
        store.studies.update(store.studies.load("s").id, state="done")
        assert study_status(store, "s").stopped_by == ""
        store.targets.add_details(target, stopped_by=TIME_LIMIT)
        first = text_of(store).splitlines()[0]
        assert "stopped by the time limit; continue with `bitfront resume s" in first
        assert study_status(store, "s").to_json()["targets"][0]["stopped_by"] == "time_limit"
        store.studies.update(store.studies.load("s").id, state="running")
        assert text_of(store).splitlines()[0].endswith(": running")


def test_a_search_that_ended_early_says_so_in_every_view(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = begun(store, trials="16")
        add(store, target, 1, evaluated((2, 2), 20.0, 0.0, 0.004), "baseline:int8")
        store.studies.update(store.studies.load("s").id, state="done")
        assert early_end(verbs.front("s", storage=url).standing) is None, "a rule of the user's ended it"
        store.targets.add_details(target, stopped_by=TIME_LIMIT)
    said = "THE SEARCH ENDED EARLY, with 2 of 16 evaluations, because the time limit was reached"
    way = command("resume", "s", storage=url)
    printed = ok("front", "s", "--storage", url)
    assert f"{said}.\nGo on with: {way}\n" in printed
    told = json.loads(ok("front", "s", "--storage", url, "--json"))["ended_early"]
    assert told == {"done": 2, "wanted": 16, "why": "time_limit", "resume": way, "text": said}
    study = bitfront.load("s", storage=url)
    assert said in repr(study)
    assert said in str(study)
    assert "bitfront.resume('s', storage=" in str(study)
    assert study.ended_early is not None
    assert (study.ended_early.done, study.ended_early.wanted) == (2, 16)
    ok("report", "s", "--storage", url, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    first = page[page.index('<section id="summary">') : page.index('<section id="front">')]
    assert said in first
    assert html.escape(way) in first
    with Store.open(url) as store:
        store.studies.update(store.studies.load("s").id, state="interrupted")
    assert "because it was interrupted" in ok("front", "s", "--storage", url)
    assert f": interrupted; continue with `{way}`" in ok("status", "s", "--storage", url)
    with Store.open(url) as store:
        store.studies.update(store.studies.load("s").id, state="running")
    assert json.loads(ok("front", "s", "--storage", url, "--json"))["ended_early"] is None


def test_where_nothing_but_fp32_was_measured_nothing_is_praised(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = begun(store)
        found = verbs.front("s", storage=url)
        assert found.standing.picks.best is not None
        (row,) = front_table(found.standing, found.mixes).rows
        assert row[0] == "FP32"
        assert "continue with `bitfront resume s --storage" in only_fp32_text(found.standing)
        study = found.standing.study.with_values(config={**found.standing.study.config, "trials": 1})
        assert "bitfront resume s --trials 20" in only_fp32_text(replace(found.standing, study=study))
        assert "nothing but FP32 was measured yet" in text_of(store)
        assert "trial 0" not in text_of(store)
        add(store, target, 1, evaluated((2, 2), 90.0, 0.5, 0.004), "baseline:int8")
        found = verbs.front("s", storage=url)
        assert front_table(found.standing, found.mixes).rows[0][0] == "best, accurate, fast, knee, FP32"
        assert only_fp32_text(found.standing) == ""


def test_a_trial_with_several_picks_stands_once(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = begun(store)
        add(store, target, 1, evaluated((2, 2), 20.0, 0.0, 0.004))
        text = text_of(store)
    assert text.count("trial 1:") == 1
    assert "best, accurate, fast, knee  trial 1: 20.0 ms" in text


def steps_of(now: Standing, step: StepRecord) -> list[str]:
    """Names of the rows of what recovery won back, had it tried this step."""
    record = RecoveryRecord("auto", (step,), step.final)
    data = {**now.study.data, "final": 100}
    tried = replace(now, target=now.target.with_values(recovery=record), study=now.study.with_values(data=data))
    return [row.step for row in study_rescue(tried)]


def test_what_recovery_won_back_is_no_merit_of_a_mix_without_int8(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    loss = LossEstimate(-0.03, -0.08, 0.02, 100)
    with Store.open(url, create=True) as store:
        target = begun(store)
        failed = StepRecord("bias", False, False, "it does not help", 1.0)
        kept = replace(failed, kept=True, final=loss)
        before = verbs.front("s", storage=url).standing
        assert steps_of(before, failed) == []
        assert steps_of(before, kept) == ["plain INT8", "bias"]
        add(store, target, 1, evaluated((1, 0), 20.0, 0.0, 0.004))
        assert steps_of(verbs.front("s", storage=url).standing, kept) == ["plain INT8", "bias"]
        add(store, target, 2, evaluated((2, 0), 10.0, 0.0, 0.004))
        assert steps_of(verbs.front("s", storage=url).standing, failed) == ["plain INT8", "best: trial 2"]


def test_an_engine_that_loses_more_than_its_emulation_is_told(tmp_path: Path) -> None:
    emulated = LossEstimate(0.011, 0.007, 0.015, 100)
    step = StepRecord("ranges", False, True, "it helps", 1.0, final=emulated)
    url = fresh_url("sqlite", tmp_path)

    def text(loss: float | None) -> str:
        now = verbs.front("s", storage=url).standing
        now.table.loss[now.table.role == "baseline:int8"] = loss
        target = now.target.with_values(recovery=RecoveryRecord("auto", (step,), emulated))
        return "".join(emulation_gap_notes(replace(now, target=target)))

    with Store.open(url, create=True) as store:
        target = begun(store)
        assert text(None) == ""
        add(store, target, 1, evaluated((2, 2), 20.0, 0.036, 0.004), "baseline:int8")
    assert text(0.012) == ""
    assert text(0.036).startswith("the engine in all INT8 loses 3.6 ± 0.4 % on the search samples, and 1.1 % by")


def test_latencies_that_are_mostly_doubtful_are_told_once(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = make_study(store)
        for trial, (codes, ms) in enumerate([((0, 0), 4.0), ((2, 2), 2.0), ((0, 2), 3.0)]):
            made = evaluated(codes, ms, (4.0 - ms) / 100, 0.0)
            assert made.latency is not None
            if trial:
                made = replace(made, latency=replace(made.latency, warnings=("unsteady",)))
            add(store, target, trial, made, "" if trial else "baseline:fp32")
    found = verbs.front("s", storage=url)
    table = front_table(found.standing, found.mixes)
    assert not any("doubtful" in cell for row in table.rows for cell in row)
    for width in (None, 80):
        assert "Only the latency of trial 0 is certain." in list(table.fit(width).sentences())


def test_a_line_names_two_reasons_of_a_doubtful_latency_and_two_digits() -> None:
    found = Remeasured(0, 44.28, 43.91, 3, ("a",), ("b", "c", "d", "e", "f"))
    assert change_text("trial 0", found) == "trial 0: 44 ms before, 44 ms now; still doubtful: b, c, and 3 more reasons"
