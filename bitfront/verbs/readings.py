"""The verbs that read studies: `front`, `show` and `status`. They start quickly."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from search.errors import ConfigError, StudyError
from studies.events import Quiet
from studies.options.value_kinds import one_of

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from search.values import Assignment
    from studies.inspect.profile import Profile
    from studies.judging.points import Point
    from studies.judging.search_events import SearchEvents
    from studies.judging.standing import Standing
    from studies.judging.status.study_status import StudyStatus
    from studies.judging.study_lookup import LimitChanges
    from studies.show.trial_text import TrialDetails
    from studies.store.records import StudySummary, TargetRecord
    from studies.store.store import Store

NOTHING: Mapping[str, Any] = MappingProxyType({})
EVERY_S = 2.0  # between two looks of `status --watch`


# -- the front ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Front:
    """Where a study stands on one target.

    Attributes:
        standing: every evaluation, judged.
        mixes: evaluation id → its mix in words.
        assignments: evaluation id → its assignment, of the same evaluations.
        every: whether these are all evaluations, and not only those that a table of the front names.
    """

    standing: Standing
    mixes: Mapping[int, str]
    assignments: Mapping[int, Assignment]
    every: bool = True

    @property
    def points(self) -> tuple[Point, ...]:
        """The evaluations of the front, the fastest first."""
        return tuple(self.standing.points(self.standing.measures.fastest_first(self.standing.judgement.front)))

    @property
    def picks(self) -> Mapping[str, Point]:
        """The picks by name: `best`, `accurate`, `fast`, `knee`; none of a name where nothing keeps the limits."""
        from studies.judging.standing import pick_points

        return pick_points(self.standing)


def front(
    name: str,
    limits: LimitChanges = NOTHING,
    *,
    every: Annotated[bool, Typed(name="--all")] = False,
    storage: str | None = None,
    target: str | None = None,
    picks: Sequence[str] = (),
) -> Front:
    """Show the Pareto front of a study, judged by the study's limits or by those given here.

    Args:
        limits: name of a limit → its bound, over the study's own: `{"max_drop": 0.02}`; None takes one away.
        every: List all evaluations.
        storage: URL of the database; None for the default one.
        target: which of the study's, see `targets.choose`; None for the first.
        picks: beside the usual ones: `score:0.6,0.4`.

    Raises:
        StudyError: no such database, study, target or pick.
        ConfigError: a limit is none, or means nothing for the study's metric.
    """
    from studies.judging.standing import table_rows
    from studies.judging.study_lookup import standing_of
    from studies.run.search_result import Mixes
    from studies.store.store import Store, default_url

    with Store.open(storage or default_url(), write=False) as store:
        now = standing_of(store, name, limits, target, picks)
        ids = None if every else [int(now.table.id[row]) for row in table_rows(now)]
        assignments = store.evaluations.assignments(now.target.id, ids)
        return Front(now, Mixes(assignments), assignments, every)


def _front_json(listing: Front, sort: str | None) -> Mapping[str, Any]:
    from studies.show.front_rows import front_json, trials_json

    if listing.every:
        return trials_json(listing.standing, _sort(listing, sort), listing.mixes)
    _refuse_sort(sort)
    return front_json(listing.standing, listing.mixes, listing.assignments)


def _front_csv(listing: Front, sort: str | None) -> Sequence[dict[str, Any]]:
    from studies.show.front_rows import front_csv, points_csv

    if listing.every:
        return points_csv(listing.standing, _sort(listing, sort), listing.mixes)
    _refuse_sort(sort)
    return front_csv(listing.standing, listing.mixes)


def _warn_of_picks(listing: Front) -> None:
    from bitfront.printing.study_results import print_warnings

    if not listing.every:
        print_warnings(listing.standing)


@prints(front, json=_front_json, csv=_front_csv, warn=_warn_of_picks)
def _print_front(
    listing: Front,
    *,
    sort: Annotated[str | None, Typed("ORDER", read=one_of("trial", "latency", "loss").read)] = None,
) -> None:
    """Print the table of a front, or of all evaluations.

    Args:
        sort: What the rows of --all are sorted by: trial, latency or loss. [default: trial]
    """
    from bitfront.printing.study_results import print_early_end, print_front

    if listing.every:
        from bitfront.printing.output import print_fitted, say, terminal_width
        from studies.show.terminal.front_table import limits_legend, trials_table

        fitted = trials_table(listing.standing, _sort(listing, sort), listing.mixes).fit(terminal_width())
        print_fitted(fitted)
        if text := limits_legend(fitted):
            say(text, style="dim")
        return
    _refuse_sort(sort)
    print_front(listing.standing, listing.mixes)
    print_early_end(listing.standing)


def _refuse_sort(sort: str | None) -> None:
    if sort is not None:
        raise ConfigError("--sort: a front goes from fast to accurate. Give --all with it, whose rows it sorts.")


def _sort(listing: Front, sort: str | None) -> list[Point]:
    from studies.show.terminal.front_table import sorted_points

    return sorted_points(listing.standing, sort or "trial")


# -- one evaluation ----------------------------------------------------------------------------------------------------


def show(
    name: str,
    trial: int | None = None,
    changes: Mapping[str, Any] = NOTHING,
    *,
    pick: Annotated[str | None, Typed("PICK")] = None,
    profile: bool = False,
    count: Annotated[int, Typed("N")] = 50,
    against: Annotated[int | None, Typed("TRIAL")] = None,
    again: bool = False,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> TrialDetails | tuple[Profile, ...]:
    """Show one evaluation: its measurements or its failure, and the precision of each group of layers.

    Args:
        trial: its number; or give a pick, as `export` takes it.
        changes: with `profile`: `model`, `data` where files have moved.
        pick: Show this recommendation instead: best, accurate, fast, knee or score:0.6,0.4.
        profile: Show how long each layer of its engine takes; it is measured and stored if it is not known yet.
        count: How many inferences --profile measures.
        against: Number of another trial to show beside it, with --profile.
        again: Measure again, even where a stored profile exists.

    Returns:
        The evaluation; with `profile` its profile and, if asked for, that of the other, which
        `studies.inspect.profile.delta_rows` puts side by side.

    Raises:
        ConfigError: an option of `profile` was given without it.
        StudyError: no such study, target, trial or pick; neither trial nor pick was given, or both were; with
            `profile`, a trial without an engine, or model, data or target are not the study's.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    if (trial is None) == (pick is None):
        raise StudyError("choosing what to show: give a TRIAL or --pick, one of the two.")
    if not profile and (against is not None or again):
        raise ConfigError(f"--{'again' if against is None else 'against'} is for layers' times. Give --profile too.")
    from studies.judging.selection import find_row
    from studies.judging.study_lookup import standing_of
    from studies.store.store import Store, default_url

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, NOTHING, target, () if pick is None else (pick,))
        number = int(now.table.trial[find_row(now, pick, None)]) if trial is None else trial
        if not profile:
            return _read_trial(store, now, number)
    from studies.inspect.profile_trials import profile_trials

    trials = (number,) if against is None else (number, against)
    return profile_trials(url, now, trials, count=count, again=again, changes=changes, progress=events or Quiet())


