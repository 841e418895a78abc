"""Every CPU benchmark, and one table: figure, measured, target, met or missed. What `make bench` runs.

Each figure is a ratio against a baseline of the same run, or a time with the target that the project set itself.
benchmarks/README.md says what they mean.

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


def database(m: Measures) -> list[Figure]:
    return [Figure("`front` of 10,000 evaluations", f"{m['front_s']:.2f} s", "≤ 1 s", m["front_s"] <= 1)]


# Quick ones first: what is broken shows early.
FIGURES: dict[str, Callable[[Measures], list[Figure]]] = {
    "database": database,
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
    from evaluators.backends.processor import cpu_model, has_vnni

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
