"""The mixes of the study that a study renews, which are tried first."""

from __future__ import annotations

import numpy as np

from search.values import BASELINE, Assignment
from studies.judging.standing import Standing, front_and_picks, read_standing
from studies.judging.study_lookup import limits_of
from studies.run.work import Work
from studies.store.store import Store
from studies.store.target_names import own
from studies.store.target_options import config_of


def renewed_mixes(work: Work) -> list[Assignment]:
    """The front of the study that this one renews, as this target offers it; empty if it renews none."""
    store, study = work.ledger.store, work.ledger.study
    name = store.studies.name_renewed(study)
    if name is None:
        return []
    old = store.studies.load(name)
    target = own(store.targets.of_study(old.id), work.ledger.target.target)
    if target is None:
        return []
    now = read_standing(store, old, target, limits_of(config_of(old, target), old))
    return [work.problem.space.nearest(mix) for mix in front_mixes(store, now).values()]


def front_mixes(store: Store, now: Standing) -> dict[int, Assignment]:
    """Row → assignment of the front and the picks, the fastest first."""
    rows = [int(row) for row in now.measures.fastest_first(front_and_picks(now))]
    assignments = store.evaluations.assignments(now.target.id, [int(now.table.id[row]) for row in rows])
    return {row: assignments[int(now.table.id[row])] for row in rows}


def count_trials(store: Store, now: Standing) -> int:
    """How many evaluations try the uniform assignments and the front of a study again."""
    uniform = [int(now.table.id[row]) for row in np.flatnonzero(np.char.startswith(now.table.role, BASELINE))]
    again = store.evaluations.assignments(now.target.id, uniform)
    return len({*(again[number] for number in uniform), *front_mixes(store, now).values()})
