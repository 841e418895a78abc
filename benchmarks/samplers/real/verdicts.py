"""What the real searches of one network are worth: shares of the hypervolume and picks, as searched and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.samplers.real.digits import corner_of
from benchmarks.samplers.simulator.best_front import undominated
from studies.judging.rules.hypervolume import Reference, hypervolume, hypervolume_history

DROPS = (0.01, 0.003)
Run = Mapping[str, Any]


def front_of(run: Run) -> list[int]:
    """Places of the rows on a search's front, the fastest first; FP32 among them where nothing loses less."""
    places = np.array([place for place, row in enumerate(run["rows"]) if row[2]])
    ratio, loss = np.array([run["rows"][place][:2] for place in places]).T
    return places[undominated(ratio, np.maximum(loss, 0.0))].tolist()


def pick(run: Run, drop: float) -> int | None:
    """Place of the fastest row that loses no more than `drop` on the samples of the search."""
    kept = [place for place in front_of(run) if run["rows"][place][1] <= drop]
    return kept[0] if kept else None


def shares(runs: Mapping[str, Run]) -> dict[str, list[float]]:
    """Of each search, after each of its evaluations: its share of what all searches together gain.

    A gain is hypervolume less that of the uniform assignments, whose latencies and losses are the medians over all
    searches.
    """
    corner, base = _bounds(list(runs.values()))
    best = _volume([row for run in runs.values() for row in run["rows"]], corner)
    found = {}
    for name, run in runs.items():
        ratio, loss, complete = (np.array([row[i] for row in run["rows"]]) for i in range(3))
        history = hypervolume_history(ratio, loss, complete, corner)
        found[name] = [_share(float(volume), base, best) for volume in history]
    return found


def shares_again(runs: Mapping[str, Run], again: Run) -> dict[str, float]:
    """The share of each search's final front among all fronts, by what was measured of them again."""
    corner, base = _bounds([again])
    known = {row[3]: row for row in again["rows"]}
    uniform = [again["rows"][place] for place in again["uniform"]]
    fronts = {
        name: [*uniform, *(known[code] for code in codes_of_front(run) if code in known)] for name, run in runs.items()
    }
    best = _volume([row for rows in fronts.values() for row in rows], corner)
    return {name: _share(_volume(rows, corner), base, best) for name, rows in fronts.items()}


def codes_of_front(run: Run) -> list[str]:
    return [run["rows"][place][3] for place in front_of(run)]


def picks(run: Run, again: Run | None) -> list[dict[str, Any]]:
    """Of each limit in `DROPS` the pick: latency ratio and loss as searched, and measured again where it was."""
    known = {row[3]: row for row in again["rows"]} if again else {}
    found = []
    for drop in DROPS:
        place = pick(run, drop)
        if place is not None:
            row = run["rows"][place]
            found.append(
                {"drop": drop, "at": place + 1, "search": row[:2], "again": known.get(row[3], [None, None])[:2]}
            )
    return found


def _bounds(runs: Sequence[Run]) -> tuple[Reference, float]:
    """The corner of the hypervolume, and the volume of the uniform assignments."""
    count = min(len(run["uniform"]) for run in runs)
    uniform = np.array([[run["rows"][place][:2] for place in run["uniform"][:count]] for run in runs])
    ratio, loss = np.median(uniform, axis=0).T
    corner = corner_of(runs)
    return corner, hypervolume(ratio, loss, corner)


def _volume(rows: Sequence[Sequence[Any]], corner: Reference) -> float:
    kept = [row for row in rows if row[2]]
    return hypervolume([row[0] for row in kept], [row[1] for row in kept], corner)


def _share(volume: float, base: float, best: float) -> float:
    """Zero where nothing is gained at all."""
    return round((volume - base) / (best - base), 4) if best > base else 0.0
