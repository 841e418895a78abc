"""What the final split makes of picks: holds, fails, the next in line, disagreement; and what is said of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bitfront import verbs
from evaluators.backends.openvino.kind import OpenVinoKind
from search.values import Evaluation, Precision
from studies.export import export
from studies.judging.rules.verdicts import Verdict
from studies.judging.selection import find_row
from studies.judging.sentences.final_split import disagreement_text, final_notes
from studies.judging.sentences.gains import int8_everywhere_text, no_gain_text, other_runtime_text
from studies.judging.sentences.picks import numbers_text
from studies.judging.standing import Standing, engines_to_keep, front_and_picks, read_standing
from studies.options.limits import Limits
from studies.run import finalists
from studies.run.finalists import finalist_rows
from studies.run.finish import Finish
from studies.show.front_rows import front_json
from studies.show.report.builder import build_report
from studies.show.report.page import render_report
from studies.show.terminal.front_table import front_table
from studies.store import suggestions
from studies.store.store import Store
from studies.trials.ledger import Ledger
from tests.support.command_line import ok
from tests.support.study_rows import add, evaluated, fresh_url, make_study, scored

LIMIT = Limits(max_drop=0.01)
# Latency, loss and half of its interval: FP32, INT8, and mixes from the fastest that just keeps 1 % to the slowest.
POINTS = [(4.0, 0.0, 0.0007), (1.0, 0.1, 0.01), (2.0, 0.008, 0.0045), (2.5, 0.004, 0.003), (3.0, 0.0, 0.002)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return fresh_url("sqlite", tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url, create=True) as store:
        target = make_study(store, **{"max-drop": "1%"})
        for trial, (latency_ms, loss, half) in enumerate(POINTS):
            role = {0: "baseline:fp32", 1: "baseline:int8"}.get(trial, "")
            made = evaluated(tuple(int(bit) for bit in f"{trial:04b}"), latency_ms, loss, half)
            add(store, target, trial, made, role)
        yield store


def judged(store: Store, limits: Limits = LIMIT) -> Standing:
    study = store.studies.load("s")
    return read_standing(store, study, store.targets.of_study(study.id)[0], limits)


def score(store: Store, trial: int, loss: float, half: float) -> Standing:
    """Let a trial have this loss on the final split."""
    now = judged(store)
    accuracy = scored(loss, half)
    store.evaluations.set_final(int(now.table.id[trial]), accuracy)
    return judged(store)


def lines(store: Store, limits: Limits = LIMIT) -> dict[str, str]:
    """Trial → its row of the front's table as one line, in order."""
    now = judged(store, limits)
    mixes: Any = dict.fromkeys(now.table.id.tolist(), "mix")
    return {cells[1]: " | ".join(cells) for cells in front_table(now, mixes).rows}


def test_before_it_is_looked_at_a_pick_is_not_confirmed(store: Store) -> None:
    now = judged(store)
    assert now.picks.best == 3, "trial 2 is faster, and 8 ± 4.5 ‰ of many is not sure of 10 ‰"
    assert (now.picks.line, now.picks.fast) == ((3, 4, 2), 2)
    assert now.point(3).final.verdict is Verdict.UNCONFIRMED
    assert (now.point(2).not_sure, now.point(3).not_sure) == (True, False)
    assert list(lines(store)) == ["3", "1", "2", "4", "0"], "the best first, then fastest first"
    assert "| unseen |" in lines(store)["3"]
    assert lines(store)["2"].startswith("fast, knee | 2 ")
    assert "not certain to keep the limits" in lines(store)["2"]


def test_the_bound_on_the_final_split_tells_surely_from_just(store: Store) -> None:
    now = score(store, 3, 0.006, 0.004)
    assert now.point(3).final.verdict is Verdict.SURELY
    told = "2.50 ms, loss 0.4 ± 0.3 %; on the final split 0.6 %, ≤ 1.0 % (kept)"
    assert numbers_text(now, now.point(3)) == told
    now = score(store, 3, 0.008, 0.004)
    assert now.point(3).final.verdict is Verdict.HOLDS
    assert now.picks.best == 3


