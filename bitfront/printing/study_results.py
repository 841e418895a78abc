"""Printing a study's front, what recovery won back, and the summary of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitfront.printing.output import (
    out,
    print_cells,
    print_fitted,
    say,
    say_command,
    terminal_width,
    warn,
)
from bitfront.printing.talk import talk
from search.values import Answer
from studies.judging.findings.rescue_table import UNLIMITED, RescueRow, rescue_cells, rescue_header, rescue_legend
from studies.judging.findings.study_rescue import emulation_gap_notes, study_rescue, study_rescue_notes
from studies.judging.sentences.cautions import pick_warnings
from studies.judging.sentences.evaluations import obedience_text, replaced_text
from studies.judging.sentences.final_split import final_notes
from studies.judging.sentences.gains import as_given_text, int8_everywhere_text, no_gain_text, other_runtime_text
from studies.judging.sentences.no_pick import (
    nearest_text,
    nobody_text,
    nothing_text,
    only_fp32_text,
    regained_text,
)
from studies.judging.sentences.picks import band_text, faster_text
from studies.judging.standing import Standing
from studies.judging.status.early_end import early_end
from studies.options.limits import Limits, MetricScale
from studies.run.search_result import SearchResult
from studies.show.terminal.front_table import BEST_STYLE, front_table, limits_legend
from studies.show.terminal.run_text import recommendation_text
from studies.store import suggestions


def print_finished(finished: SearchResult, *, exported: bool = False) -> None:
    """Print why a search stopped, its front, what recovery won back, and what to do next.

    Args:
        exported: whether its best is exported already, so that the command for that is of no use.
    """
    now = finished.standing
    say(f"{finished.reason}.")
    if talk().verbose or any(answer is Answer.NOT_OBEYED for _, answer in finished.obedience):
        say(f"Audit of every engine that was built: {obedience_text(finished.obedience)}.")
    if text := replaced_text(finished.deaths):
        say_command(
            f"{text[:1].upper()}{text[1:]}. More:",
            suggestions.command("show", now.study.name, "TRIAL", storage=now.details.storage),
        )
    out.print()
    print_front(now, finished.mixes, why_none=now.details.failures is None)
    notes = study_rescue_notes(now) if talk().verbose else emulation_gap_notes(now)
    if (rescue := study_rescue(now)) or notes:
        out.print()
        print_rescue(rescue, notes, now.metric, now.limits)
    if now.picks.best is not None and not now.only_fp32:
        out.print()
        say(recommendation_text(now), style=BEST_STYLE)
        words = ("--out", "engine/", *now.details.target_option)
        if not exported:
            say_command(
                "Export it:", suggestions.command("export", now.study.name, *words, storage=now.details.storage)
            )
    print_early_end(now)


def print_early_end(now: Standing) -> None:
    """Print that the last search ended early, and the command that goes on; nothing if it did not."""
    if (early := early_end(now)) is not None:
        out.print()
        say(f"{early.text}.", style="bold yellow")
        say_command("Go on with:", early.resume)


def print_front(now: Standing, mixes: Mapping[int, str], *, why_none: bool = True) -> None:
    """The table of a front and what is to be said of it.

    Args:
        why_none: say too why there is nothing to pick.
    """
    if now.details.target_name:
        say(f"Target {now.details.number}: {now.details.target_name}; give --target to see another.")
    table = front_table(now, mixes).fit(terminal_width())
    print_fitted(table)
    if text := limits_legend(table):
        say(text, style="dim")
    if now.picks.best is None and why_none:
        _print_nearest(now)
    tied = now.target.band_is_provisional and table.rows and not now.only_fp32
    provisional = band_text(now) if tied else ""
    texts = (
        as_given_text(now),
        int8_everywhere_text(now),
        faster_text(now),
        no_gain_text(now),
        other_runtime_text(now),
        regained_text(now),
        provisional,
        only_fp32_text(now),
    )
    for text in (*final_notes(now), *texts):
        if text:
            say(f"{text}.")


def print_rescue(
    rows: Sequence[RescueRow], notes: Sequence[str], metric: MetricScale, limits: Limits = UNLIMITED
) -> None:
    """Print what recovery won back, and what is to be said of its steps."""
    if rows:
        say("What INT8 loses on the final samples, and what recovery won back:")
        cells = rescue_cells(rows, metric, limits)
        print_cells(rescue_header(metric), cells)
        if text := rescue_legend(cells):
            say(f"{text}.", style="dim")
    for text in notes:
        say(f"{text}.", style="dim")


def print_warnings(now: Standing) -> None:
    """On stderr, what must not be missed of the picks, however little else is printed."""
    for text in pick_warnings(now):
        warn(text)


def _print_nearest(now: Standing) -> None:
    nearest = now.judgement.nearest()
    if nearest:
        say(f"{nobody_text(now)}; the nearest:", style="bold yellow")
        for near in nearest:
            say(f"  {nearest_text(now, near)}", indent="  ")
    elif text := nothing_text(now):
        say(text if now.details.failures is not None else f"{nobody_text(now)}; {text}", style="bold yellow")
