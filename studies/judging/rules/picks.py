"""The picks: which of the evaluations that keep all limits are recommended.

The candidates for `best` are in a line: if the first fails on the final split, the next one takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from search.errors import StudyError
from search.values import Score
from studies.judging.rules.candidates import Aim, Candidates
from studies.judging.rules.front import front
from studies.judging.rules.verdicts import quantile
from studies.options.quantities import shown_number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

# More are rarely needed: in `tests/support/simulated_picks.py` the first or second in line holds nearly always.
MOST_IN_LINE = 6
# The first in line are the fastest of those whose loss is so many standard errors below the limit in the search. In
# searches of made-up worlds picks are 0.8 ± 0.4 % faster than with 1.5, and with 1.0 and six of them 1.8 ± 0.5 % slower
# (`benchmarks/results/worlds.md`): looks that fail widen the bound of all that come after them.
_CLEAR, _CLEAR_LOOKS = 2.0, 4
# Within a budget losses tie within this share of their band, half a standard error: all of the budget is allowed. With
# the whole band picks lose 0.3 points more there, for 0.9 % of the latency.
_TIED = 0.25
# Losses count as equally sure in steps of an eighth of what the bound asks: within a step the latency decides.
_STEPS = 8
_SHOWN = 1e-3  # of four digits that are shown, the last is no more than this share of the number
NAMES = ("best", "accurate", "fast", "knee")
_SCORE = "score:"


@dataclass(frozen=True)
class Picks:
    """Row numbers of the picks; None if no row keeps the limits.

    Attributes:
        best: the one recommended pick.
        accurate: the pick with the least loss, by the shown numbers.
        fast: the pick with the least latency, by the shown numbers.
        knee: the pick that is farthest below the line between the ends of the front.
        line: candidates for `best`, in the order in which they are scored on the final split.
        aim: the meaning of `best`.
        scored: `score:0.6,0.4` and the like, as far as they were asked for → the row with the largest score.
    """

    best: int | None
    accurate: int | None
    fast: int | None
    knee: int | None
    line: tuple[int, ...]
    aim: Aim
    scored: Mapping[str, int] = field(default_factory=dict)

    def row(self, name: str) -> int | None:
        """The row that is picked as this: one of `NAMES`, or a name of `scored`."""
        row: int | None = getattr(self, name) if name in NAMES else self.scored.get(name)
        return row

    def by_name(self) -> dict[str, int]:
        """Every pick that there is, by name, the best first."""
        rows = {name: self.row(name) for name in (*NAMES, *self.scored)}
        return {name: row for name, row in rows.items() if row is not None}

    def names(self, row: int) -> list[str]:
        """What a row is picked as: `best`, `accurate`, `fast`, `knee`, by a score, several, or nothing."""
        return [name for name, picked in self.by_name().items() if picked == row]

    def rows(self) -> list[int]:
        """The picks' rows, the best first, each once."""
        return list(dict.fromkeys(self.by_name().values()))

    def mask(self, n: int) -> Bools:
        """(n,) bool: which of n rows are picked."""
        result = np.zeros(n, bool)
        result[self.rows()] = True
        return result


def read_pick(text: str) -> str:
    """The name of a pick as it is typed: one of `NAMES`, or `score:` and two weights, which are written in one form.

    Raises:
        StudyError: it is none.
    """
    if text in NAMES:
        return text
    try:
        return score_name(Score.parse(text.removeprefix(_SCORE) if text.startswith(_SCORE) else ""))
    except ValueError:
        raise StudyError(
            f"--pick {text}: there is no such pick; there are {', '.join(NAMES)}, and score:ACCURACY,LATENCY with a "
            "weight of at least 0 for each, as score:0.6,0.4."
        ) from None


def score_name(score: Score) -> str:
    """The name of a pick by a score: `score:0.6,0.4`."""
    return f"{_SCORE}{score}"


def score_of(name: str) -> Score | None:
    """The weights of such a name; None of other picks."""
    return Score.parse(name.removeprefix(_SCORE)) if name.startswith(_SCORE) else None