def test_the_next_in_line_takes_the_place_of_what_fails_and_its_interval_is_wider(store: Store) -> None:
    now = score(store, 3, 0.02, 0.004)
    assert (now.point(3).final.verdict, now.picks.best, now.picks.accurate) == (Verdict.FAILS, 4, 4)
    assert now.picks.knee != 3
    now = score(store, 4, 0.001, 0.003)
    assert (now.picks.best, now.point(4).final.tries) == (4, 2)
    final = now.point(4).final
    assert final.high - final.low == pytest.approx(0.006 * 2.2365 / 1.95996, rel=1e-3), "95 % of two"
    assert "| kept |" in lines(store)["4"]
    assert lines(store)["4"].endswith("2 were tried on the final samples")
    assert "| 2.0 %, ≤ 2.4 % | missed |" in lines(store)["3"]


def test_what_failed_in_line_stays_in_the_table(store: Store) -> None:
    score(store, 3, 0.02, 0.004)
    score(store, 4, 0.02, 0.004)
    now = score(store, 2, 0.02, 0.004)
    assert now.picks.best == 0, "uniform FP32, where nothing faster holds"
    assert {"2", "3", "4"} <= lines(store).keys()
    assert final_notes(now)[0] == (
        "none of the 3 candidates keeps the limits on the final split; trial 0 is recommended instead (kept)"
    )
    assert int(now.table.trial[find_row(now, None, None)]) == 0


def test_two_scores_that_differ_by_more_than_chance_are_told_with_both_together(store: Store) -> None:
    now = score(store, 2, 0.0247, 0.006)
    assert disagreement_text(now, now.point(2)) == (
        "trial 2: the search saw a loss of 0.8 %, the final split 2.5 %. They differ by more than chance explains. "
        "Both together: 1.4 ± 0.4 %"
    )
    assert disagreement_text(now, now.point(3)) == ""
    now.study.metric = {**now.study.metric, "relative": True}
    now = replace(now)
    assert disagreement_text(now, now.point(2)).startswith(
        "trial 2: the search saw top1 89.2 %, the final split 87.5 %."
    )
    now = score(store, 2, 0.012, 0.006)
    assert disagreement_text(now, now.point(2)) == ""
    score(store, 2, 0.0247, 0.006)
    now = judged(store)
    mixes: Any = dict.fromkeys(now.table.id.tolist(), "mix")
    found = front_json(now, mixes)
    faster = (
        "trial 2 is faster than the best (2.00 ms), but misses the limits on the final samples: it loses 2.5 %, ≤ 3.0 %"
    )
    assert found["notes"] == [disagreement_text(now, now.point(2)), f"{faster} there"]
    assert [row["disagreement"] is not None for row in found["rows"] if row["trial"] == 2] == [True]
    assert "Both together: 1.4 ± 0.4 %" in render_report(build_report(store, now))


def test_one_verdict_for_rows_that_are_no_picks(store: Store) -> None:
    """A row beyond the budget that keeps the allowed loss fails, in every place alike."""
    for trial in (3, 4):
        score(store, trial, 0.0, 0.002)
    now = judged(store, Limits(max_drop=0.01, latency_budget_ms=2.7))
    assert (now.point(3).final.verdict, now.point(4).final.verdict) == (Verdict.SURELY, Verdict.FAILS)
    assert judged(store, Limits()).point(4).final.verdict is Verdict.UNLIMITED


def test_limits_that_are_changed_later_judge_the_scores_that_there_are(store: Store, url: str) -> None:
    score(store, 3, 0.006, 0.004)
    found = json.loads(ok("front", "s", "--storage", url, "--json"))
    assert (found["best"]["trial"], found["best"]["final"], list(found)[2]) == (3, "kept", "best")
    assert found["best_is"] == "the fastest that keeps the limits"
    found = json.loads(ok("front", "s", "--storage", url, "--json", "--max-drop", "0.5%"))
    assert (found["best"]["trial"], found["best"]["final"]) == (4, "unseen")
    [row] = [row for row in found["rows"] if row["trial"] == 3]
    assert (row["final"], row["final_holds"], row["picks"]) == ("missed", False, [])
    found = json.loads(ok("front", "s", "--storage", url, "--json", "--max-drop", "20%"))
    assert (found["best"]["trial"], found["best"]["final"]) == (1, "unseen")


