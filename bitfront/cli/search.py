"""The verbs that make a study and work on it: `search`, `resume`, `worker`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitfront.cli.base import progress_for, resumable, verb
from bitfront.cli.parameters import ConfigFile, Json, NewTarget, Quiet, Storage, Study, WhichTarget
from studies.options.read_options import read_changes, read_config

if TYPE_CHECKING:  # it takes a while to import
    from studies.run.search_result import SearchResult

Replace = Annotated[bool, typer.Option("--replace", help="If there is a study of this name, delete it first.")]


@verb
def search(
    config: ConfigFile = None, replace: Replace = False, quiet: Quiet = False, as_json: Json = False, **options: Any
) -> None:
    """Search for the fastest mix of precisions of a model within your limits of latency and accuracy."""
    from bitfront.verbs import searches  # it takes a second to import, which help does without
    from evaluators.backends.registry import choose_backend

    asked = read_config({**options, "quiet": quiet}, config)
    with progress_for(asked.quiet) as events:
        events.note(f"checking inputs for backend {choose_backend(asked.backend)}")
        with resumable(asked.study, asked.storage, more=_crew_words(vars(asked))):
            finished = searches.search(asked, events, replace=replace)
    _print_end(finished, "search", quiet=asked.quiet, as_json=as_json)


@verb
def resume(
    study: Study,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Continue a study until it has its number of trials, or a new number of them."""
    from bitfront.verbs import searches

    changes = read_changes(options, "resume")
    more = [*_crew_words(changes), *(["--target", shlex.quote(target)] if target is not None else [])]
    with progress_for(quiet) as events, resumable(study, storage, more=more):
        finished = searches.resume(study, changes, storage=storage, target=target, new_target=new_target, events=events)
    _print_end(finished, "resume", quiet=quiet, as_json=as_json)


@verb
def worker(
    study: Study,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Work on a study from this host, beside other processes, until it is done."""
    from bitfront.verbs import searches  # it takes a second to import, which help does without
    from studies.fleet import processes as fleet
    from studies.show.progress_display import Notes
    from studies.store.database.retries import known_server

    changes = read_changes(options, "worker")
    more = ["--target", shlex.quote(target)] if target is not None else []
    work = partial(searches.worker, study, changes, storage=storage, target=target, new_target=new_target)
    if fleet.follow():
        from bitfront.cli.printing.output import err

        with resumable(study, storage, "worker", more), known_server():  # to its parent, which has made the study there
            _tell_parent(lambda: work(events=Notes(err)))
        return
    with progress_for(quiet) as events, resumable(study, storage, "worker", more):
        finished = work(events=events)
    _print_end(finished, "worker", quiet=quiet, as_json=as_json, whole=False)


def _print_end(finished: SearchResult, verb: str, *, quiet: bool, as_json: bool, whole: bool = True) -> None:
    """Print how a search ended.

    Args:
        whole: also warn of picks, and fail where every evaluation failed: of a worker, whoever searches does.
    """
    from bitfront.cli.printing import study_results

    if as_json:
        study_results.print_result_json(finished, verb)
    if whole:
        study_results.print_end(finished, quiet=quiet or as_json)
    elif not (quiet or as_json):
        study_results.print_finished(finished)


def _crew_words(options: Mapping[str, Any]) -> list[str]:
    """The options that say how many processes work, as they are written in a shell."""
    given = {name: options.get(name) for name in ("gpus", "workers")}
    return [
        word for name, value in given.items() if value is not None for word in (f"--{name}", shlex.quote(str(value)))
    ]


def _tell_parent(work: Callable[[], SearchResult]) -> None:
    """Work for the process that started this one, and tell it why that ended."""
    from studies.fleet import processes as fleet
    from studies.run.unreachable_limits import UnreachableLimitError

    try:
        sys.stdout.write(f"{fleet.DONE}{work().reason}\n")
    except UnreachableLimitError as error:
        sys.stdout.write(f"{fleet.UNREACHABLE}{error}\n")
        raise typer.Exit(1) from None
