"""The verb of a process that works on a study beside others: `worker`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from studies.cli.base import err, print_finished, progress_for, resumable, verb
from studies.cli.parameters import NewTarget, Quiet, Storage, Study, WhichTarget
from studies.fleet import processes as fleet
from studies.options.read_options import read_changes
from studies.run.search_result import SearchResult
from studies.run.unreachable_limits import UnreachableLimitError
from studies.show.progress_display import Notes
from studies.store.database.retries import known_server


@verb
def worker(
    study: Study,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Join a study from this host, and work on it until it is done."""
    from studies.verbs import searches  # it takes a second to import, which help does without

    changes = read_changes(options, "worker")
    more = ["--target", shlex.quote(target)] if target is not None else []
    work = partial(searches.worker, study, changes, storage=storage, target=target, new_target=new_target)
    if fleet.follow():
        with resumable(study, storage, "worker", more), known_server():  # to its parent, which has made the study there
            _tell_parent(lambda: work(events=Notes(err)))
        return
    with progress_for(quiet) as events, resumable(study, storage, "worker", more):
        finished = work(events=events)
    if not quiet:
        print_finished(finished, storage)


def _tell_parent(work: Callable[[], SearchResult]) -> None:
    """Work for the process that started this one, and tell it why that ended."""
    try:
        sys.stdout.write(f"{fleet.DONE}{work().reason}\n")
    except UnreachableLimitError as error:
        sys.stdout.write(f"{fleet.UNREACHABLE}{error}\n")
        raise typer.Exit(1) from None