def test_finalists_are_the_picks_and_the_line_then_the_front(store: Store) -> None:
    now = judged(store)
    assert finalist_rows(now)[:3] == [3, 4, 2], "the best, then its line: time may be short"
    assert {*now.picks.rows(), *now.picks.line} <= {*finalist_rows(now)}


def test_an_accuracy_limit_is_held_by_a_bound_of_the_value(store: Store) -> None:
    """Of eight samples the value is known to about ten points: nothing near the limit is sure, whatever its loss."""
    limits = Limits(accuracy_limit=0.89)
    now = judged(store, limits)
    assert now.judgement.feasible.tolist() == [True, False, True, True, True]
    assert all(now.point(row).not_sure for row in (2, 3, 4))
    assert not judged(store, Limits(accuracy_limit=0.2)).point(2).not_sure


def test_samples_of_one_cluster_count_once_for_the_bound_of_a_value(store: Store) -> None:
    now = judged(store, Limits(accuracy_limit=0.6))
    assert not now.point(4).not_sure, "of eight samples 0.9 is three standard errors from it"
    together = now.study.with_values(data={"search": 8, "final": 8, "clusters": {"search": 2, "final": 2}})
    assert replace(now, study=together).point(4).not_sure


def test_what_did_not_run_as_asked_says_so_and_not_that_it_misses_limits(store: Store, url: str) -> None:
    target = judged(store).target.id
    other = evaluated((2, 2, 0, 2), 1.5, 0.0, 0.001, got=Precision.FP32.id)
    add(store, target, 9, other, "baseline:fp16")
    for options in ((), ("--max-drop", "none")):
        [line] = [
            line for line in ok("front", "s", "--storage", url, *options).splitlines() if line.startswith("FP16 ")
        ]
        assert line.split()[1] == "9"
        assert line.endswith("not in the requested precision: g000 ran in FP32 and 2 more")
    now = verbs.front("s", storage=url).standing
    assert list(now.details.mismatches.values()) == ["not in the requested precision: g000 ran in FP32 and 2 more"]


def test_without_limits_nothing_is_said_to_miss_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'b.db'}"
    with Store.open(url, create=True) as store:
        target = make_study(store)
        wrong: Evaluation = evaluated((2, 2), 1.5, 0.0, 0.001, got=Precision.FP32.id)
        add(store, target, 0, replace(wrong), "baseline:int8")
    printed = ok("front", "s", "--storage", url)
    assert "there is no evaluation to pick; none can be judged: 1 did not run in the precisions asked for" in printed
    assert not re.search("limits", printed)


# -- INT8 everywhere -------------------------------------------------------------------------------------------------

NEAR_INT8 = Limits(max_drop=0.095)  # the fixture's INT8 loses 10 ± 1 points: over the limit, and not surely


def test_int8_everywhere_near_the_limit_is_a_finalist_and_its_engine_is_kept(store: Store) -> None:
    assert 1 not in finalist_rows(judged(store)), "10 points are far from one"
    now = judged(store, NEAR_INT8)
    assert not now.judgement.feasible[1]
    assert 1 in finalist_rows(now)
    assert engines_to_keep(now)[1]
    assert judged(store, Limits(latency_budget_ms=3.0)).near_int8 is None, "no accuracy is asked for"
    assert judged(store, Limits(max_drop=0.095, latency_budget_ms=0.5)).near_int8 is None, "it is too slow anyway"


@pytest.mark.parametrize(
    ("loss", "half", "says"),
    [
        (0.06, 0.01, r"keeps the limits there with 95 % certainty, .*; --trial 1 exports it"),
        (0.09, 0.01, r"it is likely good enough, not surely; --trial 1 exports it"),
        (0.12, 0.01, r"that misses the limits$"),
    ],
)
def test_whether_int8_everywhere_is_enough_is_said_where_it_is_faster_than_the_best(
    store: Store, loss: float, half: float, says: str
) -> None:
    assert int8_everywhere_text(judged(store, NEAR_INT8)) == "", "not scored on the final samples yet"
    score(store, 2, 0.008, 0.004)
    score(store, 1, loss, half)
    now = judged(store, NEAR_INT8)
    assert now.picks.best == 2
    text = int8_everywhere_text(now)
    assert text.startswith("All INT8 (trial 1) is faster than the best: 1.00 ms against 2.00 ms. On the final samples")
    assert "the best 0.8 %, ≤ 1.2 %" in text
    assert re.search(says, text)
    assert now.point(1).final.tries == 2, "it is compared with the best alone, however many were tried"
    assert int8_everywhere_text(judged(store)) == "", "far from that limit nobody asks"