def _read_trial(store: Store, now: Standing, number: int) -> TrialDetails:
    from studies.judging.findings.optimization_levels import find_final_levels
    from studies.show.trial_text import TrialDetails

    record = store.trials.load(now.target.id, number)
    groups = {group.id: group for group in store.studies.groups(now.study.id)}
    forecast = store.trials.forecasts(now.target).get(record.id)
    levels = find_final_levels(store, now.target, now.table.reference_ms, [record.id]).get(record.id, ())
    return TrialDetails(record, groups, now, store.engines.profile(record.id), forecast, levels)


def _trial_json(details: TrialDetails) -> Mapping[str, Any]:
    from studies.show.trial_text import trial_json

    return trial_json(details)


@prints(show, kind="TrialDetails", json=_trial_json, tells=True)
def _print_trial(details: TrialDetails) -> None:
    from bitfront.printing.output import print_table, say
    from bitfront.printing.talk import talk
    from studies.show.trial_text import group_table, trial_lines

    for line in trial_lines(details, details=talk().verbose):
        say(line, indent="  ")
    columns, rows = group_table(details)
    print_table(rows, columns)


def _delta(trial_profiles: Sequence[Profile], sort: str) -> list[dict[str, Any]]:
    from studies.inspect.profile import delta_rows

    return delta_rows(trial_profiles[0], trial_profiles[1], sort) if len(trial_profiles) > 1 else []


def _profile_json(trial_profiles: Sequence[Profile], sort: str) -> Mapping[str, Any]:
    rows, delta = [one.to_json(sort) for one in trial_profiles], _delta(trial_profiles, sort)
    return {**rows[0], **({"against": rows[1], "delta": delta} if delta else {})}


