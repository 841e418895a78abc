"""How far each search of a network came over its trials and its time: pure functions of the collected evaluations.

Knows nothing of any sampler. The best-known front of a network is that of all its evaluations together, whoever made
them; a share is a search's hypervolume over that front's, both from the reference point of a search (1.02 × the slowest
and 1.05 × the worst loss of the uniform assignments, latency on a log scale).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table
from benchmarks.samplers.scores import reached
from benchmarks.samplers.simulator.best_front import undominated
from studies.judging.rules.hypervolume import Reference, hypervolume, hypervolume_history, reference_of

LABELS = {
    "fresh": "guided",
    "study": "guided, within a latency budget",
    "tpe": "TPE, multivariate",
    "nsga2": "NSGA-II",
}
MARKS = (10, 20, 30, 40, 60, 100, 200)
# How many evaluations each search was to make.
_WANTED = {"fresh": 60, "study": 60, "tpe": 200, "nsga2": 200}
_WANTED_OF_MOBILENET = {**_WANTED, "fresh": 54, "tpe": 100, "nsga2": 100}
_UNIFORM = 3
_OPAQUE = "?"

Floats = NDArray[np.float64]
Row = Mapping[str, Any]


def read(folder: Path, networks: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of every network that was collected, as `rows.dump` wrote them."""
    files = {name: folder / f"{name}.json" for name in networks}
    return {name: json.loads(file.read_text())["rows"] for name, file in files.items() if file.exists()}


