"""The verbs that read studies: `status`, `front`, `show`, `studies`. They start quickly, see tests/test_imports.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.live import Live

from search.errors import ConfigError
from studies.cli.base import (
    out,
    print_cells,
    print_csv,
    print_front,
    print_json,
    print_table,
    print_warnings,
    verb,
)
from studies.cli.parameters import Csv, Json, Picks, Storage, Study, WhichTarget
from studies.judging.status.study_status import StudyStatus
from studies.options.read_options import read_changes
from studies.show.front_table import front_csv, front_json
from studies.show.status_text import blocks, drawing
from studies.show.trial_text import group_table, trial_json, trial_lines
from studies.store import target_names
from studies.store.records import TargetRecord
from studies.verbs import readings

_EVERY_S = 2.0
Pick = typer.Option(
    "--pick", help="Show this pick instead: best, accurate, fast, knee or score:0.6,0.4.", metavar="PICK"
)


@verb
def status(
    study: Study,
    watch: Annotated[bool, typer.Option("--watch", help="Print the status every 2 s until the study is done.")] = False,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Who works on a study, how fast, what failed, and where its front stands."""
    if watch:
        _watch(study, storage, as_json=as_json)
    elif as_json:
        print_json(readings.status(study, storage=storage).to_json())
    else:
        _print_status(readings.status(study, storage=storage))


@verb
def front(
    study: Study,
    pick: Picks = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
    **options: Any,
) -> None:
    """The Pareto front of a study, judged by its limits or by those given here."""
    limits = read_changes(options, "front")
    found = readings.front(study, limits, storage=storage, target=target, whole=False, picks=pick or ())
    if as_json and as_csv:
        raise ConfigError("printing the front: --json and --csv were both given; give one.")
    if as_json:
        print_json(front_json(found.standing, found.mixes, found.assignments))
    elif as_csv:
        print_csv(front_csv(found.standing, found.mixes))
    else:
        print_front(found.standing, found.mixes)
    print_warnings(found.standing)


@verb
def show(
    study: Study,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial.", metavar="TRIAL")] = None,
    pick: Annotated[str | None, Pick] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """One evaluation: what was asked and got per group, measures, failure."""
    shown = readings.show(study, trial, pick=pick, storage=storage, target=target)
    if as_json:
        print_json(trial_json(shown))
        return
    for line in trial_lines(shown):
        out.print(line, markup=False)
    columns, rows = group_table(shown)
    print_table(rows, columns)


@verb
def studies(storage: Storage = None, as_json: Json = False) -> None:
    """The studies of a database."""
    names = ("name", "state", "ok", "failed", "running", "targets", "created_at", "model_path")
    known = readings.targets(storage)
    rows = [vars(row) | {"targets": known.get(row.name, ())} for row in readings.studies(storage)]
    found = [{name: row[name] for name in names} for row in rows]
    if as_json:
        made = [
            {"created_at": row["created_at"].isoformat(), "targets": target_names.rows(row["targets"])} for row in found
        ]
        print_json([{**row, **more} for row, more in zip(found, made, strict=True)])
    elif found:
        texts = [
            {"created_at": f"{row['created_at']:%Y-%m-%d %H:%M}", "targets": _named(row["targets"])} for row in found
        ]
        print_table([{**row, **text} for row, text in zip(found, texts, strict=True)], names)
    else:
        out.print("no study yet")


def _watch(study: str, storage: str | None, *, as_json: bool) -> None:
    """Redraw on a terminal; elsewhere print a line of JSON each time, or the text when something has changed."""
    if out.is_terminal and not as_json:
        with Live(console=out, auto_refresh=False) as live:
            for now in readings.watch(study, storage=storage, every_s=_EVERY_S):
                live.update(drawing(now), refresh=True)
        return
    before = None
    for now in readings.watch(study, storage=storage, every_s=_EVERY_S):
        if as_json:
            sys.stdout.write(json.dumps(now.to_json(), ensure_ascii=False, default=str) + "\n")
        elif before != (before := _gist(now)):
            _print_status(now)
        sys.stdout.flush()


def _gist(now: StudyStatus) -> object:
    """What is worth printing anew when it changes: not the time that passes."""
    return now.study.state, [
        (target.tally.finished, [(worker.name, worker.state) for worker in target.alive], len(target.lost))
        for target in now.targets
    ]


def _print_status(now: StudyStatus) -> None:
    for block in blocks(now):
        if isinstance(block, str):
            out.print(block, markup=False)
        else:
            print_cells(block.header, block.rows)


def _named(known: Sequence[TargetRecord]) -> str:
    """By name, each but the only one with its number."""
    shown = target_names.names([record.target for record in known])
    return "; ".join(shown if len(shown) < 2 else [f"{number}: {name}" for number, name in enumerate(shown, 1)])
