"""Every CPU benchmark, and one table: figure, measured, target, met or missed. What `make bench` runs.

Each figure is a ratio against a baseline of the same run, or a time with the target that the project set itself.
docs/benchmarks-tables.md says what they mean.

usage: python -m benchmarks.figures.run [--only NAME ...]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import RESULTS
from benchmarks.example import load_text

STORED = RESULTS / "cpu.json"
Measures = Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """One line of the table; `met` is None where there is a figure and no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def bookkeeping(m: Measures) -> list[Figure]:
    return [
        Figure(
            f"bookkeeping a trial, {sampler}",
            f"{m[f'{sampler}.share']:.1%} of evaluation time, {m[f'{sampler}.ms']:.0f} ms",
            "≤ 5 % or ≤ 80 ms",
            m[f"{sampler}.share"] <= 0.05 or m[f"{sampler}.ms"] <= 80,
        )
        for sampler in (key.removesuffix(".share") for key in m if key.endswith(".share"))
    ]


def repeatability(m: Measures) -> list[Figure]:
    measured = f"range {m['range']:.2%} (latency alone {m['raw']:.2%})"
    return [Figure("latency ratio over fresh processes", measured, "≤ 3 %", m["range"] <= 0.03)]


def busy(m: Measures) -> list[Figure]:
    names = [key.removesuffix(".ratio") for key in m if key.endswith(".ratio")]
    rows = []
    for load in (8, 20):
        shares = [m[f"{name}.{load}"] for name in names]
        measured = f"{min(shares):.0%} of the runs of {names[int(np.argmin(shares))]}, {np.mean(shares):.0%} of all"
        what = f"FP32 ÷ INT8 beside {load} busy processes: within 5 % of without"
        rows.append(Figure(what, measured, "≥ 95 % of each network's", min(shares) >= 0.95))
    return rows


def calibration(m: Measures) -> list[Figure]:
    rows = []
    for name in sorted({key.rpartition(".")[0] for key in m}):
        time_, memory = m[f"{name}.time"], m[f"{name}.memory"]
        measured = f"{time_:.2f}x time, {memory:.2f}x memory"
        met = min(time_, memory) >= 1
        rows.append(Figure(f"calibration, theirs ÷ ours, {name}", measured, "≥ 1x", met))
    return rows


def database(m: Measures) -> list[Figure]:
    beyond = f"{m['resume_s']:.2f} s, {m['resume_beyond_s']:.2f} s of it beyond checking inputs"
    return [
        Figure("`front` of 10,000 evaluations", f"{m['front_s']:.2f} s", "≤ 1 s", m["front_s"] <= 1),
        Figure("`resume` of 1,000 evaluations", beyond, "≤ 5 s", m["resume_s"] <= 5),
    ]


def lowering(m: Measures) -> list[Figure]:
    gain = f"{100 * m['accuracy']:+.2f} ± {100 * m['accuracy_half']:.2f} points"
    loss = f"{m['sqnr_db']:.1f} dB, loss {100 * m['loss']:.2f} ± {100 * m['loss_half']:.2f} points"
    no_worse = m["accuracy"] + m["accuracy_half"] >= 0
    return [
        Figure(
            "all INT8: latency of quantize_static ÷ ours", f"{m['speed']:.3f}x", "≥ 1x (tie: 2 %)", m["speed"] >= 0.98
        ),
        Figure("all INT8: top-1 of ours less quantize_static", gain, "≥ 0 (in the interval)", no_worse),
        Figure("all INT8 against the float model", f"{loss}, {m['speedup']:.2f}x as fast"),
    ]


def scoring(m: Measures) -> list[Figure]:
    targets = {"miou": 1.5, "top1": None, "sqnr": None}
    return [
        Figure(
            f"scoring an evaluation by {name}: plain NumPy ÷ ours",
            f"{m[f'{name}.ratio']:.1f}x, {m[f'{name}.s']:.2f} s",
            "" if most is None else f"≤ {most} s",
            None if most is None else m[f"{name}.s"] <= most,
        )
        for name, most in targets.items()
    ]


def start(m: Measures) -> list[Figure]:
    return [Figure("start of an evaluator: with SymPy ÷ without", f"{m['ratio']:.2f}x, {m['late_s']:.2f} s without")]


def obedience(m: Measures) -> list[Figure]:
    groups = m["obeyed"] + m["not_obeyed"] + m["opaque"]
    measured = f"{m['obeyed']:.0f} of {groups:.0f} obeyed, {m['not_obeyed']:.0f} not, {m['opaque']:.0f} opaque"
    met = m["obeyed"] == groups
    return [Figure(f"groups that run as asked, {m['engines']:.0f} engines", measured, "all", met)]


def mixes(m: Measures) -> list[Figure]:
    return [
        Figure("example: all INT8 loses", *_mix(m, "int8"), "its interval above 1 point", m["int8.loss_low"] > 0.01),
        Figure("example: a mix does not", *_mix(m, "mix"), "its interval below 1 point", m["mix.loss_high"] < 0.01),
    ]


def _mix(m: Measures, name: str) -> tuple[str]:
    half = (m[f"{name}.loss_high"] - m[f"{name}.loss_low"]) / 2
    samples = f"{m[f'{name}.samples']:,.0f} samples"
    return (
        f"{100 * m[f'{name}.loss']:.2f} ± {100 * half:.2f} points on {samples}, {m[f'{name}.speedup']:.2f}x as fast",
    )


# Quick ones first: what is broken shows early.
FIGURES: dict[str, Callable[[Measures], list[Figure]]] = {
    "start": start,
    "mixes": mixes,
    "scoring": scoring,
    "lowering": lowering,
    "repeatability": repeatability,
    "busy": busy,
    "obedience": obedience,
    "database": database,
    "calibration": calibration,
    "bookkeeping": bookkeeping,
}


def main(names: list[str]) -> dict[str, dict[str, float]]:
    """Run the benchmarks of these names, print the table and keep the measures in benchmarks/results/cpu.json."""
    # A shell that starts this in the background has it ignore Ctrl-C, and so would searches that are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results: dict[str, dict[str, float]] = {}
    runs: dict[str, dict[str, Any]] = {}
    for name in names:
        print(f"\n== {name}", flush=True)
        start = time.perf_counter()
        results[name] = importlib.import_module(f"benchmarks.figures.{name}").main()
        seconds = round(time.perf_counter() - start)
        runs[name] = {"date": f"{datetime.date.today()}", "machine": machine(), "load": load_text(), "seconds": seconds}
    print()
    console, table = Console(width=150, highlight=False), Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("figure", "measured", "target", ""):
        table.add_column(heading)
    for name, measures in results.items():
        for figure in FIGURES[name](measures):
            verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
            table.add_row(figure.what, figure.measured, figure.target, verdict)
    console.print(table)
    console.print(f"{sum(run['seconds'] for run in runs.values())} s; {machine()}; {load_text()}")
    keep(results, runs)
    return results


def machine() -> str:
    from evaluators.backends.onnxruntime.device import cpu_model, has_vnni

    return f"{cpu_model()}, {os.cpu_count()} cores, {'with' if has_vnni() else 'without'} VNNI"


def keep(results: dict[str, dict[str, float]], runs: dict[str, dict[str, Any]]) -> None:
    """Write what was run; benchmarks that were left out keep what they had."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name, measures in results.items():
        stored[name] = {**runs[name], "measures": {key: float(f"{value:.4g}") for key, value in measures.items()}}
    STORED.parent.mkdir(exist_ok=True)
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(FIGURES), help="run this one; repeatable")
    main(parser.parse_args().only or list(FIGURES))