# -- who is looked at --------------------------------------------------------------------------------------------------


def ledger_of(store: Store, limits: Limits) -> Ledger:
    study = store.studies.load("s")
    return Ledger(store, cast(Any, None), study, store.targets.of_study(study.id)[0], limits, {})


def confirmed(
    store: Store, limits: Limits, losses: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> list[set[int]]:
    """What the end of a search looks at, batch by batch, where the device would measure these losses."""
    batches: list[set[int]] = []

    def confirm(work: Any, now: Standing, rows: list[int]) -> int:
        batches.append(set(rows))
        for row in rows:
            loss = losses.get(row, float(now.table.loss[row]))
            accuracy = scored(loss, 0.002)
            store.evaluations.set_final(int(now.table.id[row]), accuracy)
        return 0

    monkeypatch.setattr(finalists, "confirm", confirm)
    pace = SimpleNamespace(finalists_in_time=lambda now, lacking: len(lacking))
    work: Any = SimpleNamespace(ledger=ledger_of(store, limits), pace=pace)
    Finish(work, cast(Any, None), cast(Any, None), cast(Any, None))._confirm()
    return batches


def test_all_in_line_are_looked_at_side_by_side(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = confirmed(store, LIMIT, {}, monkeypatch)
    assert len(batches) == 1
    assert {2, 3, 4} <= batches[0]
    assert judged(store).point(3).final.verdict is Verdict.SURELY


def test_fp32_is_looked_at_where_all_in_line_fail(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed(store, LIMIT, {2: 0.02, 3: 0.02, 4: 0.02}, monkeypatch)
    now = judged(store)
    assert (now.picks.best, now.point(0).final.verdict) == (0, Verdict.SURELY)
    assert "trial 0 is recommended instead (kept)" in final_notes(now)[0]


def test_the_next_fast_one_is_looked_at_where_one_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve mixes are faster than any in line and keep the limit by luck; the next takes the name in each round."""
    target = judged(store).target.id
    for trial in range(5, 17):
        made = evaluated(tuple(int(bit) for bit in f"{trial:06b}"), 1.0 + trial / 100, 0.0099, 0.02)
        add(store, target, trial, made)
    batches = confirmed(store, LIMIT, dict.fromkeys(range(5, 17), 0.03), monkeypatch)
    now = judged(store)
    looked = set.union(*batches)
    assert now.picks.best == 3
    assert {now.point(row).final.verdict for row in now.picks.line if row in looked} >= {Verdict.SURELY}
    assert sum(map(len, batches)) == len(looked), "nothing is looked at twice"
    assert len(batches) <= 3


def test_an_export_looks_at_its_pick_first_and_takes_the_next_where_it_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After limits were changed nobody has looked at what they make the best."""
    asked: list[int] = []

    def confirm(work: Any, now: Standing, rows: list[int], *, timed: bool) -> int:
        assert not timed, "an export leaves the latencies of the study as they are"
        asked.extend(rows)
        losses = dict.fromkeys(rows, 0.2 if rows == [1] else 0.0)
        for row, loss in losses.items():
            accuracy = scored(loss, 0.002)
            store.evaluations.set_final(int(now.table.id[row]), accuracy)
        return 0

    limits = Limits(max_drop=0.15)
    told: list[str] = []
    monkeypatch.setattr(export, "confirm", confirm)
    work: Any = SimpleNamespace(ledger=ledger_of(store, limits), events=SimpleNamespace(note=told.append))
    now, row = export.confirm_pick(work, judged(store, limits), "best")
    said = "trial 1 was the best so far, but it misses the limits on the final samples; trial 2 is exported instead"
    assert told == [said]
    assert (asked, row, now.point(row).final.verdict) == ([1, 2], 2, Verdict.SURELY)
    assert export.confirm_pick(work, now, "best")[1] == 2
    assert asked == [1, 2], "what was looked at is not looked at again"
    assert told == [said], "the pick did not change this time"


def test_after_a_limit_was_loosened_an_export_looks_at_what_is_faster_than_what_was_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is not kept surely, it is told that what was kept is exported all the same."""
    score(store, 3, 0.006, 0.004)
    assert judged(store).picks.best == 3
    told: list[str] = []
    losses: dict[int, float] = {1: 0.1}

    def confirm(work: Any, now: Standing, rows: list[int], *, timed: bool) -> int:
        assert not timed
        for row in rows:
            store.evaluations.set_final(int(now.table.id[row]), scored(losses.pop(row), 0.01))
        return 0

    limits = Limits(max_drop=0.15)
    monkeypatch.setattr(export, "confirm", confirm)
    work: Any = SimpleNamespace(ledger=ledger_of(store, limits), events=SimpleNamespace(note=told.append))
    before = judged(store, limits)
    assert (before.picks.best, before.point(1).final.verdict) == (1, Verdict.UNCONFIRMED)
    now, row = export.confirm_pick(work, before, "best")
    assert (row, now.point(row).final.verdict, told) == (1, Verdict.SURELY, [])
    losses |= {1: 0.149, 2: 0.149}
    now, row = export.confirm_pick(work, before, "best")
    assert (row, now.point(row).final.verdict, losses) == (3, Verdict.SURELY, {}), "the next fast one was looked at too"
    assert {now.point(each).final.verdict for each in (1, 2)} == {Verdict.HOLDS}
    assert told == [
        "trial 1 was the best so far, but its figures on the final samples are worse; trial 3 is exported instead"
    ]


def test_where_no_mix_is_measurably_faster_than_fp32_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = make_study(store, **{"max-drop": "1%"})
        add(store, target, 0, evaluated((0, 0), 4.0, 0.0, 0.0007), "baseline:fp32")
        assert no_gain_text(judged(store)) == "", "nothing else was measured"
        add(store, target, 1, evaluated((2, 0), 3.9, 0.0, 0.001))
        store.targets.settle(target, details={}, latency_band=0.125)
        said = (
            "No mix that keeps the limits is measurably faster than FP32 here (tie band 12 %); you can stay with FP32"
        )
        assert no_gain_text(judged(store)) == said
        assert f"{said}." in " ".join(ok("front", "s", "--storage", url).split())
        monkeypatch.setattr(OpenVinoKind, "explain_missing", lambda self: "")
        way = suggestions.command("worker", "s", "--new-target", "--backend", "openvino", storage=url)
        hint = f"Another runtime is installed, in which INT8 may be faster: `{way}` tries openvino"
        assert other_runtime_text(judged(store)) == hint
        assert " ".join(ok("front", "s", "--storage", url).split()).count("Another runtime is installed") == 1
        assert render_report(build_report(store, judged(store))).count("Another runtime is installed") == 1
        found = judged(store)
        on_gpu = replace(found, target=found.target.with_values(target=replace(found.target.target, relative=False)))
        assert other_runtime_text(on_gpu) == ""
        monkeypatch.setattr(OpenVinoKind, "explain_missing", lambda self: "not installed")
        assert other_runtime_text(judged(store)) == ""
        assert f"{said}." in render_report(build_report(store, judged(store)))
        add(store, target, 2, evaluated((2, 2), 3.0, 0.0, 0.001))
        assert no_gain_text(judged(store)) == ""
        monkeypatch.setattr(OpenVinoKind, "explain_missing", lambda self: "")
        assert other_runtime_text(judged(store)) == "", "something is gained"


def test_what_may_become_the_best_when_it_is_measured_again_keeps_its_engine(store: Store) -> None:
    """On an H200 the recommended plans took 7 % longer when opened again, and the next ones had no engine any more."""
    target = store.targets.of_study(store.studies.load("s").id)[0].id
    latencies_ms = [2.60, 2.62, 2.64, 2.66, 3.2, 3.4, 3.6, 3.8]
    for trial, latency_ms in enumerate(latencies_ms, start=5):
        codes = tuple(int(bit) for bit in f"{trial:04b}")
        add(store, target, trial, evaluated(codes, latency_ms, 0.0095, 0.0002))
    now = judged(store)
    shown = front_and_picks(now)
    shown[list(now.picks.line)] = True
    assert now.picks.best == 3
    assert not shown[5:].all(), "some would not be kept for what is shown"
    near = now.measures.latency_ms < 2.7
    assert engines_to_keep(now)[5:].tolist() == (shown | near)[5:].tolist()
