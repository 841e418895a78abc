"""The tables of benchmarks/results/samplers.md from samplers.json: pure functions of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table
from benchmarks.samplers.scores import NEAR, QUANTILES, curve, reached

MARKS = (10, 20, 30, 60, 100, 200)
JUDGED = (30, 60)
NAMES = {
    "resnet18_again": "ResNet-18",
    "mobilenet_v2_again": "MobileNetV2",
    "vit_small": "ViT-small",
}
GOAL_AFTER = 30

Results = Mapping[str, Any]


def text(results: Results, labels: Mapping[str, str]) -> str:
    """Every table; a line where nothing was measured."""
    networks = results.get("networks", {})
    if not networks:
        return "Nothing measured yet."
    parts = [simulators(networks), judged(results, labels)]
    for name in networks:
        parts += [shares(results, name, labels), budgets(results, name, labels)]
    return "\n\n".join(part for part in [*parts, refused(results)] if part)


def simulators(networks: Mapping[str, Any]) -> str:
    return "\n\n".join([_errors(networks), _truths(networks)])


def _errors(networks: Mapping[str, Any]) -> str:
    """A table of how far the fits are off on rows that were left out."""
    rows = []
    for name, figures in networks.items():
        held = figures["held_out"]
        latency = [f"{held[part]:.1%}" for part in ("latency", "latency_process", "latency_trees")]
        loss = [f"{100 * held[part]:.2f}" for part in ("loss", "loss_process", "loss_trees")]
        sampling = f"{100 * held['noise']:.2f}"
        ranks = f"{held['latency_rank']:.3f}", f"{held['loss_rank']:.3f}"
        rows.append([NAMES.get(name, name), f"{held['rows']:.0f}", *latency, ranks[0], *loss, sampling, ranks[1]])
    head = "held out: network|rows|latency|process alone|trees alone|ranks|loss, points|process alone|trees alone"
    return table(f"{head}|of it sampling|ranks".split("|"), rows)


def _truths(networks: Mapping[str, Any]) -> str:
    """A table of the simulated networks that are searched."""
    rows = []
    for name, figures in networks.items():
        noise, misfit = figures["noise"], figures["misfit"]
        source = f"from {noise['repeated']} repeats" if noise["repeated"] else "chosen"
        rows.append(
            [
                NAMES.get(name, name),
                f"{misfit[0]:.1%}, {misfit[1]:.1%}",
                f"{figures['not_additive']:.1%}",
                f"{noise['latency_sd']:.2%} ({source})",
                f"{noise['samples']}",
                f"{figures['front']} of {figures['tried']:,}",
                f"{figures['uniform_share']:.1%}",
            ]
        )
    head = "simulated: network|misfit of latency, of loss|best sum of groups and edges misses|noise of latency"
    return table(f"{head}|samples of a loss|best-known front|the uniform assignments' share of it".split("|"), rows)


def judged(results: Results, labels: Mapping[str, str]) -> str:
    """The guided sampler against its targets."""
    rows, trials = [], results["about"]["trials"]
    for name in results["networks"]:
        runs, goal = results["runs"].get(f"{name}|guided", {}), _goal(results, name)
        if goal is None:
            continue
        curves = np.array([curve(run["steps"], trials) for run in runs.values()])
        after = [_share(curves[:, mark - 1], True) for mark in JUDGED if mark <= trials]
        others = [(label, results["runs"].get(f"{name}|{method}", {})) for method, label in labels.items()]
        needed = [(_needed(of, goal), label) for label, of in others if of and label != labels["guided"]]
        trials_needed, quickest = min(needed, default=(np.inf, ""))
        reached_by = (
            f"{trials_needed / GOAL_AFTER:.1f}× ({quickest})" if np.isfinite(trials_needed) else "none gets there"
        )
        effort = reached_by if needed else ""
        near = [results["runs"].get(f"{name}|guided|{q:g}", {}) for q in QUANTILES]
        bands = [results["networks"][name]["budgets"][f"{q:g}"]["band"] for q in QUANTILES]
        of_all = [(list(of.values()), band) for of, band in zip(near, bands, strict=True)]
        met = [", ".join(_met(of, band, field) for of, band in of_all) for field in ("found", "near")]
        rows.append([NAMES.get(name, name), *after, effort, *met])
    head = ["targets", *(f"guided after {mark}" for mark in JUDGED if mark <= trials)]
    last = ["the quickest other needs, of 30", "budgets met, of seeds", "met within the latency's tie band"]
    return table([*head, *last], rows)


def shares(results: Results, name: str, labels: Mapping[str, str]) -> str:
    """Mean share of the best-known hypervolume after some trials, and the trials to reach what `guided` has at 30."""
    trials = results["about"]["trials"]
    marks, goal, rows = [mark for mark in MARKS if mark <= trials], _goal(results, name), []
    for method, label in labels.items():
        runs = results["runs"].get(f"{name}|{method}", {})
        if runs:
            curves = np.array([curve(run["steps"], trials) for run in runs.values()])
            made = min(run["trials"] for run in runs.values())
            cells = [_share(curves[:, mark - 1], mark in JUDGED) if mark <= made else "" for mark in marks]
            rows.append([label, str(len(runs)), *cells, *([] if goal is None else _effort(runs, goal, made))])
    head = [NAMES.get(name, name), "seeds", *(f"after {mark}" for mark in marks)]
    return table(head + ([] if goal is None else [f"trials to {goal:.1%}", "of 30"]), rows) if rows else ""


def _share(shares: NDArray[np.float64], spread: bool) -> str:
    return f"{shares.mean():.1%}" + (f" ± {shares.std(ddof=len(shares) > 1):.1%}" if spread else "")


def _needed(runs: Mapping[str, Mapping[str, Any]], goal: float) -> float:
    """Trials that the median seed needs to reach a share; infinite where it does not with those that it had."""
    return float(np.median([reached(run["steps"], goal) for run in runs.values()]))


def _tied(runs: Sequence[Mapping[str, float | None]], band: float, field: str = "found") -> int:
    """Seeds within a tenth of a point of the best, or within the tie band where that is wider."""
    gaps = [run.get(field) for run in runs]
    return sum(gap is not None and gap <= max(NEAR, band) for gap in gaps)


def _met(runs: Sequence[Mapping[str, float | None]], band: float, field: str) -> str:
    """`18 of 20`; nothing where some run was made before that was noted."""
    return f"{_tied(runs, band, field)} of {len(runs)}" if all(field in run for run in runs) else ""


def _effort(runs: Mapping[str, Mapping[str, Any]], goal: float, made: int) -> list[str]:
    """Trials that the median seed needs to reach a share, and how many times `GOAL_AFTER` that is."""
    median = _needed(runs, goal)
    if np.isfinite(median):
        return [f"{median:.0f}", f"{median / GOAL_AFTER:.1f}×"]
    return [f"more than {made}", f"more than {made / GOAL_AFTER:.1f}×"]


def budgets(results: Results, name: str, labels: Mapping[str, str]) -> str:
    """A table of how many seeds come near the best-known loss within each latency budget."""
    about, rows = results["networks"][name]["budgets"], []
    for method, label in labels.items():
        cells = []
        for q in QUANTILES:
            runs = results["runs"].get(f"{name}|{method}|{q:g}", {})
            if runs:
                cells.append(_near(list(runs.values()), about[f"{q:g}"]["band"]))
        if len(cells) == len(QUANTILES):
            rows.append([label, *cells])
    fastest = results["networks"][name].get("fastest_row", 0.0)
    names = [_budget(about[f"{q:g}"], fastest) for q in QUANTILES]
    return table([f"{NAMES.get(name, name)}, {results['about']['budget_trials']} trials", *names], rows)


def _budget(about: Mapping[str, float], fastest_ms: float) -> str:
    below = ", below every measured engine" if about["ms"] < fastest_ms else ""
    return f"≤ {about['ms']:.4f} ms (best {100 * about['loss']:.2f}, band {100 * about['band']:.2f}{below})"


def refused(results: Results) -> str:
    return "\n".join(f"- Not simulated: {reason}" for reason in results.get("refused", {}).values())


def _goal(results: Results, name: str) -> float | None:
    """The median share of `guided` after 30 trials."""
    runs, trials = results["runs"].get(f"{name}|guided", {}), results["about"]["trials"]
    if not runs or trials < GOAL_AFTER:
        return None
    return float(np.median([curve(run["steps"], trials)[GOAL_AFTER - 1] for run in runs.values()]))


def _near(runs: Sequence[Mapping[str, float | None]], band: float) -> str:
    """`seeds within a tenth of a point or the loss's tie band, the wider (within a tenth); median gap in points`.

    And, where that was noted, how many are so near if the latency's tie band is allowed for.
    """
    gaps = [np.inf if run["found"] is None else run["found"] for run in runs]
    median = float(np.median(gaps))
    gap = f"+{100 * median:.2f} points" if np.isfinite(median) else "none fits"
    near = f"; tie {_tied(runs, band, 'near')}" if all("near" in run for run in runs) else ""
    return f"{_tied(runs, band)} of {len(gaps)} ({_tied(runs, 0.0)}){near}; {gap}"
