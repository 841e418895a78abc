"""Picks: the one recommended, names that hold by the numbers shown, and the line that is looked at in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.metrics.registry import get_metric
from search.errors import StudyError
from studies.judging.rules.candidates import Aim, Candidates, aim_of
from studies.judging.rules.front import front
from studies.judging.rules.picks import MOST_IN_LINE, Picks, choose, knee, line, read_pick, ties
from studies.judging.rules.verdicts import margins, quantile
from studies.options.limits import Limits
from studies.options.quantities import format_metric, format_ms


def columns(
    latency_ms: list[float],
    loss: list[float],
    error: float | list[float] = 0.0,
    *,
    limit: float | None = None,
    fp32: int | None = None,
    band: float = 0.0,
    **changes: Any,
) -> Candidates:
    """Rows that keep all limits where their loss keeps `limit`; nothing was looked at on the final split."""
    n, los = len(loss), np.array(loss, float)
    errors = np.broadcast_to(np.asarray(error, float), (n,)).copy()
    margin = margins(los, errors, los, errors, Limits(max_drop=limit), higher_is_better=True)
    nothing = np.zeros(n, bool)
    given = {"eligible": margin >= 0, "fails": nothing, "holds": nothing, "final_margin": np.full(n, np.nan), **changes}
    on_front = front(latency_ms, los, band, 1.96 * errors, given["eligible"])
    lat = np.array(latency_ms, float)
    return Candidates(lat, los, errors, 1.96 * errors, margin, band, on_front=on_front, fp32=fp32, **given)


def best(aim: Aim, *rows: Any, **more: Any) -> int | None:
    return choose(columns(*rows, **more), aim).best


def marked(n: int, *rows: int) -> Any:
    return np.isin(np.arange(n), rows)


# -- what is recommended -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "metric", "aim"),
    [
        (Limits(), "top1", Aim.KNEE),
        (Limits(max_memory_bytes=1000), "top1", Aim.KNEE),
        (Limits(max_drop=0.01), "top1", Aim.FASTEST),
        (Limits(accuracy_limit=30), "sqnr", Aim.FASTEST),
        (Limits(latency_budget_ms=1), "top1", Aim.LEAST_LOSS),
        (Limits(latency_budget_ms=1, max_drop=0.01), "agreement", Aim.LEAST_LOSS),
        (Limits(latency_budget_ms=1), "agreement", Aim.KNEE),
        (Limits(latency_budget_ms=1, max_memory_bytes=9), "mse", Aim.KNEE),
    ],
)
def test_the_limits_say_what_the_best_is(limits: Limits, metric: str, aim: Aim) -> None:
    assert aim_of(limits, relative=get_metric(metric).needs_reference) is aim


def test_with_an_allowed_loss_the_best_is_the_fastest_that_keeps_it() -> None:
    assert best(Aim.FASTEST, [4.0, 3.0, 2.0, 1.0], [0.0, 0.001, 0.008, 0.03], limit=0.01, fp32=0) == 2


def test_the_fastest_that_are_clearly_below_the_limit_go_first_and_then_the_surest() -> None:
    """Trial 1 is the fastest by its estimate alone; trial 2 keeps the limit by 12 standard errors, trial 3 by 2."""
    rows = [4.0, 2.0, 2.5, 2.2], [0.0, 0.0099, 0.004, 0.00899]
    found = columns(*rows, 0.0005, limit=0.01, fp32=0)
    assert found.sure.tolist() == [True, False, True, False]
    assert line(found, Aim.FASTEST) == [3, 2, 1]
    assert choose(found, Aim.FASTEST).best == 2, "the surest, while nothing is known of the final split"
    final = {"holds": marked(4, 2, 3), "final_margin": np.array([np.nan, np.nan, 9.0, 1.7])}
    assert best(Aim.FASTEST, *rows, 0.0005, limit=0.01, fp32=0, **final) == 3, "its bound keeps the limit there"
    final["final_margin"][3] = 1.6
    assert best(Aim.FASTEST, *rows, 0.0005, limit=0.01, fp32=0, **final) == 2
    wide = columns(*rows, 0.01, limit=0.01, fp32=0)
    assert not wide.sure.any()
    assert line(wide, Aim.FASTEST)[0] == 2, "of none that is sure, the one nearest to it"


def test_the_bound_knows_how_many_were_tried() -> None:
    """One alone at 2.2 standard errors from the limit is sure; the fastest of sixty such is not."""
    alone = columns([4.0, 2.0], [0.0, 0.0078], 0.001, limit=0.01, fp32=0)
    many = columns([4.0, *np.linspace(2, 3, 60)], [0.0] + [0.0078] * 60, 0.001, limit=0.01, fp32=0)
    assert alone.sure[1]
    assert not many.sure[1:].any()


def test_within_a_budget_the_best_loses_least_and_of_ties_is_the_fastest() -> None:
    assert best(Aim.LEAST_LOSS, [3.0, 2.0, 1.0], [0.01, 0.02, 0.03]) == 0
    assert best(Aim.LEAST_LOSS, [3.0, 2.0, 1.0], [0.010, 0.0104, 0.030], 0.001) == 1
    assert best(Aim.LEAST_LOSS, [3.0, 2.0, 1.0], [0.010, 0.0106, 0.030], 0.001) == 0, "half a standard error, no more"
    assert best(Aim.LEAST_LOSS, [3.0, 2.0], [0.010, 0.009], [0.001, 0.02]) == 0, "by the upper bound of the loss"


@pytest.mark.parametrize("aim", Aim)
def test_fp32_is_the_best_only_where_nothing_faster_keeps_the_limits(aim: Aim) -> None:
    assert best(aim, [4.0, 3.9], [0.0, 0.009], 0.001, limit=0.01, fp32=0) == 1
    assert best(aim, [4.0, 3.9], [0.0, 0.011], 0.001, limit=0.01, fp32=0) == 0
    assert best(aim, [4.0, 4.1], [0.0, 0.0], 0.001, limit=0.01, fp32=0) == 0


@pytest.mark.parametrize("aim", Aim)
def test_what_ties_with_fp32_is_not_the_best_but_what_is_faster_beyond_the_band_is(aim: Aim) -> None:
    rows = [4.0, 3.95, 3.97], [0.0, -0.002, 0.001]
    assert best(aim, *rows, 0.001, limit=0.01, fp32=0, band=0.02) == 0
    assert best(aim, *rows, 0.001, limit=0.01, fp32=0, band=0.001) in (1, 2)
    assert best(aim, [*rows[0], 3.0], [*rows[1], 0.002], 0.001, limit=0.01, fp32=0, band=0.02) == 3
    slow = {"eligible": marked(3, 1, 2)}  # as where only what ties with FP32 is within the budget
    assert best(aim, *rows, 0.001, limit=0.01, fp32=0, band=0.02, **slow) in (1, 2)


def test_where_what_is_faster_fails_what_ties_with_fp32_is_not_the_best_though_it_holds() -> None:
    final: dict[str, Any] = {
        "fails": marked(3, 2),
        "holds": marked(3, 0, 1),
        "final_margin": np.array([9.0, 9.0, -1.0]),
    }
    more: dict[str, Any] = {"limit": 0.01, "fp32": 0, "band": 0.02, **final}
    assert best(Aim.FASTEST, [4.0, 3.95, 3.0], [0.0, 0.001, 0.002], 0.001, **more) == 0
    more["fails"], more["holds"] = marked(3, 0, 2), marked(3, 1)
    assert best(Aim.FASTEST, [4.0, 3.95, 3.0], [0.0, 0.001, 0.002], 0.001, **more) == 1, "FP32 fails itself"


@pytest.mark.parametrize("aim", [Aim.FASTEST, Aim.LEAST_LOSS])
def test_all_fp16_stands_for_a_mix_that_ties_with_it_but_not_for_one_that_loses_less(aim: Aim) -> None:
    """Row 1 is all FP16, row 2 a mix that is faster by noise alone."""
    rows, more = [4.0, 2.0, 1.98], {"limit": 0.01, "fp32": 0, "floats": (1,)}
    assert best(aim, rows, [0.0, 0.001, 0.0005], 0.001, band=0.02, **more) == 1
    assert best(aim, rows, [0.0, 0.001, 0.0005], 0.001, band=0.005, **more) == 2, "it is faster beyond the band"
    assert best(aim, rows, [0.0, 0.006, 0.0005], 0.001, band=0.02, **more) == 2, "something in it overflows"
    assert best(aim, rows, [0.0, 0.020, 0.0005], 0.001, band=0.02, **more) == 2, "it misses the limit"


def test_without_limits_the_best_is_the_knee() -> None:
    rows = [3.0, 1.2, 2.0, 1.0], [0.0, 0.3, 0.2, 1.0]
    found = choose(columns(*rows, fp32=0), Aim.KNEE)
    assert (found.best, found.knee, found.accurate, found.fast) == (1, 1, 0, 3)


# -- names hold by the numbers shown -----------------------------------------------------------------------------------


def test_names_hold_by_the_numbers_shown() -> None:
    """What ties in latency or loss by noise alone is told, and takes the name from nobody."""
    found = columns([3.0, 2.0, 1.0, 1.01], [0.000, 0.001, 0.100, 0.050], 0.002, band=0.02)
    chosen = choose(found, Aim.KNEE)
    assert (chosen.accurate, chosen.fast) == (0, 2)
    assert (ties(found, chosen, "accurate"), ties(found, chosen, "fast")) == ([1], [3])


def test_what_is_shown_as_the_same_is_decided_by_the_other_objective() -> None:
    chosen = choose(columns([1.00001, 1.00002, 2.0], [0.02, 0.01, 0.0]), Aim.KNEE)
    assert chosen.fast == 1


def test_a_best_that_ties_with_the_least_loss_says_so() -> None:
    found = columns([3.0, 2.0], [0.0100, 0.0104], 0.001)
    chosen = choose(found, Aim.LEAST_LOSS)
    assert (chosen.best, ties(found, chosen, "best")) == (1, [0])


CELLS = st.tuples(st.floats(0.5, 5), st.floats(-0.01, 0.1), st.floats(0, 0.02), st.booleans(), st.booleans())


@given(st.lists(CELLS, min_size=1, max_size=12), st.sampled_from(Aim))
def test_picks_keep_all_limits_and_are_least(rows: list[Any], aim: Aim) -> None:
    lat, los, error, eligible, fails = (list(column) for column in zip(*rows, strict=True))
    good = np.array(eligible) & ~np.array(fails)
    found = columns(lat, los, error, fp32=0, band=0.01, eligible=np.array(eligible), fails=np.array(fails))
    chosen = choose(found, aim)
    for name in ("accurate", "fast", "knee"):
        row = getattr(chosen, name)
        assert (row is None) == (not good.any())
        assert row is None or good[row]
    assert (chosen.best is None) == (not any(eligible))
    if chosen.fast is not None and chosen.accurate is not None:
        shown = [format_ms(lat[row]) for row in np.flatnonzero(good)]
        assert format_ms(lat[chosen.fast]) in shown
        assert float(format_ms(lat[chosen.fast]).split()[0]) == min(float(text.split()[0]) for text in shown)
        losses = [float(format_metric(los[row], "", False)) for row in np.flatnonzero(good)]
        assert float(format_metric(los[chosen.accurate], "", False)) == min(losses)
    if good.any() and any(good[row] for row in chosen.line):
        assert good[chosen.best]


def test_names_and_masks() -> None:
    chosen = Picks(1, 0, 1, 2, (), Aim.KNEE)
    assert [chosen.names(row) for row in range(4)] == [["accurate"], ["best", "fast"], ["knee"], []]
    assert (chosen.rows(), chosen.mask(4).tolist()) == ([1, 0, 2], [True, True, True, False])
    assert Picks(None, None, None, None, (), Aim.KNEE).rows() == []


def test_knee_is_farthest_below_the_line() -> None:
    lat, los = np.array([1.0, 1.2, 2.0, 3.0]), np.array([1.0, 0.3, 0.2, 0.0])
    for on_front, row in (([1, 1, 1, 1], 1), ([1, 0, 0, 1], 0), ([0, 0, 1, 0], 2), ([0, 0, 0, 0], None)):
        assert knee(lat, los, np.array(on_front, bool)) == row  # nothing below the line: the faster end


# -- the line ----------------------------------------------------------------------------------------------------------


def test_a_line_ends_with_the_safest() -> None:
    """Twenty mixes of which none is sure, and one that is slow and loses nothing."""
    losses = [0.0, *np.linspace(0.009, 0.0098, 20), 0.0]
    found = columns([4.0, *np.linspace(1, 2, 20), 3.9], losses, 0.02, limit=0.01, fp32=0)
    queue = line(found, Aim.FASTEST)
    assert len(queue) == MOST_IN_LINE
    assert 0 not in queue
    assert 21 in queue


def test_who_fails_on_the_final_split_is_no_pick_and_the_next_in_line_takes_its_place() -> None:
    rows, same = ([4.0, 1.0, 2.0, 3.0], [0.0, 0.006, 0.005, 0.004]), {"limit": 0.01, "fp32": 0}
    assert choose(columns(*rows, 0.001, **same), Aim.FASTEST).best == 1
    found = choose(columns(*rows, 0.001, fails=marked(4, 1), **same), Aim.FASTEST)
    assert (found.best, found.fast, found.line) == (2, 2, (1, 2, 3))


def test_a_fastest_that_only_just_holds_gives_way_to_the_next_that_holds_surely() -> None:
    rows = [4.0, 2.0, 2.03, 2.3], [0.0, 0.002, 0.001, 0.0005]
    final = {"holds": marked(4, 1, 2, 3), "final_margin": np.array([np.nan, 0.1, 6.0, 9.0])}
    assert best(Aim.FASTEST, *rows, 0.0001, limit=0.01, fp32=0, band=0.02, **final) == 2
    found = columns(*rows, 0.0001, limit=0.01, fp32=0, band=0.02, **final)
    assert ties(found, choose(found, Aim.FASTEST), "best") == [1]
    unsure = {**final, "final_margin": np.array([np.nan, 0.1, 0.2, 0.3])}
    assert best(Aim.FASTEST, *rows, 0.0001, limit=0.01, fp32=0, band=0.02, **unsure) == 1, "where none holds surely"
    later = {**final, "final_margin": np.array([np.nan, 0.1, 0.2, 9.0])}
    assert best(Aim.FASTEST, *rows, 0.0001, limit=0.01, fp32=0, band=0.02, **later) == 3, "also where it is slower"


def test_a_faster_one_that_nobody_looked_at_comes_before_what_is_kept_where_the_search_is_sure_of_it() -> None:
    """As after a limit was loosened: what was kept under the old one must not stay the best for ever."""
    latencies, losses = [4.0, 2.0, 2.1, 3.0], [0.0, 0.003, 0.003, 0.0005]
    final = {"holds": marked(4, 3), "final_margin": np.array([np.nan, np.nan, np.nan, 9.0])}
    more: dict[str, Any] = {"limit": 0.01, "fp32": 0, **final}
    assert best(Aim.FASTEST, latencies, losses, 0.001, **more) == 1
    assert best(Aim.FASTEST, latencies, losses, [0.001, 0.004, 0.001, 0.001], **more) == 2, "1 is clear and not sure"
    assert best(Aim.FASTEST, latencies, losses, 0.004, **more) == 3, "neither is sure"
    assert best(Aim.FASTEST, latencies, losses, 0.001, **{**more, "fails": marked(4, 1)}) == 2
    looked = {"holds": marked(4, 1, 3), "final_margin": np.array([np.nan, 0.1, np.nan, 9.0])}
    assert best(Aim.FASTEST, latencies, losses, 0.001, **{**more, **looked}) == 2, "1 was looked at and is only likely"
    assert best(Aim.FASTEST, [9.0, *latencies[1:]], losses, 0.001, band=0.5, **more) == 3, "as fast as it is"


def test_one_that_nobody_looked_at_does_not_displace_one_that_holds_and_ties_with_it() -> None:
    """Both keep the limit surely in the search; on the final split trial 2 holds by its estimate alone."""
    rows, scored = ([4.0, 1.99, 2.0], [0.0, 0.001, 0.001], 0.0005), marked(3, 2)
    more = {"limit": 0.01, "fp32": 0, "holds": scored, "final_margin": np.array([np.nan, np.nan, 0.5])}
    assert best(Aim.FASTEST, *rows, band=0.01, **more) == 2
    assert best(Aim.FASTEST, *rows, band=0.001, **more) == 1, "it is faster by more than chance"
    less_sure = [0.0, 0.001, 0.0095]
    assert best(Aim.FASTEST, rows[0], less_sure, 0.0005, band=0.01, **more) == 1


def test_one_that_holds_and_ties_comes_first_though_the_line_has_no_place_for_it() -> None:
    """Measured again, those that the final split was asked about came out a little slower than seven others."""
    n = MOST_IN_LINE + 3
    latencies, losses = [4.0, *np.linspace(2.0, 2.01, n - 2), 2.02], [0.0, *[0.0095] * (n - 2), 0.00955]
    scored, margin = marked(n, n - 1), np.where(marked(n, n - 1), 0.5, np.nan)
    more = {"limit": 0.01, "fp32": 0, "holds": scored, "final_margin": margin}
    given = columns(latencies, losses, 0.001, band=0.02, **more)
    assert n - 1 not in line(given, Aim.FASTEST)
    assert choose(given, Aim.FASTEST).best == n - 1
    assert best(Aim.FASTEST, latencies, losses, 0.001, band=0.001, **more) == 1, "they are faster by more than chance"


def test_one_that_surely_holds_and_ties_comes_first_though_a_slower_one_in_line_holds_surely_too() -> None:
    """As above, where losses are far below the limit and the line ends with all FP16, which was looked at."""
    n = MOST_IN_LINE + 4
    latencies, losses = [4.0, 3.0, *np.linspace(2.0, 2.01, n - 3), 2.02], [0.0, 0.0, *[0.0002] * (n - 2)]
    scored = marked(n, 1, n - 1)
    more = {"limit": 0.01, "fp32": 0, "holds": scored, "final_margin": np.where(scored, 5.0, np.nan)}
    given = columns(latencies, losses, 0.0005, band=0.02, **more)
    assert 1 in line(given, Aim.FASTEST)
    assert n - 1 not in line(given, Aim.FASTEST)
    assert choose(given, Aim.FASTEST).best == n - 1
    assert best(Aim.FASTEST, latencies, losses, 0.0005, band=0.001, **more) == 2, "they are faster by more than chance"
    unsure = {**more, "final_margin": np.where(scored, 5.0 * marked(n, 1), np.nan)}
    assert best(Aim.FASTEST, latencies, losses, 0.0005, band=0.02, **unsure) == 2, "it holds by its estimate alone"


def test_a_doubtful_latency_decides_no_pick_against_one_that_may_be_as_fast() -> None:
    rows, same = ([9.0, 2.0, 2.1, 3.5], [0.0, 0.003, 0.001, 0.0]), {"limit": 0.01, "fp32": 0, "band": 0.1}
    both, first = marked(4, 1, 2), marked(4, 1)
    assert best(Aim.FASTEST, *rows, 0.0005, **same, doubtful=marked(4)) == 1
    assert best(Aim.FASTEST, *rows, 0.0005, **same, doubtful=both) == 2, "of those that tie the one that loses least"
    found = choose(columns(*rows, 0.0005, **same, doubtful=both), Aim.FASTEST)
    assert (found.best, found.fast) == (2, 2)
    lossy = [9.0, 2.0, 2.1, 3.5], [0.0, 0.001, 0.003, 0.0]
    assert best(Aim.FASTEST, *lossy, 0.0005, **same, doubtful=first) == 2, "a latency without doubt comes first"
    assert best(Aim.FASTEST, *rows, 0.0005, limit=0.01, fp32=0, band=0.01, doubtful=both) == 1, "no tie, no doubt"
    final = {"holds": marked(4, 1), "final_margin": np.array([np.nan, 3.0, np.nan, np.nan])}
    assert best(Aim.FASTEST, *rows, 0.0005, **same, **final, doubtful=both) == 1, "the other was not looked at"


def test_a_doubtful_latency_makes_no_knee_where_another_would_be_it_within_the_doubt() -> None:
    """Rows 1 and 2 tie in latency and loss, and row 1 is the knee by a hair."""
    rows: Any = ([4.0, 2.0, 2.1, 1.0], [0.0, 0.020, 0.019, 0.1], 0.002)
    band = {"fp32": 0, "band": 0.1}
    found = {doubt: choose(columns(*rows, **band, doubtful=marked(4, *doubt)), Aim.KNEE) for doubt in KNEE_DOUBTS}
    assert {doubt: (picks.knee, picks.best) for doubt, picks in found.items()} == KNEE_DOUBTS
    far = [4.0, 2.0, 3.2, 1.0], [0.0, 0.020, 0.019, 0.1], 0.002
    assert best(Aim.KNEE, *far, **band, doubtful=marked(4, 1)) == 1, "no knee even then"


KNEE_DOUBTS: dict[tuple[int, ...], tuple[int, int]] = {
    (): (1, 1),
    (1,): (2, 2),
    (2,): (1, 1),
    (1, 2): (2, 2),  # both in doubt: the one that loses less
}


def test_a_doubtful_latency_decides_no_tie_of_losses() -> None:
    rows, band = ([3.0, 2.0, 2.1], [0.0100, 0.0104, 0.0104], 0.001), 0.1
    found = [best(Aim.LEAST_LOSS, *rows, band=band, doubtful=marked(3, *doubt)) for doubt in ((), (1,), (2,), (0, 1))]
    assert found == [1, 2, 1, 2], "the fastest of those that tie in loss, by a latency without doubt"
    same = columns([3.0, 2.0, 2.1], [0.2, 0.1, 0.1], band=band, doubtful=marked(3, 1))
    assert choose(same, Aim.KNEE).accurate == 2


def test_a_doubtful_latency_decides_no_score() -> None:
    rows, more = ([4.0, 2.0, 2.1], [0.0, 0.02, 0.019]), {"fp32": 0, "band": 0.1, "loss_unit": 0.1}
    name = "score:0.5,0.5"
    found = [
        choose(columns(*rows, **more, doubtful=marked(3, *doubt)), Aim.KNEE, [name]).row(name) for doubt in ((), (1,))
    ]
    assert found == [1, 2]


def test_where_all_in_line_fail_what_holds_there_is_recommended_else_fp32() -> None:
    rows, same = ([4.0, 1.0, 2.0], [0.0, 0.006, 0.005]), {"limit": 0.01, "fp32": 0}
    assert choose(columns(*rows, fails=marked(3, 1, 2), **same), Aim.FASTEST).best == 0
    every = choose(columns(*rows, fails=marked(3, 0, 1, 2), **same), Aim.FASTEST)
    assert (every.best, every.accurate, every.fast, every.knee) == (2, None, None, None)


def test_quantiles() -> None:
    assert quantile() == pytest.approx(1.645, abs=1e-3)
    assert quantile(two_sided=True) == pytest.approx(1.960, abs=1e-3)
    assert quantile(6, two_sided=True) == pytest.approx(2.631, abs=1e-3)
    assert quantile(0) == quantile(1)


# -- picks by a score --------------------------------------------------------------------------------------------------


def test_the_pick_by_a_score_has_the_largest_weighted_sum() -> None:
    """Against FP32's 10 ms: −0.012 + 0.16 = 0.148 of row 1, −0.06 + 0.2 = 0.14 of row 2."""
    found = columns([10.0, 6.0, 5.0], [0.0, 0.02, 0.1], fp32=0)
    names = ("score:0.6,0.4", "score:0,1", "score:1,0")
    chosen = choose(found, Aim.KNEE, names)
    assert dict(chosen.scored) == {"score:0.6,0.4": 1, "score:0,1": 2, "score:1,0": 0}
    assert "score:0,1" in chosen.names(2)
    assert chosen.row("score:0.6,0.4") == 1
    assert not choose(found, Aim.KNEE).scored, "only where they are asked for"


