"""Finding a study as the command line names it, with its target and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from search.errors import StudyError
from search.values import Precision
from studies.judging.findings.optimization_levels import find_final_levels
from studies.judging.point_lists import table_rows
from studies.judging.rules.picks import read_pick
from studies.judging.standing import Details, Standing, standing
from studies.options.config import SearchConfig
from studies.options.limits import LIMITS, Limits, MetricScale, resolve_limits
from studies.options.read_options import change_config
from studies.store import suggestions
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_names import choose, names
from studies.store.target_options import config_of

# Name of a limit → its bound, over the study's own; None takes it away. What is no limit among them is left aside.
LimitChanges = Mapping[str, Any]
NO_LIMITS: LimitChanges = MappingProxyType({})


def find_target(store: Store, study: StudyRecord, wanted: str | None) -> TargetRecord:
    """The target of a study that `--target` names, the first where it names none; StudyError where there is none."""
    targets = store.targets.of_study(study.id)
    if not targets:
        raise StudyError(
            f"reading study {study.name!r}: it was interrupted before it began. Continue it: "
            f"`{suggestions.command('resume', study.name)}`."
        )
    return choose(targets, wanted, study.name)


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
    now = standing(store, *resolve_study(store, name, changes, wanted))
    return with_details(store, replace(now, scored_picks=named))


def resolve_study(
    store: Store, name: str, changes: LimitChanges, wanted: str | None
) -> tuple[StudyRecord, TargetRecord, Limits]:
    """A study, the target of it that is meant, and the limits that it is judged by."""
    study = store.studies.load(name)
    target = find_target(store, study, wanted)
    given = {name: bound for name, bound in changes.items() if name in LIMITS}
    return study, target, limits_of(change_config(config_of(study, target), given), study)


def with_details(store: Store, now: Standing) -> Standing:
    """With the place of its target in the study, and more of what a table names.

    That is what is doubtful, what did not run as asked, and what it takes at other optimization levels.
    """
    known = store.targets.of_study(now.study.id)
    place = [record.id for record in known].index(now.target.id)
    name = names([record.target for record in known])[place] if len(known) > 1 else ""
    told = table_rows(now)
    ids = [int(now.table.id[row]) for row in told]
    now.table.details.read(ids)
    doubts = store.measurements.doubts(ids, now.table.reference_ms)
    mismatches = store.engines.mismatches([int(now.table.id[row]) for row in told if now.table.not_obeyed[row] > 0])
    texts = {number: mismatch_text(found) for number, found in mismatches.items()}
    levels = find_final_levels(store, now.target, now.table.reference_ms, ids)
    biases = {record.evaluation_id: record.bias for record in store.evaluations.mix_biases(now.target.id)}
    mixes = store.evaluations.assignments(now.target.id, ids)
    with_int8 = frozenset(number for number in ids if Precision.INT8 in mixes[number].values())
    busy = store.measurements.is_busy(ids)
    details = Details(place + 1, name, now.details.failures, doubts, texts, levels, biases, with_int8, busy)
    return replace(now, details=details)


def mismatch_text(found: Sequence[tuple[str, Precision]]) -> str:
    """Groups that did not run in the requested precision: `not in the requested precision: g012 ran in FP32`."""
    group, got = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"not in the requested precision: {group} ran in {got.label.upper()}{more}"


def limits_of(config: SearchConfig, study: StudyRecord) -> Limits:
    """The limits of a configuration, in the units of the study's metric."""
    return resolve_limits(config.limits, MetricScale.of(study.metric))
