"""The tables of docs/benchmarks.md from benchmarks/results/samplers.json: pure functions of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replay.scores import NEAR, QUANTILES, median_curve, reached

BEGIN, END = "<!-- samplers begin: made by benchmarks/samplers.py --table -->", "<!-- samplers end -->"
MARKS = (10, 20, 30, 60, 100, 200)
NAMES = {
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNetV2",
    "vit_small": "ViT-small",
    "resnet18_random": "ResNet-18, random weights",
    "mobilenet_v2_random": "MobileNetV2, random weights",
}
GOAL_AFTER = 30

Results = Mapping[str, Any]


def write(results: Results, page: Path, labels: Mapping[str, str]) -> None:
    """Put the tables between their marks in a page; raises ValueError when it has none."""
    page.write_text(inserted(page.read_text(), text(results, labels)))


def inserted(page: str, tables: str) -> str:
    """`page` with `tables` between the marks, in place of what stood there."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r} once each in the page")
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def text(results: Results, labels: Mapping[str, str]) -> str:
    """Every table; a line where nothing was measured."""
    networks = results.get("networks", {})
    if not networks:
        return "Nothing measured yet."
    parts = [simulators(networks)]
    for name in networks:
        parts += [shares(results, name, labels), budgets(results, name, labels)]
    return "\n\n".join(part for part in [*parts, refused(results)] if part)


def simulators(networks: Mapping[str, Any]) -> str:
    rows = []
    for name, found in networks.items():
        held = found["held_out"]
        losses = "real" if found["trained"] else "made from the output error"
        rows.append(
            [
                NAMES.get(name, name),
                f"{held['rows']:.0f}",
                f"{held['latency']:.1%}, {held['latency_rank']:.3f}",
                f"{100 * held['loss']:.2f} points, {held['loss_rank']:.3f}",
                losses,
                f"{found['front']} of {found['tried']:,}",
                f"{found['uniform_share']:.1%}",
            ]
        )
    head = "simulated network|rows|held-out latency: median error, rank correlation|held-out loss|losses"
    return _table(f"{head}|best-known front|the uniform assignments' share of it", rows)


def shares(results: Results, name: str, labels: Mapping[str, str]) -> str:
    """Median share of the best-known hypervolume after some trials, and the trials to reach what `guided` has at 30."""
    trials = results["about"]["trials"]
    marks, goal, rows = [mark for mark in MARKS if mark <= trials], _goal(results, name), []
    for method, label in labels.items():
        runs = results["runs"].get(f"{name}|{method}", {})
        if runs:
            quartiles = median_curve(runs, trials)
            cells = [f"{low:.1%}–{high:.1%}" for low, _, high in [quartiles[:, mark - 1] for mark in marks[-1:]]]
            medians = [f"{quartiles[1, mark - 1]:.1%}" for mark in marks]
            needed = [] if goal is None else [_trials([reached(run["steps"], goal) for run in runs.values()], trials)]
            rows.append([label, str(len(runs)), *medians, *cells, *needed])
    head = [NAMES.get(name, name), "seeds", *(f"after {mark}" for mark in marks), f"quartiles after {marks[-1]}"]
    return _table("|".join(head + ([] if goal is None else [f"trials to {goal:.2%}"])), rows) if rows else ""


def budgets(results: Results, name: str, labels: Mapping[str, str]) -> str:
    """With a latency budget: how many seeds come near the best-known loss."""
    about, rows = results["networks"][name]["budgets"], []
    for method, label in labels.items():
        cells = []
        for q in QUANTILES:
            runs = results["runs"].get(f"{name}|{method}|{q:g}", {})
            if runs:
                cells.append(_near(list(runs.values()), about[f"{q:g}"]["band"]))
        if len(cells) == len(QUANTILES):
            rows.append([label, *cells])
    names = [f"≤ {about[f'{q:g}']['ms']:.4f} ms (best {100 * about[f'{q:g}']['loss']:.2f})" for q in QUANTILES]
    return _table("|".join([f"{NAMES.get(name, name)}, {results['about']['budget_trials']} trials", *names]), rows)


def refused(results: Results) -> str:
    return "\n".join(f"- Not simulated: {reason}" for reason in results.get("refused", {}).values())


def _goal(results: Results, name: str) -> float | None:
    """The median share of `guided` after 30 trials."""
    runs, trials = results["runs"].get(f"{name}|guided", {}), results["about"]["trials"]
    return float(median_curve(runs, trials)[1, GOAL_AFTER - 1]) if runs and trials >= GOAL_AFTER else None


def _trials(needed: Sequence[float], most: int) -> str:
    median = float(np.median(needed))
    return f"{median:.0f}" if np.isfinite(median) else f"more than {most}"


def _near(runs: Sequence[Mapping[str, float | None]], band: float) -> str:
    """`median gap in points; seeds within a tenth of a point / within the tie band`."""
    gaps = [np.inf if run["found"] is None else run["found"] for run in runs]
    median = float(np.median(gaps))
    gap = f"+{100 * median:.2f} points" if np.isfinite(median) else "none fits"
    near, tied = sum(gap <= NEAR for gap in gaps), sum(gap <= max(NEAR, band) for gap in gaps)
    return f"{gap}; {near}, {tied} of {len(gaps)}"


def _table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """Markdown; nothing without rows."""
    if not rows:
        return ""
    names = head.split("|")
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *rows])