def choose(columns: Candidates, aim: Aim, names: Sequence[str] = ()) -> Picks:
    """Choose the picks among rows that keep all limits and do not fail on the final split.

    `best` is the first in line that does not fail there. If the aim is the fastest mix, it is the first that holds
    there surely, or one before it that is faster, keeps the limits surely in the search and was not looked at there
    yet; in the place of that one, one that surely holds there and is as fast within the tie band, in line or not. If
    none in line holds surely, it is the one that keeps the limits most surely in the search and does not fail there, or
    one as sure and, within the tie band, as fast, that holds there, in line or not. If all in line fail, it is another
    row that holds there, then uniform FP32, then the row with the least upper bound of the loss.

    Args:
        names: of picks by a score, which are made beside the usual ones.
    """
    rows = np.flatnonzero(columns.eligible & ~columns.fails)
    queue = line(columns, aim)
    best = _best(columns, queue, aim)
    if not len(rows):
        return Picks(best, None, None, None, tuple(queue), aim)
    accurate = _settle_doubt(columns, lambda some: _least_shown(rows, some.loss, some.latency_ms), rows)
    fast = _settle_doubt(columns, lambda some: _least_shown(rows, some.latency_ms, some.loss), rows)
    scored = {name: row for name in names if (row := _largest_score(columns, rows, name)) is not None}
    return Picks(best, accurate, fast, _knee(columns, rows), tuple(queue), aim, scored)


def line(columns: Candidates, aim: Aim) -> list[int]:
    """Candidates for `best`, at most `MOST_IN_LINE`: sorted by how surely they keep the limits, then by the aim.

    If the aim is the fastest mix, the fastest that are clearly below the limit come before those: the surest are slow.
    Rows that are not faster than uniform FP32 beyond the tie band are left out, unless none is. The last one is the
    safest of the rest, so that the line ends with a mix of nearly no loss if there is one.
    """
    rows = columns.contenders
    if aim is Aim.KNEE:
        # The knee of the front; where that is uniform FP32, the knee of what is faster.
        knee_row = _knee(columns, np.flatnonzero(columns.eligible))
        if knee_row is not None and knee_row not in rows:
            knee_row = _knee(columns, rows)
        return [] if knee_row is None else [knee_row]
    ranked = _fastest_first(columns, rows) if aim is Aim.FASTEST else list(_by_loss(columns, rows))
    first = ranked[: MOST_IN_LINE - 1]
    rest = rows[~np.isin(rows, first)]
    return [*first, *([_least(rest, columns.upper, columns.latency_ms)] if len(rest) else [])]


def ties(columns: Candidates, chosen: Picks, name: str) -> list[int]:
    """Rows that a pick beats only by noise: they tie in its own objective and are better in the other one.

    The nearest to it in its own objective come first.
    """
    row, aim = chosen.row(name), chosen.aim
    by_loss = name == "accurate" or (name == "best" and aim is Aim.LEAST_LOSS)
    if row is None or name == "knee" or (name == "best" and aim is Aim.KNEE):
        return []
    good = columns.eligible & ~columns.fails
    if (score := score_of(name)) is not None:
        # The other rows whose scores are less by no more than noise, the largest first.
        rows = np.flatnonzero(good)
        scores = columns.scores(score)
        assert scores is not None
        near = rows[(rows != row) & (scores[row] - scores[rows] <= columns.score_noise(score, row)[rows])]
        return [int(each) for each in near[np.argsort(-scores[near], kind="stable")]]
    if name == "accurate":
        others, order = columns.loss_ties(row) & (columns.latency_ms < columns.latency_ms[row]), columns.loss
    elif by_loss:  # it is the fastest of those that tie with the least loss
        less = columns.loss[row] - columns.loss
        others, order = (less > 0) & (less <= np.maximum(columns.loss_band, columns.loss_band[row])), columns.loss
    else:
        others, order = columns.latency_ties(row) & (columns.loss < columns.loss[row]), columns.latency_ms
        if name == "best":  # a faster one that ties with it holds less surely on the final split
            passed_over = columns.holds & (columns.latency_ms < columns.latency_ms[row])
            others |= passed_over & (columns.latency_ms[row] <= columns.latency_ms * (1 + columns.latency_band))
    tie_rows = np.flatnonzero(good & others)
    return [int(each) for each in tie_rows[np.argsort(order[tie_rows], kind="stable")]]


def knee(latency_ms: Floats, loss: Floats, on_front: Bools) -> int | None:
    """The front's row farthest below the line between the front's fastest and its least lossy row.

    Both axes are scaled to the extent of the front. If rows tie, or no row is below the line, the faster row is taken;
    None for an empty front.
    """
    rows = np.flatnonzero(np.asarray(on_front, bool))
    if not len(rows):
        return None
    lat, los = np.asarray(latency_ms, float), np.asarray(loss, float)
    x = _scale_to_one(lat[rows])
    y = _scale_to_one(los[rows])
    fast = int(np.flatnonzero(rows == _least(rows, lat, los))[0])
    accurate = int(np.flatnonzero(rows == _least(rows, los, lat))[0])
    run, rise = x[accurate] - x[fast], y[fast] - y[accurate]
    # Proportional to the signed distance: positive on the side of fast and accurate.
    below = rise * run - rise * (x - x[fast]) - run * (y - y[accurate])
    # Rounding must not decide a tie.
    return _least(rows[below >= below.max() - 1e-12], lat, los)