def _profile_csv(trial_profiles: Sequence[Profile], sort: str) -> Sequence[dict[str, Any]]:
    return _delta(trial_profiles, sort) or trial_profiles[0].layer_rows(sort)


@prints(show, kind="tuple", json=_profile_json, csv=_profile_csv, tells=True)
def _print_profile(
    trial_profiles: Sequence[Profile],
    *,
    sort: Annotated[str, Typed("ORDER", read=one_of("order", "time").read)] = "order",
) -> None:
    """Print the layers of an engine with their times, or of two side by side.

    Args:
        sort: Sort the layers of --profile by their order in the graph (order) or by their time (time).
    """
    from bitfront.printing.output import print_texts, say
    from studies.inspect import profile as profiles

    for one in trial_profiles:
        for line in profiles.headline(one):
            say(line)
    times = ["ms", "scaled_ms", "share"]
    if delta := _delta(trial_profiles, sort):
        names = ["group", "node", "got", "got_against", "changed", "ms", "ms_against", "delta_ms"]
        print_texts(profiles, delta, names)
        return
    print_texts(profiles, trial_profiles[0].layer_rows(sort), ["position", "layer", "kind", "group", "part", *times])
    print_texts(
        profiles, trial_profiles[0].group_rows(sort), ["group", "node", "op", "asked", "got", "kernels", *times]
    )
    print_texts(profiles, trial_profiles[0].part_rows(), ["part", "layers", *times])


# -- progress and studies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyList:
    """The studies of a database, each with its targets."""

    studies: tuple[StudySummary, ...]
    targets: Mapping[str, tuple[TargetRecord, ...]]

    def rows(self) -> list[tuple[StudySummary, tuple[TargetRecord, ...]]]:
        return [(study, self.targets.get(study.name, ())) for study in self.studies]


def status(
    name: str | None = None, *, watch: bool = False, storage: str | None = None
) -> StudyStatus | StudyList | Iterator[StudyStatus]:
    """Show the progress of a study: its workers, their speed, what failed, and the best evaluations so far.

    Args:
        name: None for a list of the studies of the database.
        watch: Print the status every 2 seconds until the study is done.
    """
    from studies.judging.status.study_status import study_status
    from studies.store.store import Store, default_url

    if name is not None and watch:
        return watch_status(name, storage=storage)
    with Store.open(storage or default_url(), write=False) as store:
        if name is not None:
            return study_status(store, name)
        studies = store.studies.summaries()
        return StudyList(studies, {study.name: store.targets.of_study(study.id) for study in studies})


def watch_status(name: str, *, storage: str | None = None, every_s: float = EVERY_S) -> Iterator[StudyStatus]:
    """Read the status again and again, until the study is done and no worker is left."""
    from studies.judging.status.study_status import study_status
    from studies.store.store import Store, default_url

    with Store.open(storage or default_url(), write=False) as store:
        while True:
            now = study_status(store, name)
            yield now
            if now.over:
                return
            time.sleep(every_s)


@prints(status, kind="StudyStatus")
def _print_status(now: StudyStatus) -> None:
    from bitfront.printing.output import out, terminal_width
    from studies.show.status_text import styled_lines

    for line in styled_lines(now, terminal_width()):
        out.print(line, soft_wrap=True)


def _study_list_json(study_list: StudyList) -> Mapping[str, Any]:
    from studies.show.status_text import study_values

    return {"studies": [study_values(*row) for row in study_list.rows()]}


@prints(status, kind="StudyList", json=_study_list_json)
def _print_study_list(study_list: StudyList) -> None:
    from bitfront.printing.output import print_text_table, say
    from studies.show.status_text import studies_table

    if rows := study_list.rows():
        print_text_table(studies_table(rows))
    else:
        say("The database has no study yet.")


@prints(status, kind="generator")
def _print_watched(statuses: Iterator[StudyStatus]) -> None:
    """Redraw on a terminal; elsewhere print the text when something has changed."""
    from rich.live import Live

    from bitfront.printing.output import is_screen, out
    from studies.show.status_text import draw_status

    if is_screen(out):
        with Live(console=out, auto_refresh=False) as live:
            for now in statuses:
                live.update(draw_status(now, out.width), refresh=True)
        return
    before = None
    for now in statuses:
        if before != (before := _gist(now)):
            _print_status(now)
        sys.stdout.flush()


def _gist(now: StudyStatus) -> object:
    """What is worth printing again when it changes: not the time that passes."""
    return now.study.state, [
        (target.tally.finished, [(worker.name, worker.state) for worker in target.alive], len(target.lost))
        for target in now.targets
    ]
