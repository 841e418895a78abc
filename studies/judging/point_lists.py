"""Lists of evaluations: the front, the picks, the rows of tables, and those whose engines are kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from studies.judging.points import Point
from studies.judging.standing import Standing

Bools = NDArray[np.bool_]


def front_and_picks(now: Standing) -> Bools:
    """(n,) front and picks, which need not be on it: what tables show."""
    result: Bools = now.judgement.front | now.picks.mask(len(now.table))
    return result


def engines_to_keep(now: Standing) -> Bools:
    """(n,) rows whose engines are kept: what is shown, the candidates for `best`, and uniform INT8 near the limits."""
    result = front_and_picks(now)
    result[list(now.picks.line)] = True
    if now.near_int8 is not None:
        result[now.near_int8] = True
    return result


def front_points(now: Standing) -> list[Point]:
    """Front and picks, fastest first."""
    return now.points(now.measures.fastest_first(front_and_picks(now)))


def table_points(now: Standing) -> list[Point]:
    """What a table of the front names: front, picks, what the final split ruled out, and baselines."""
    return now.points(table_rows(now))


def table_rows(now: Standing) -> list[int]:
    """Rows of `table_points`."""
    tried, keeps = now.final.tried_rows, now.judgement.keeps_final
    failed = [row for row in now.picks.line if tried[row] and not keeps[row]]
    order = now.measures.fastest_first
    shown, barred = order(front_and_picks(now)), order(now.judgement.barred_rows)
    return list(dict.fromkeys([*shown, *failed, *barred, *now.measures.baselines]))


def best_point(now: Standing) -> Point | None:
    """The recommended evaluation; None if there is none."""
    return None if now.picks.best is None else now.point(now.picks.best)


def pick_points(now: Standing) -> dict[str, Point]:
    """The picks by name, `best` first; those that nothing is picked as are absent."""
    rows = now.picks.by_name()
    return dict(zip(rows, now.points(list(rows.values())), strict=True))
