"""Finding a study as the command line names it, with its target and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from search.errors import StudyError
from studies.judging.rules.picks import read_pick
from studies.judging.standing import Standing, read_standing
from studies.options.config import SearchConfig
from studies.options.limits import LIMITS, Limits, MetricScale
from studies.options.read_options import change_config
from studies.options.resolve_limits import resolve_limits
from studies.store.records import StudyRecord, StudySummary, TargetRecord
from studies.store.store import Store, default_url
from studies.store.target_names import choose
from studies.store.target_options import config_of

# Name of a limit → its bound, over the study's own; None takes it away. What is no limit among them is left aside.
LimitChanges = Mapping[str, Any]
NO_LIMITS: LimitChanges = MappingProxyType({})


def read_studies(storage: str | None = None) -> tuple[StudySummary, ...]:
    """All studies of a database, by default of the one that every command takes."""
    with Store.open(storage or default_url(), write=False) as store:
        return store.studies.summaries()


def exists(name: str, *, storage: str | None = None) -> bool:
    """Whether there is a study of this name to continue."""
    try:
        return any(summary.name == name for summary in read_studies(storage))
    except StudyError:
        return False


def find_target(store: Store, study: StudyRecord, wanted: str | None) -> TargetRecord:
    """The target of a study that `--target` names, the first where it names none; StudyError where there is none."""
    return choose(store.targets.of_study(study.id), wanted, study.name)


def standing_of(
    store: Store,
    name: str,
    changes: LimitChanges = NO_LIMITS,
    wanted: str | None = None,
    picks: Sequence[str] = (),
) -> Standing:
    """Where a study stands on one of its targets, judged by its own limits or those among the changes.

    Args:
        picks: that are wanted beside the usual ones: `score:0.6,0.4`.

    Raises:
        StudyError: no such study, target or pick.
    """
    named = tuple(dict.fromkeys(read_pick(pick) for pick in picks))
    now = read_standing(store, *resolve_study(store, name, changes, wanted))
    return replace(now, scored_picks=named)


def resolve_study(
    store: Store, name: str, changes: LimitChanges, wanted: str | None
) -> tuple[StudyRecord, TargetRecord, Limits]:
    """A study, the target of it that is meant, and the limits that it is judged by."""
    study = store.studies.load(name)
    target = find_target(store, study, wanted)
    limit_changes = {name: bound for name, bound in changes.items() if name in LIMITS}
    return study, target, limits_of(change_config(config_of(study, target), limit_changes), study)


def limits_of(config: SearchConfig, study: StudyRecord) -> Limits:
    """The limits of a configuration, in the units of the study's metric."""
    return resolve_limits(config.limits, MetricScale.of(study.metric), study.batch)
