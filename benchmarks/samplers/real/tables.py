"""What the real searches showed, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.page import table
from benchmarks.samplers.real import verdicts
from benchmarks.samplers.real.networks import NETWORKS
from benchmarks.samplers.real.searches import METHODS

MARKS = (10, 20, 40, 120)
NAMES = {"guided": "guided", "one-shot": "one shot, then hill climbing", "tpe": "TPE, multivariate"}
Runs = Mapping[str, Mapping[str, Any]]


def text(found: Mapping[str, Any]) -> str:
    """All tables of what is done."""
    networks = [name for name in NETWORKS if runs_of(found, name)]
    if not networks:
        return "It has not been run yet."
    return "\n\n".join([network_table(found, networks), share_table(found, networks), pick_table(found, networks)])


def runs_of(found: Mapping[str, Any], network: str) -> Runs:
    """`METHOD-SEED` → run."""
    return {key.partition("/")[2]: run for key, run in found["runs"].items() if key.startswith(f"{network}/")}


def network_table(found: Mapping[str, Any], networks: Sequence[str]) -> str:
    """What was searched, and how far latencies of one engine differ."""
    rows = []
    for name in networks:
        runs, about = list(runs_of(found, name).values()), NETWORKS[name]
        uniform = np.median([[run["rows"][place][:2] for place in run["uniform"]] for run in runs], axis=0)
        bands = [run["band"] for run in (*runs, *_again(found, name))]
        rows.append(
            [
                f"`{name}`",
                about.case.kind,
                about.case.metric,
                f"`{about.recover}`",
                f"{len(runs[0]['rows'][0][3])}",
                f"{uniform[-1][0]:.2f} × FP32, {100 * uniform[-1][1]:.2f}",
                f"{min(bands):.1%} to {max(bands):.1%}",
            ]
        )
    head = ["network", "kind", "metric", "`--recover`", "decisions", "all INT8: latency, points lost", "tie band"]
    return table(head, rows)


def share_table(found: Mapping[str, Any], networks: Sequence[str]) -> str:
    """Shares of the gain over the uniform assignments; every seed, in per cent."""
    rows = []
    for network in networks:
        runs = runs_of(found, network)
        shares = verdicts.shares(runs)
        again = [verdicts.shares_again(runs, each) for each in _again(found, network)]
        for method, mine in by_method(runs).items():
            after = [
                _percents([shares[name][mark - 1] for name in mine if len(shares[name]) >= mark]) for mark in MARKS
            ]
            anew = _percents([each[name] for each in again for name in mine])
            rows.append([f"`{network}`", NAMES[method], str(len(mine)), *after, anew])
    return table(["network", "method", "seeds", *(f"after {mark}" for mark in MARKS), "its front again"], rows)


def pick_table(found: Mapping[str, Any], networks: Sequence[str]) -> str:
    """The fastest mix within each limit on the samples of the search; every seed."""
    rows = []
    for network in networks:
        runs, again = runs_of(found, network), next(iter(_again(found, network)), None)
        picked = {name: verdicts.picks(run, again) for name, run in runs.items()}
        for place, drop in enumerate(verdicts.DROPS):
            for method, mine in by_method(runs).items():
                each = [picked[name][place] for name in mine if len(picked[name]) > place]
                cells = [
                    _each(f"{pick[when][item] * factor:.{digits}f}" for pick in each if pick[when][item] is not None)
                    for when in ("search", "again")
                    for item, factor, digits in ((0, 1, 3), (1, 100, 2))
                ]
                rows.append([f"`{network}`", f"{drop:.1%}", NAMES[method], *cells, _each(pick["at"] for pick in each)])
    head = ["network", "most loss", "method", "× FP32", "points lost", "× FP32 again", "points lost, fresh samples"]
    return table([*head, "found at"], rows)


def by_method(runs: Runs) -> dict[str, list[str]]:
    """Method → names of its runs, by seed."""
    names = {method: sorted(name for name in runs if name.rpartition("-")[0] == method) for method in METHODS}
    return {method: mine for method, mine in names.items() if mine}


def _again(found: Mapping[str, Any], network: str) -> list[Mapping[str, Any]]:
    """What was measured again; nothing while it is not there."""
    return [found["again"][network]] if network in found["again"] else []


def _percents(values: Sequence[float]) -> str:
    return _each(f"{100 * value:.0f}" for value in values)


def _each(values: Any) -> str:
    return " / ".join(str(value) for value in values)
