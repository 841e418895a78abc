"""What all studies of the trust benchmark together show: the counts that were asked for, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.page import table
from benchmarks.trust.studies import NETWORKS

Run = Mapping[str, Any]
Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Count:
    """In how many studies something holds.

    Attributes:
        applies: in how many it had to be shown; elsewhere it holds for want of a claim.
        wanted: how many of 25.
    """

    what: str
    holds: int
    applies: int
    studies: int
    wanted: int

    @property
    def met(self) -> bool | None:
        """None before all 25 studies are there."""
        return self.holds >= self.wanted if self.studies >= 25 else None


def drop_of(name: str) -> float:
    """The limit of a study by its name, NETWORK-SEED."""
    return NETWORKS[name.rpartition("-")[0]].drop


def keeps(name: str, run: Run) -> bool:
    """Whether the fresh loss of `best`, as estimated, is within the limit."""
    return bool(run["fresh"]["loss"] <= drop_of(name))


def covers(run: Run, *, alone: bool = False) -> bool:
    """Whether the stated interval of the final loss covers the fresh loss.

    The fresh loss is an estimate too. It counts as covered where both differ by no more than the root of the sum of
    the squares of the half-widths that face each other.

    Args:
        alone: the fresh estimate itself has to lie within the stated interval.
    """
    final, fresh = run["final"], run["fresh"]
    apart = fresh["loss"] - final["loss"]
    stated = final["loss_high"] - final["loss"] if apart > 0 else final["loss"] - final["loss_low"]
    own = fresh["loss"] - fresh["low"] if apart > 0 else fresh["high"] - fresh["loss"]
    return bool(abs(apart) <= (stated if alone else np.hypot(stated, own)) + 1e-12)


def counts(runs: Runs) -> list[Count]:
    total = len(runs)

    def claim(what: str, wanted: int, made: Callable[[Run], bool]) -> Count:
        names = [name for name, run in runs.items() if made(run)]
        broken = sum(not keeps(name, runs[name]) for name in names)
        return Count(what, total - broken, len(names), total, wanted)

    def plain(what: str, wanted: int, holds: Iterable[bool]) -> Count:
        return Count(what, sum(holds), total, total, wanted)

    return [
        claim("`best` was called *surely*: its fresh loss is within the limit", 24, lambda run: bool(run["surely"])),
        claim("`best` was called held: its fresh loss is within the limit", 20, lambda run: run["held"] is True),
        plain("the stated interval covers the fresh loss", 22, (covers(run) for run in runs.values())),
        plain("`best` is not FP32", 15, (not run["is_fp32"] for run in runs.values())),
    ]


def text(runs: Runs) -> str:
    """The counts and every study, in Markdown."""
    rows = []
    for each in counts(runs):
        verdict = {True: "met", False: "missed", None: "not all were run"}[each.met]
        rows.append([each.what, f"{each.holds} of {each.studies}", str(each.applies), f"≥ {each.wanted}", verdict])
    counted = table(["in how many studies", "studies", "of them claimed", "wanted", ""], rows)
    return "\n\n".join([counted, "\n".join(_beside(runs)), _by_network(runs), _every(runs)])


def _beside(runs: Runs) -> list[str]:
    """Lines about what the counts do not show."""
    alone = sum(covers(run, alone=True) for run in runs.values())
    wrong = [name for name, run in runs.items() if run["held"] and run["fresh"]["low"] > drop_of(name)]
    ratios = [ratio for run in runs.values() if (ratio := run["fastest"]["best_over_it"])]
    lines = [f"- The fresh estimate itself lies within the stated interval in {alone} of {len(runs)}."]
    named = f": {', '.join(wrong)}" if wrong else ""
    lines.append(f"- Called held, with the fresh interval wholly beyond the limit: {len(wrong)}{named}.")
    if ratios:
        lines.append(
            "- Latency of `best` over that of the fastest evaluated mix that holds on the fresh samples: "
            f"{np.median(ratios):.3f} in the median, {min(ratios):.3f} to {max(ratios):.3f}."
        )
    return lines


def _by_network(runs: Runs) -> str:
    heads = ["network", "FP32, fresh", "FP32, studies", "all INT8: latency", "all INT8: loss in the search"]
    heads += ["`best`: latency", "`best`: fresh loss", "over the fastest that holds"]
    rows = []
    for network in NETWORKS:
        own_runs = [run for name, run in runs.items() if name.rpartition("-")[0] == network]
        if not own_runs:
            continue
        int8 = [run["uniform"]["int8"] for run in own_runs if "int8" in run["uniform"]]
        cells = [
            network,
            _share([run["float"]["fresh"] for run in own_runs]),
            _share([run["float"]["study"] for run in own_runs]),
            _times([each["over_fp32"] for each in int8]),
            _points([each["search_loss"] for each in int8]),
            _times([run["over_fp32"] for run in own_runs]),
            _points([run["fresh"]["loss"] for run in own_runs]),
            _times([run["fastest"]["best_over_it"] or np.nan for run in own_runs]),
        ]
        rows.append(cells)
    return table(heads, rows)


def _every(runs: Runs) -> str:
    heads = [
        "study",
        "`best`",
        "× FP32",
        "search",
        "final, stated",
        "fresh",
        "was called",
        "over the fastest",
        "seconds",
    ]
    rows = []
    for name, run in runs.items():
        over, fresh = run["fastest"]["best_over_it"], run["fresh"]
        half = (fresh["high"] - fresh["low"]) / 2
        cells = [
            name.replace("-", ", seed "),
            "FP32" if run["is_fp32"] else f"trial {run['trial']}",
            f"{run['over_fp32']:.3f}",
            f"{100 * run['search']['loss']:.2f}",
            f"{100 * run['final']['loss']:.2f} ({_ends(run['final'])})",
            f"{100 * fresh['loss']:.2f} ± {100 * half:.2f}" + ("" if keeps(name, run) else ", beyond"),
            str(run["verdict"] or ("held" if run["held"] else "not held")),
            "" if over is None else f"{over:.3f}",
            f"{sum(run['seconds'].values()):.0f}",
        ]
        rows.append(cells)
    return table(heads, rows)


def _ends(part: Mapping[str, float]) -> str:
    return f"{100 * part['loss_low']:.2f} to {100 * part['loss_high']:.2f}"


def _share(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.1f} %"


def _times(values: Sequence[float]) -> str:
    return f"{np.nanmedian(values):.3f} ×" if len(values) and not np.isnan(values).all() else ""


def _points(values: Sequence[float]) -> str:
    return f"{100 * min(values):.2f} to {100 * max(values):.2f}" if values else ""
