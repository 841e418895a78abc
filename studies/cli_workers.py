"""The verbs for studies that many processes work on: `worker`, `status`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.live import Live

from studies import commands, fleet
from studies.cli_base import (
    Backend,
    DataPath,
    Device,
    Json,
    Many,
    ModelPath,
    MoreTrials,
    NewTarget,
    QuietFlag,
    Storage,
    Study,
    Tf32,
    Threads,
    Typing,
    WhichTarget,
    err,
    given_options,
    option,
    out,
    print_cells,
    print_finished,
    print_json,
    progress_for,
    resumable,
    verb,
)
from studies.progress import Notes
from studies.status import StudyStatus
from studies.status_text import blocks, drawing

_EVERY_S = 2.0


@verb
def worker(
    study: Study,
    device: Device = None,
    trials: MoreTrials = None,
    model: ModelPath = None,
    data: DataPath = None,
    calibration_data: Annotated[Many, option("calibration-data", "Where these are on this host.", "DATA")] = None,
    final_data: Annotated[Many, option("final-data", "Where these are on this host.", "DATA")] = None,
    backend: Backend = None,
    threads: Threads = None,
    typing: Typing = None,
    tf32: Tf32 = None,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Join a study from this host, and work on it until it is done."""
    options = given_options(locals(), "study", "storage", "quiet")
    more = f" --target {target}" if target is not None else ""
    if fleet.follow():
        with resumable(study, storage, "worker", more):
            finished = commands.worker(study, options, storage, Notes(err), target=target, new_target=new_target)
        sys.stdout.write(f"{fleet.DONE}{finished.reason}\n")
        return
    with progress_for(quiet) as progress, resumable(study, storage, "worker", more):
        finished = commands.worker(study, options, storage, progress, target=target, new_target=new_target)
    if not quiet:
        print_finished(finished, storage)


@verb
def status(
    study: Study,
    watch: Annotated[bool, typer.Option("--watch", help="Look every 2 s, until the study is done.")] = False,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Who works on a study, how fast, what failed, and where its front stands."""
    if watch:
        _watch(study, storage, as_json=as_json)
    elif as_json:
        print_json(commands.status(study, storage).to_json())
    else:
        _print_status(commands.status(study, storage))


def _watch(study: str, storage: str | None, *, as_json: bool) -> None:
    """Redraw on a terminal; elsewhere print a line of JSON each time, or the text when something has changed."""
    if out.is_terminal and not as_json:
        with Live(console=out, auto_refresh=False) as live:
            for now in commands.watch(study, storage, _EVERY_S):
                live.update(drawing(now), refresh=True)
        return
    before = None
    for now in commands.watch(study, storage, _EVERY_S):
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