def test_a_pick_by_a_score_keeps_the_limits_here_and_on_the_final_split() -> None:
    rows = [10.0, 6.0, 5.0, 4.0], [0.0, 0.02, 0.03, 0.2]
    assert choose(columns(*rows, limit=0.1, fp32=0), Aim.FASTEST, ("score:0.6,0.4",)).scored == {"score:0.6,0.4": 2}
    fails = marked(4, 2)
    assert choose(columns(*rows, limit=0.1, fp32=0, fails=fails), Aim.FASTEST, ("score:0.6,0.4",)).scored == {
        "score:0.6,0.4": 1
    }


def test_a_score_compares_with_fp32() -> None:
    assert not choose(columns([6.0, 5.0], [0.02, 0.1]), Aim.KNEE, ("score:0.6,0.4",)).scored


def test_scores_that_noise_alone_tells_apart_are_said_to_tie() -> None:
    """Rows 1 and 2 are 0.008 apart, 0.6 · 1.96 · 0.01 = 0.0118 is noise; row 3 is 0.208 behind."""
    found = columns([10.0, 6.0, 5.0, 6.5], [0.0, 0.02, 0.1, 0.3], 0.01, fp32=0)
    assert ties(found, choose(found, Aim.KNEE, ("score:0.6,0.4",)), "score:0.6,0.4") == [2]
    exact = columns([10.0, 6.0, 5.0, 6.5], [0.0, 0.02, 0.1, 0.3], fp32=0)
    assert ties(exact, choose(exact, Aim.KNEE, ("score:0.6,0.4",)), "score:0.6,0.4") == []


def test_a_pick_by_a_score_has_one_name_however_it_is_written() -> None:
    assert read_pick("score:0.60, 0.4") == "score:0.6,0.4"
    assert read_pick("knee") == "knee"


@pytest.mark.parametrize("text", ["", "bets", "score", "score:", "score:1", "score:0,0", "score:-1,1", "0.6,0.4"])
def test_what_is_no_pick_is_refused(text: str) -> None:
    with pytest.raises(StudyError, match="there is no such pick; there are best, accurate, fast, knee, and score:ACC"):
        read_pick(text)
