"""Writing the reference of all options from the option table: `python -m bitfront.cli.reference > docs/options.md`."""

from __future__ import annotations

import sys
from itertools import groupby

from studies.options.config import option_rows
from studies.options.option import Option

_HEAD = """# Options

Every option of [search](search.md), from the option table, under the name that the command line and TOML files
(`--config`) have. [In Python](python.md) it is written with underscores: plain numbers are given as numbers, quantities
with a unit as texts: `batch=16`, `max_drop=0.01`, `latency_budget="2ms"`. Other verbs take some of these options, which
their pages list.
"""
_PAGES = {  # option → where more is said of it
    "data": "data.md",
    "storage": "servers.md",
    "artifacts": "artifacts.md",
    "time-limit": "search.md#time-limit",
    "sensitivity-time": "sensitivity.md#how-it-is-measured",
    "recover-time": "recovery.md#which-steps-are-kept",
    "patience": "sampler.md#when-a-search-ends-on-its-own",
    "backend": "backends.md",
    "backend-option": "backends.md#options-of-a-backend",
    "capabilities": "capabilities.md",
    "batch": "export.md#shapes",
    "shape": "quickstart.md#dynamic-batch-and-length",
    "gpus": "workers.md#one-host",
    "builders": "workers.md#several-builds-at-a-time",
    "metrics-port": "monitoring.md#a-search",
    "lease": "workers.md#leases",
    "metric": "metrics.md",
    "decode": "metrics.md#boxes",
    "no-cache": "data.md#functions-and-loaders",
    "max-samples": "data.md#functions-and-loaders",
    "preprocess": "data.md#images",
    "split-seed": "data.md#splits",
    "calibration": "recovery.md#constants-that-only-int8-uses",
    "calibration-select": "recovery.md#which-samples",
    "range": "recovery.md#ranges-by-hand",
    "calibration-cache": "calibration-cache.md",
    "recover": "recovery.md",
    "sampler": "sampler.md",
    "reward": "sampler.md#reinforcement-learning",
    "typing": "tensorrt.md#how-an-assignment-is-applied",
    "optimization-level": "tensorrt.md#optimization-level",
    "final-optimization-level": "export.md#engines-that-are-built-again",
    "plugin": "tensorrt.md#plugins",
    "timing-cache": "tensorrt.md#time",
    "build-threads": "tensorrt.md#threads",
}


def write_reference() -> str:
    """The page as Markdown: a table for each heading of the option table."""
    taken = [row for row in option_rows() if row.name == "quiet" or "search" in row.verbs]
    panels = list(dict.fromkeys(row.panel for row in taken))
    rows = sorted(taken, key=lambda row: panels.index(row.panel))
    tables = [_table(panel, list(part)) for panel, part in groupby(rows, key=lambda row: row.panel)]
    return "\n".join([_HEAD, *tables])


def _table(panel: str, rows: list[Option]) -> str:
    lines = ["| option | meaning | default |", "|---|---|---|", *map(_line, rows)]
    return "\n".join([f"## {panel}", "", *lines, ""])


def _line(row: Option) -> str:
    typed = f"`{row.shown if row.flag or row.argument else f'{row.shown} {row.metavar}'}`"
    page = _PAGES.get(row.name, "")
    default = f"`{row.shown_default}`" if row.shown_default else ""
    return f"| {f'[{typed}]({page})' if page else typed} | {row.help.replace('|', chr(92) + '|')} | {default} |"


if __name__ == "__main__":
    sys.stdout.write(write_reference())
