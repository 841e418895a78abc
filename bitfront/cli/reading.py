"""The verbs that read studies: `status`, `front`, `trials`, `show`, `studies`. They start quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitfront.cli.base import verb
from bitfront.cli.parameters import Csv, Json, Picks, Storage, Study, WhichTarget
from search.errors import ConfigError
from studies.options.read_options import read_changes

if TYPE_CHECKING:
    from studies.judging.status.study_status import StudyStatus

_EVERY_S = 2.0
_SORTS = ("trial", "latency", "loss")
Pick = typer.Option(
    "--pick", help="Show this recommendation instead: best, accurate, fast, knee or score:0.6,0.4.", metavar="PICK"
)
Sort = typer.Option("--sort", help="What the rows are sorted by: trial, latency or loss.", metavar="ORDER")


@verb
def status(
    study: Study,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print the status every 2 seconds until the study is done.")
    ] = False,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show the progress of a study: its workers, their speed, what failed, and the best evaluations so far."""
    from bitfront.cli.printing.output import print_json
    from bitfront.verbs import readings

    if watch:
        _watch(study, storage, as_json=as_json)
    elif as_json:
        print_json("status", readings.status(study, storage=storage).to_json())
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
    """Show the Pareto front of a study, judged by the study's limits or by those given here."""
    from bitfront.cli.printing.output import print_csv, print_json
    from bitfront.cli.printing.study_results import print_early_end, print_front, print_warnings
    from bitfront.verbs import readings
    from studies.show.front_rows import front_csv, front_json

    limits = read_changes(options, "front")
    found = readings.front(study, limits, storage=storage, target=target, whole=False, picks=pick or ())
    if as_json and as_csv:
        raise ConfigError("printing the front: --json and --csv were both given. Give one of them.")
    if as_json:
        print_json("front", front_json(found.standing, found.mixes, found.assignments))
    elif as_csv:
        print_csv(front_csv(found.standing, found.mixes))
    else:
        print_front(found.standing, found.mixes)
        print_early_end(found.standing)
    print_warnings(found.standing)


@verb
def trials(
    study: Study,
    sort: Annotated[str, Sort] = "trial",
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
    **options: Any,
) -> None:
    """List all evaluations of a study, judged by the study's limits or by those given here."""
    from bitfront.cli.printing.output import print_csv, print_json, print_text_table, say
    from bitfront.verbs import readings
    from studies.show.front_rows import points_csv, trials_json
    from studies.show.terminal.front_table import limits_legend
    from studies.show.terminal.trials_table import sorted_points, trials_table

    if as_json and as_csv:
        raise ConfigError("printing the trials: --json and --csv were both given. Give one of them.")
    if sort not in _SORTS:
        raise ConfigError(f"--sort {sort}: expected one of {', '.join(_SORTS)}. Give one of these.")
    found = readings.trials(study, read_changes(options, "trials"), storage=storage, target=target)
    points = sorted_points(found.standing, sort)
    if as_json:
        print_json("trials", trials_json(found.standing, points, found.mixes))
    elif as_csv:
        print_csv(points_csv(found.standing, points, found.mixes))
    else:
        table = trials_table(found.standing, points, found.mixes)
        print_text_table(table)
        if text := limits_legend(table):
            say(text, style="dim")


@verb
def show(
    study: Study,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial.", metavar="TRIAL")] = None,
    pick: Annotated[str | None, Pick] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show one evaluation: its measurements or its failure, and the precision of each group of layers."""
    from bitfront.cli.printing.output import print_json, print_table, say
    from bitfront.cli.printing.talk import verbose
    from bitfront.verbs import readings
    from studies.show.trial_text import group_table, trial_json, trial_lines

    shown = readings.show(study, trial, pick=pick, storage=storage, target=target)
    if as_json:
        print_json("show", trial_json(shown))
        return
    for line in trial_lines(shown, details=verbose()):
        say(line, indent="  ")
    columns, rows = group_table(shown)
    print_table(rows, columns)


@verb
def studies(storage: Storage = None, as_json: Json = False) -> None:
    """List the studies of a database."""
    from bitfront.cli.printing.output import print_json, print_text_table, say
    from bitfront.verbs import readings
    from studies.show.study_list import studies_table, study_values

    known = readings.targets(storage)
    rows = [(row, known.get(row.name, ())) for row in readings.studies(storage)]
    if as_json:
        print_json("studies", {"studies": [study_values(*row) for row in rows]})
    elif rows:
        print_text_table(studies_table(rows))
    else:
        say("The database has no study yet.")


def _watch(study: str, storage: str | None, *, as_json: bool) -> None:
    """Redraw on a terminal; elsewhere print a line of JSON each time, or the text when something has changed."""
    import sys

    from rich.live import Live

    from bitfront.cli.printing.output import is_screen, out, print_json_line
    from bitfront.verbs import readings
    from studies.show.status_text import drawing

    if is_screen(out) and not as_json:
        with Live(console=out, auto_refresh=False) as live:
            for now in readings.watch(study, storage=storage, every_s=_EVERY_S):
                live.update(drawing(now, out.width), refresh=True)
        return
    before = None
    for now in readings.watch(study, storage=storage, every_s=_EVERY_S):
        if as_json:
            print_json_line("status", now.to_json())
        elif before != (before := _gist(now)):
            _print_status(now)
        sys.stdout.flush()


def _gist(now: StudyStatus) -> object:
    """What is worth printing again when it changes: not the time that passes."""
    return now.study.state, [
        (target.tally.finished, [(worker.name, worker.state) for worker in target.alive], len(target.lost))
        for target in now.targets
    ]


def _print_status(now: StudyStatus) -> None:
    from bitfront.cli.printing.output import out, terminal_width
    from studies.show.status_text import styled_lines

    for line in styled_lines(now, terminal_width()):
        out.print(line, soft_wrap=True)