def judged(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Every search of a network against the best-known front of it; and how alike the same mix was measured again."""
    corner, pooled = corner_of(rows), pooled_ms(rows)
    best = front(rows, [row.get("lat", np.nan) for row in rows], corner)
    evened = front(rows, [pooled.get(row["a"], np.nan) for row in rows], corner)
    wanted = _WANTED_OF_MOBILENET if name.startswith("mobilenet_v2") else _WANTED
    searches = {source: [row for row in rows if row["source"] == source] for source in LABELS}
    return {
        "reference": {"ms": round(corner.latency_ms, 6), "loss": round(corner.loss, 6)},
        "evaluations": len(rows),
        "best": best,
        "pooled_best": evened,
        "searches": {
            source: {"wanted": wanted[source], **over(found, corner, best, evened, pooled)}
            for source, found in searches.items()
            if len(found) > _UNIFORM
        },
        "measured_again": measured_again(rows),
    }


def counts(row: Row) -> bool:
    """Whether an evaluation may stand on a front: built as asked, and scored on all images."""
    whole = "lat" in row and row.get("samples") == row.get("total") is not None
    return whole and all(got in (asked, _OPAQUE) for asked, got in zip(row["a"], row.get("got", ""), strict=False))


def corner_of(rows: Sequence[Row]) -> Reference:
    """One reference point for all searches: each uniform assignment's median over those that measured it."""
    uniform: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.get("role", "").startswith("baseline:") and "lat" in row:
            uniform[row["a"]].append((row["lat"], row["loss"]))
    ms, loss = np.array([np.median(found, axis=0) for found in uniform.values()]).T
    return reference_of(ms.tolist(), loss.tolist())


def pooled_ms(rows: Sequence[Row]) -> dict[str, float]:
    """Mix → median of all its latencies, whichever process measured them."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "lat" in row:
            found[row["a"]].append(row["lat"])
    return {mix: float(np.median(times)) for mix, times in found.items()}


def front(rows: Sequence[Row], latency_ms: Sequence[float], corner: Reference) -> dict[str, Any]:
    """The front of these rows, fastest first: `points` [ms, loss, source, trial]; and its `volume`."""
    ms, loss = np.asarray(latency_ms, float), np.array([row.get("loss", np.nan) for row in rows])
    fit = np.array([counts(row) for row in rows]) & (ms < corner.latency_ms) & (loss < corner.loss)
    kept = np.flatnonzero(fit)
    places = kept[undominated(ms[kept], np.maximum(loss[kept], 0.0))]
    points = [[round(float(ms[p]), 6), float(loss[p]), rows[p]["source"], rows[p].get("trial")] for p in places]
    return {"volume": hypervolume(ms[kept], loss[kept], corner), "points": points}


def over(rows: Sequence[Row], corner: Reference, best: Row, evened: Row, pooled: Mapping[str, float]) -> dict[str, Any]:
    """One search: its share over `trials` and over `seconds`, each [where, share], only where it rises.

    `pooled` is the last share when every mix counts with the median of all its measurements.
    """
    fit = [counts(row) for row in rows]
    loss, ms = [row.get("loss", np.nan) for row in rows], [row.get("lat", np.nan) for row in rows]
    shares = hypervolume_history(ms, loss, fit, corner) / best["volume"]
    even = hypervolume_history([pooled.get(row["a"], np.nan) for row in rows], loss, fit, corner) / evened["volume"]
    rises = np.flatnonzero(np.diff(shares, prepend=-1.0) > 0)
    steps = [[int(place) + 1, round(float(shares[place]), 5)] for place in rises]
    walls = [row.get("wall") for row in rows]
    return {
        "evaluations": len(rows),
        "failed": sum("failed" in row for row in rows),
        "share": round(float(shares[-1]), 5),
        "pooled": round(float(even[-1]), 5),
        "after": {str(mark): round(float(shares[mark - 1]), 5) for mark in MARKS if mark <= len(rows)},
        "trials": steps,
        "seconds": [[walls[place], round(float(shares[place]), 5)] for place in rises if walls[place] is not None],
        "wall_s": max((wall for wall in walls if wall is not None), default=None),
    }


def measured_again(rows: Sequence[Row]) -> dict[str, Any]:
    """Mixes that several processes built and measured, each on its own.

    `apart`: slowest over fastest less one, of every such mix; `between`: for two sources, the median of the latencies'
    ratio, which a whole process may be off by.
    """
    by_mix: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if "lat" in row:
            by_mix[row["a"]].setdefault(row["source"], row["lat"])
    shared = {mix: times for mix, times in by_mix.items() if len(times) > 1}
    apart = sorted(max(times.values()) / min(times.values()) - 1 for times in shared.values())
    sources = sorted({source for times in shared.values() for source in times})
    between = {}
    for i, one in enumerate(sources):
        for other in sources[i + 1 :]:
            ratios = [times[other] / times[one] for times in shared.values() if one in times and other in times]
            if ratios:
                between[f"{other} / {one}"] = {"mixes": len(ratios), "median": round(float(np.median(ratios)), 5)}
    if not apart:
        return {"mixes": 0}
    return {
        "mixes": len(apart),
        "median": round(float(np.median(apart)), 5),
        "most": round(apart[-1], 5),
        "above_1_percent": sum(each > 0.01 for each in apart),
        "between": between,
    }


def text(found: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Markdown: a table of the searches, one line on what was measured again for each network."""
    searches = [search for each in found.values() for search in each["searches"].values()]
    marks = [mark for mark in MARKS if any(str(mark) in search["after"] for search in searches)]
    head = ["network, search", "evaluations", *(f"after {mark}" for mark in marks), "last", "evened", "minutes"]
    rows = []
    for name, each in found.items():
        goal = each["searches"].get("fresh", each["searches"].get("study", {})).get("after", {}).get("30")
        for source, search in each["searches"].items():
            wanted = search["wanted"]
            count = f"{search['evaluations']}" + (f" of {wanted}" if search["evaluations"] < wanted else "")
            cells = [_percent(search["after"].get(str(mark))) for mark in marks]
            minutes = "" if search["wall_s"] is None else f"{search['wall_s'] / 60:.1f}"
            row = [f"{names.get(name, name)}, {LABELS[source]}", count, *cells, _percent(search["share"])]
            rows.append([*row, _percent(search["pooled"]), minutes, _to_reach(search, goal)])
    again = [f"- {names.get(name, name)}: {_again(each['measured_again'])}" for name, each in found.items()]
    return "\n".join(
        [
            table([*head, "trials to guided's 30"], rows),
            "",
            "The same mix, built and measured by several processes:",
            "",
            *again,
        ]
    )


def _to_reach(search: Mapping[str, Any], goal: float | None) -> str:
    if goal is None:
        return ""
    trial = reached(search["trials"], goal)
    return f"more than {search['evaluations']}" if np.isinf(trial) else f"{trial:.0f}"


def _again(found: Mapping[str, Any]) -> str:
    if not found["mixes"]:
        return "none yet."
    one = "mix was" if found["mixes"] == 1 else "mixes were"
    return (
        f"{found['mixes']} {one}; slowest over fastest {100 * found['median']:.2f} % apart in the median, "
        f"{100 * found['most']:.2f} % at most, {found['above_1_percent']} above 1 %. {_between(found['between'])}"
    ).rstrip()


def _between(found: Mapping[str, Mapping[str, Any]]) -> str:
    """How far whole processes are apart, where it was measured on more than a few mixes."""
    told = []
    for pair, ratio in found.items():
        one, _, other = pair.partition(" / ")
        if ratio["mixes"] > _UNIFORM:
            told.append(f"{LABELS.get(one, one)} took {ratio['median']:.3f} × of {LABELS.get(other, other)}")
    return f"In the median {'; '.join(told)}." if told else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