def _fastest_first(columns: Candidates, rows: Rows) -> list[int]:
    """The fastest few that are clearly below the limit, then all by how surely they keep it."""
    clear = rows[columns.margin[rows] >= _CLEAR]
    order = np.lexsort((columns.loss[clear], columns.latency_ms[clear]))[:_CLEAR_LOOKS]
    return list(dict.fromkeys([*(int(row) for row in clear[order]), *_by_latency(columns, rows)]))


def _by_latency(columns: Candidates, rows: Rows) -> list[int]:
    """Rows by how surely they keep the accuracy limits, in steps, then by latency, then by loss."""
    order = np.lexsort((columns.loss[rows], columns.latency_ms[rows], -_sureness(columns)[rows]))
    return [int(row) for row in rows[order]]


def _sureness(columns: Candidates) -> Floats:
    """(n,) steps in which rows keep the accuracy limits in the search, more where they do so more surely."""
    steps: Floats = np.floor(_STEPS * np.minimum(columns.margin / columns.bound, 1.0))
    return steps


def _by_loss(columns: Candidates, rows: Rows) -> Iterator[int]:
    """The fastest of those that tie with the least upper bound of a loss, again and again; the sure ones first.

    Upper bounds tie within a share of the band of the least: a loss that is less well known does not tie by that alone.
    """
    left, upper = rows, columns.upper
    for _ in range(min(len(rows), MOST_IN_LINE)):
        sure = left[columns.sure[left]]
        pool = sure if len(sure) else left
        safest = _least(pool, upper, columns.latency_ms)
        tied = pool[upper[pool] <= upper[safest] + _TIED * columns.loss_band[safest]]
        row = _settle_doubt(columns, partial(_fastest_of, rows=tied), tied)
        yield row
        left = left[left != row]


def _best(columns: Candidates, queue: list[int], aim: Aim) -> int | None:
    alive = [row for row in queue if not columns.fails[row]]
    if alive and aim is Aim.FASTEST:
        return _settle_doubt(columns, partial(_fastest_in_line, queue=queue), alive)
    if alive:
        return alive[0]
    base = columns.fp32
    stays = base is not None and columns.eligible[base] and not columns.fails[base]
    able = columns.contenders if stays else np.flatnonzero(columns.eligible)
    holding = able[columns.holds[able]]
    if len(holding):
        return _settle_doubt(columns, partial(_fastest_of, rows=holding), holding)
    if stays:
        return base
    left = np.array(queue, np.intp) if queue else np.flatnonzero(columns.eligible)
    return _least(left, columns.upper, columns.latency_ms) if len(left) else None


def _fastest_in_line(columns: Candidates, queue: list[int]) -> int:
    """The row of this line that is best if that is the fastest; some of them do not fail on the final split."""
    if (sure := _first_sure(columns, queue)) is not None:
        return sure
    rows = [row for row in _by_latency(columns, np.array(queue, np.intp)) if not columns.fails[row]]
    # Nothing tells it from one that the final split was asked about, in line or not, which is known to hold there.
    as_sure = columns.holds & (_sureness(columns) == _sureness(columns)[rows[0]])
    first = (_tied_where(columns, as_sure, rows[0]) or rows)[0]
    return _as_sure_and_faster(columns, rows, first)


def _fastest_of(columns: Candidates, rows: Rows) -> int:
    return _least(rows, columns.latency_ms, columns.loss)


def _first_sure(columns: Candidates, queue: list[int]) -> int | None:
    """The first in line that holds surely on the final split, by a bound that allows for all looked at until then.

    Limits that were loosened, and latencies of finalists, make others faster of which nobody asked the final split: the
    first of those that the search is sure of, unless one that surely holds there, in line or not, ties with it.
    """
    looked_at, tries = columns.fails | columns.holds, 0
    for place, row in enumerate(queue):
        tries += int(looked_at[row])
        holds_surely = columns.holds & (columns.final_margin >= quantile(max(1, tries)))
        if holds_surely[row]:
            before = (each for each in queue[:place] if columns.sure[each] and not looked_at[each])
            faster = next((each for each in before if not columns.latency_ties(each)[row]), row)
            return row if faster == row else (_tied_where(columns, holds_surely, faster) or [faster])[0]
    return None


