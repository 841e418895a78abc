"""What the verbs of the command line share: their options, how they end, and how they print."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from search.errors import BitfrontError, RunError
from studies import interrupts, outputs
from studies.events import Quiet
from studies.judging.findings.rescue_table import HEADER, RescueRow, rescue_cells
from studies.judging.findings.study_rescue import study_rescue, study_rescue_notes
from studies.judging.search_events import SearchEvents
from studies.judging.sentences.evaluations import obedience_text, replaced_text
from studies.judging.sentences.final_split import final_notes
from studies.judging.sentences.no_pick import all_failed_text, nearest_text, nobody_text, nothing_text, regained_text
from studies.judging.sentences.picks import band_text, best_label, best_text
from studies.judging.sentences.unrelated_outputs import pick_warnings
from studies.judging.standing import Standing
from studies.options.limits import MetricScale
from studies.run.search_result import SearchResult
from studies.run.unreachable_limits import UnreachableLimitError
from studies.show.front_table import front_table
from studies.show.progress_display import Display, Lines
from studies.store import suggestions

_ANY_WIDTH = 1_000_000  # a pipe has none of its own: a row stays one line, for scripts to read
out = Console(soft_wrap=True, highlight=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
Verb = TypeVar("Verb", bound=Callable[..., None])


def verb(function: Verb) -> Verb:
    """Let the errors of a verb become one message and an exit code.

    A verb that takes `**options` gets the rows of the option table that name it, see `studies.cli.parameters`.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with interrupts.handled():
                function(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()  # where nobody handles it any more, a full disk would be told by a traceback
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            outputs.give_up()  # whoever read it has enough
            raise typer.Exit(1) from None
        except (BitfrontError, OSError) as error:
            outputs.give_up()
            err.print(f"error: {outputs.told(error)}", markup=False)
            raise typer.Exit(outputs.exit_code(error)) from None

    return run  # type: ignore[return-value]


# -- running -----------------------------------------------------------------------------------------------------------


@contextmanager
def progress_for(quiet: bool) -> Iterator[SearchEvents]:
    if quiet:
        yield Quiet()
    elif err.is_terminal:
        with Display(err) as display:
            yield display
    else:
        yield Lines(err)


@contextmanager
def resumable(study: str, storage: str | None, verb: str = "resume", more: Sequence[str] = ()) -> Iterator[None]:
    """Say how to go on with a run that is interrupted or cannot go on.

    Args:
        verb: that goes on with it.
        more: options to repeat, ready for the shell.
    """

    from studies.verbs.readings import exists  # only where something went wrong is it needed

    way = f"go on with: {suggestions.command(verb, study, *more, storage=storage)}"
    try:
        yield
    except KeyboardInterrupt:
        if exists(study, storage=storage):
            err.print(way, markup=False)
        raise
    except (BrokenPipeError, UnreachableLimitError):
        raise
    except (RunError, OSError) as error:
        if not exists(study, storage=storage):
            raise
        raise RunError(f"{outputs.told(error)}\n{way}") from error


# -- printing ----------------------------------------------------------------------------------------------------------


def print_end(finished: SearchResult, storage: str | None, *, quiet: bool) -> None:
    """Print how a search ended, which where every evaluation failed is an error.

    Raises:
        RunError: every evaluation failed.
    """
    if not quiet:
        print_finished(finished, storage)
    print_warnings(finished.standing)
    if finished.standing.details.failures is not None:
        raise RunError(all_failed_text(finished.standing))


def print_finished(finished: SearchResult, storage: str | None) -> None:
    now = finished.standing
    out.print(f"{finished.reason}.", markup=False)
    out.print(f"audit of every engine built: {obedience_text(finished.obedience)}", markup=False)
    if text := replaced_text(finished.deaths):
        out.print(f"{text}; `{suggestions.command('show', now.study.name, 'TRIAL')}` tells more", markup=False)
    print_front(now, finished.mixes, why_none=now.details.failures is None)
    print_rescue(study_rescue(now), study_rescue_notes(now), MetricScale.of(now.study.metric))
    if now.picks.best is not None:
        out.print(f"{best_label(now)}: {best_text(now)}", markup=False)
        way = suggestions.command(
            "export", now.study.name, "--out", "engine/", *now.details.target_option, storage=storage
        )
        out.print(f"export it with: {way}", markup=False)


def print_front(now: Standing, mixes: Mapping[int, str], *, why_none: bool = True) -> None:
    """The table of a front and what is to be said of it.

    Args:
        why_none: say too why there is nothing to pick.
    """
    if now.details.target_name:
        out.print(f"target {now.details.number}: {now.details.target_name}; --target shows another", markup=False)
    header, cells = front_table(now, mixes)
    print_cells(header, cells)
    if now.picks.best is None and why_none:
        _print_nearest(now)
    provisional = band_text(now) if now.target.band_is_provisional and cells else ""
    for text in (*final_notes(now), regained_text(now), provisional):
        if text:
            out.print(f"{text}.", markup=False, soft_wrap=True)


def print_rescue(rows: Sequence[RescueRow], notes: Sequence[str], metric: MetricScale) -> None:
    """Print what recovery won back, and what is to be said of it."""
    if rows:
        out.print("what INT8 loses, and what was won back:")
        print_cells(HEADER, rescue_cells(rows, metric))
    for text in notes:
        out.print(f"{text}.", markup=False)


def print_warnings(now: Standing) -> None:
    """On stderr, what must not be missed of the picks, however little else is printed."""
    for text in pick_warnings(now):
        err.print(f"WARNING: {text}", markup=False, soft_wrap=True)


def _print_nearest(now: Standing) -> None:
    nearest = now.judgement.nearest()
    if nearest:
        out.print(f"{nobody_text(now)}; the nearest:")
        for near in nearest:
            out.print(f"  {nearest_text(now, near)}", markup=False)
    elif text := nothing_text(now):
        said = text if now.details.failures is not None else f"{nobody_text(now)}; {text}"
        out.print(said, markup=False, soft_wrap=True)


def print_texts(kind: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    out.print()
    print_table([kind.text_of(row) for row in rows], names)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of the same keys as CSV; the values of a list stand in one cell, separated by a semicolon."""
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({k: _joined(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)


def _joined(values: Sequence[str]) -> str:
    """Texts in one cell, none of which holds the separator."""
    return "; ".join(value.replace(";", ",") for value in values)


def print_table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    print_cells([name.replace("_", " ") for name in names], [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return (", " if value and isinstance(value[0], str) else "×").join(map(str, value))
    return "" if value is None else str(value)


def print_cells(header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(header))
    for name in header:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    if out.is_terminal:
        out.print(table)
        return
    wide = Console(width=_ANY_WIDTH, highlight=False, emoji=False)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        out.print(line.rstrip(), markup=False)
