"""What the comparison with accuracy control showed, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.page import table
from benchmarks.peers.tables import points

Figures = Mapping[str, Any]
KINDS = ("control", "mix", "best")
FLOAT, INT8 = "fp32", "int8"
MOST_RATIO = 0.95  # of latencies, that is aimed at
MOST_SHARE = 0.5  # of evaluations


@dataclass(frozen=True)
class Ratio:
    """A ratio of latencies: the median over processes, and how far processes differ.

    Attributes:
        low, high: the lowest and the highest process; of ten or more, the second lowest and the second highest. With
            six processes or more the true median lies between them with a confidence of at least 96 %.
    """

    middle: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(times: Figures, one: str, other: str) -> Ratio:
    """Latency of one engine over that of another, process by process."""
    ratios = np.sort(np.array(times["ms"][one]) / np.array(times["ms"][other]))
    inner = 1 if len(ratios) >= 10 else 0
    return Ratio(float(np.median(ratios)), float(ratios[inner]), float(ratios[-1 - inner]))


def brief(step: str, row: Figures) -> str:
    """One line for the terminal."""
    if "failed" in row:
        return f"gave up: {row['failed'].splitlines()[-1]}"
    if step == "control":
        return f"{_kept(row)}; {row['judged']} + {row['ranked']} models, {row['seconds']:.0f} s"
    if step == "search":
        return f"{row['evaluations']} evaluations, {len(row['float_nodes'])} in float, {row['seconds']:.0f} s"
    if step == "losses":
        return ", ".join(f"{name} {points(loss)}" for name, loss in row["of_float"].items())
    return ", ".join(f"{name} {ratio_of(row, name, FLOAT).text}" for name in row["ms"] if name != FLOAT)


def text(results: Figures) -> str:
    """All tables of what is done."""
    parts = [effort_table(results), engine_table(results), verdict_table(results), int8_table(results)]
    return "\n\n".join(part for part in parts if part)


def effort_table(results: Figures) -> str:
    """What each tool ran, and how many weighted layers it keeps in float."""
    rows = []
    for name, control in results.get("control", {}).items():
        if "failed" in control:
            rows.append([*_about(name), "gave up", *[""] * 5])
            continue
        search = results.get("search", {}).get(name, {})
        ours = ["", "", ""] if "evaluations" not in search else _effort_of(search)
        models = f"{control['judged']} + {control['ranked']}"
        rows.append([*_about(name), _kept(control), models, f"{control['seconds']:.0f} s", *ours])
    head = ["network", "allowed drop", "NNCF keeps in float", "models judged + ranked", "takes"]
    return table([*head, "`best` keeps in float", "evaluations", "takes"], rows)


def engine_table(results: Figures) -> str:
    """Points lost and latency over FP32's of the three engines of every network and drop."""
    rows = []
    for name, times, losses in _finished(results):
        drop = name.partition("/")[2]
        engines = [f"{kind}-{drop}" for kind in KINDS]
        lost = [points(losses["of_float"][engine]) for engine in engines]
        rows.append([*_about(name), *lost, *(f"{ratio_of(times, engine, FLOAT).middle:.3f}" for engine in engines)])
    who = ["NNCF", "its mix by bitfront", "`best`"]
    head = [*(f"loss: {each}" for each in who), *(f"latency: {each}" for each in who)]
    return table(["network", "allowed drop", *head], rows)


def verdict_table(results: Figures) -> str:
    """`best` against NNCF's file and against its mix, and whether the target is met."""
    rows = []
    for name, times, losses in _finished(results):
        drop, control = name.partition("/")[2], results["control"][name]
        ratios = [ratio_of(times, f"best-{drop}", f"{kind}-{drop}") for kind in ("control", "mix")]
        more = losses["best_against"][f"control-{drop}"]
        share = results["search"][name]["evaluations"] / (control["judged"] + control["ranked"])
        verdict = judge(ratios, more, share) if control["reverted"] else "INT8 holds, nothing was put back"
        rows.append([*_about(name), *(ratio.text for ratio in ratios), points(more), f"{share:.2f}", verdict])
    head = ["latency of `best` ÷ NNCF's", "÷ its mix by bitfront", "`best` loses more than NNCF by"]
    return table(["network", "allowed drop", *head, "evaluations ÷ its", ""], rows)


def int8_table(results: Figures) -> str:
    """INT8 of bitfront, of every layer that it is offered for, from the study of the larger drop."""
    rows = []
    for network, times in results.get("times", {}).items():
        losses = [each for name, _, each in _finished(results) if name.partition("/")[0] == network]
        if losses and INT8 in times["ms"]:
            load = f"{min(times['load']):.1f} to {max(times['load']):.1f}"
            lost = points(losses[0]["of_float"][INT8])
            rows.append(
                [network, lost, ratio_of(times, INT8, FLOAT).text, f"{np.median(times['ms'][FLOAT]):.2f} ms", load]
            )
    return table(["network", "loss: bitfront, all INT8", "its latency ÷ FP32's", "FP32, batch of 16", "load"], rows)


def judge(ratios: list[Ratio], more: Figures, share: float) -> str:
    """Whether the target is met, or what misses it.

    Args:
        ratios: latency of `best` over that of NNCF's file, and of its mix.
        more: what `best` loses more than NNCF's file.
        share: evaluations over NNCF's models.
    """
    missed = [
        f"latency against {whom}{'' if ratio.low > MOST_RATIO else ' in doubt'}"
        for ratio, whom in zip(ratios, ("NNCF", "its mix"), strict=True)
        if ratio.high > MOST_RATIO
    ]
    missed += ["loss"] if more["low"] > 0 else []
    missed += ["evaluations"] if share > MOST_SHARE else []
    return f"missed: {', '.join(missed)}" if missed else "met"


def _finished(results: Figures) -> Iterator[tuple[str, Figures, Figures]]:
    """Name, times and losses of every network and drop that has all."""
    for name, losses in results.get("losses", {}).items():
        network, _, drop = name.partition("/")
        times = results.get("times", {}).get(network, {"ms": {}})
        if f"best-{drop}" in times["ms"] and "of_float" in losses:
            yield name, times, losses


def _about(name: str) -> list[str]:
    network, _, drop = name.partition("/")
    return [network, f"{100 * float(drop):g} points"]


def _kept(control: Figures) -> str:
    steps = len(control["reverted"])
    kept = f"{len(control['float_nodes'])} of {control['weighted']}"
    return f"{kept}, after {steps} {'step' if steps == 1 else 'steps'}" if steps else f"{kept}, INT8 holds"


def _effort_of(search: Figures) -> list[str]:
    return [f"{len(search['float_nodes'])}", f"{search['evaluations']}", f"{search['seconds']:.0f} s"]