def _tied_where(columns: Candidates, wanted: Bools, row: int) -> list[int]:
    """The contenders of these that are no slower than this row beyond the tie band, the surest and fastest first."""
    rows = columns.contenders
    return _by_latency(columns, rows[(wanted & columns.latency_ties(row))[rows]])


def _as_sure_and_faster(columns: Candidates, queue: list[int], row: int) -> int:
    """This row, or the fastest in line that is no slower and, by the final split, no less sure to keep the limits."""
    rows = np.array(queue, np.intp)
    better = columns.holds[rows] & (columns.final_margin[rows] >= columns.final_margin[row])
    return _least(
        np.append(rows[better & (columns.latency_ms[rows] <= columns.latency_ms[row])], row),
        columns.latency_ms,
        columns.loss,
    )


def _settle_doubt(columns: Candidates, find: Callable[[Candidates], int], rows: Sequence[int] | Rows) -> int:
    """The row that `find` takes, unless a doubtful latency decides that; every pick that asks for latencies comes here.

    Of the rows that it may take as well, if the doubtful latencies are off by chance, those whose own latency is not
    doubtful come first, then the one that loses least.

    Args:
        rows: that may be taken.
    """
    taken = find(columns)
    if columns.doubtful is None or not columns.doubtful[taken]:
        return taken
    able = np.asarray(rows, np.intp)
    if columns.holds[taken]:  # what the final split was not asked about does not take the place of what holds there
        able = able[columns.holds[able]]
    order = np.lexsort((columns.latency_ms[able], columns.upper[able], columns.doubtful[able]))
    preferred = (int(row) for row in able[order])
    return next((row for row in preferred if row == taken or find(columns.favour_row(row)) == row), taken)


def _knee(columns: Candidates, rows: Rows) -> int | None:
    """The knee of those of the front that are among these rows and do not fail on the final split.

    Where none of the front is left, that of the front which the rows have without it.
    """
    good = np.zeros(len(columns.loss), bool)
    good[rows] = True
    good &= ~columns.fails
    on_front = columns.on_front & good
    if not on_front.any():
        on_front = front(columns.latency_ms, columns.loss, columns.latency_band, columns.loss_band, good)
    if not on_front.any():
        return None
    find = partial(_knee_of, on_front=on_front)
    return _settle_doubt(columns, find, np.flatnonzero(on_front))


def _knee_of(columns: Candidates, on_front: Bools) -> int:
    row = knee(columns.latency_ms, columns.loss, on_front)
    assert row is not None
    return row


def _largest_score(columns: Candidates, rows: Rows, name: str) -> int | None:
    """The row with the largest score, of equals the fastest; None where uniform FP32 was not measured."""
    score = score_of(name)
    if score is None or columns.scores(score) is None:
        return None
    return _settle_doubt(columns, partial(_first_by_score, rows=rows, score=score), rows)


def _first_by_score(columns: Candidates, rows: Rows, score: Score) -> int:
    scores = columns.scores(score)
    assert scores is not None
    return _least(rows, -scores, columns.latency_ms)


def _least_shown(rows: Rows, first: Floats, second: Floats) -> int:
    """The row with the least `first` as it is shown, then the least `second`, then the lowest number."""
    values, least = first[rows], first[rows].min()
    near = np.array(sorted(set(values[values <= least + _SHOWN * abs(least)].tolist())))  # np.unique imports much
    shown = [shown_number(float(value)) for value in near]
    same = near[sum(number == shown[0] for number in shown) - 1]  # they rise with the values
    return _least(rows[first[rows] <= same], second, first)


def _least(rows: Rows, first: Floats, second: Floats) -> int:
    """The row with the least `first`, then the least `second`, then the lowest number."""
    return int(_with_least(_with_least(rows, first), second).min())


def _with_least(rows: Rows, column: Floats) -> Rows:
    """The rows where a column is least, NaN aside; all rows where it is NaN in each."""
    values = column[rows]
    least = np.fmin.reduce(values)
    least_rows: Rows = rows if np.isnan(least) else rows[values == least]
    return least_rows


def _scale_to_one(values: Floats) -> Floats:
    """Values mapped to 0 … 1; all zero when they are equal."""
    extent = float(np.ptp(values))
    scaled: Floats = (values - values.min()) / (extent or 1.0)
    return scaled
