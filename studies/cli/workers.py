"""The verb of a process that works on a study beside others: `worker`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from studies.cli.base import (
    Backend,
    BackendOption,
    Builders,
    DataPath,
    Device,
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
    print_finished,
    progress_for,
    resumable,
    verb,
)
from studies.fleet import processes as fleet
from studies.run.search_result import SearchResult
from studies.run.unreachable_limits import UnreachableLimitError
from studies.show.progress_display import Notes
from studies.store.database.retries import known_server
from studies.verbs import commands

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
    backend_option: BackendOption = None,
    threads: Threads = None,
    builders: Builders = None,
    typing: Typing = None,
    tf32: Tf32 = None,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Join a study from this host, and work on it until it is done."""
    options = given_options(locals(), "study", "storage", "quiet")
    more = ["--target", shlex.quote(target)] if target is not None else []
    if fleet.follow():
        with resumable(study, storage, "worker", more), known_server():  # to its parent, which has made the study there
            _tell_parent(
                lambda: commands.worker(study, options, storage, Notes(err), target=target, new_target=new_target)
            )
        return
    with progress_for(quiet) as progress, resumable(study, storage, "worker", more):
        finished = commands.worker(study, options, storage, progress, target=target, new_target=new_target)
    if not quiet:
        print_finished(finished, storage)


def _tell_parent(work: Callable[[], SearchResult]) -> None:
    """Work for the process that started this one, and tell it why that ended."""
    try:
        sys.stdout.write(f"{fleet.DONE}{work().reason}\n")
    except UnreachableLimitError as error:
        sys.stdout.write(f"{fleet.UNREACHABLE}{error}\n")
        raise typer.Exit(1) from None
