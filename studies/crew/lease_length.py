"""The length of leases, which all workers of a target share and which is stored with the study."""

from __future__ import annotations

from dataclasses import dataclass

from search.errors import StudyError
from studies.options.config import SearchConfig
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_options import config_of

_OWN = "lease_s"  # among the options of a target


def change_lease(store: Store, study: StudyRecord, target: TargetRecord, config: SearchConfig) -> None:
    """Store the length that a run was given, at once: who joins after this lives by it.

    Args:
        study, target: as they were read when the run began.

    Raises:
        StudyError: workers are there that live by another one, and would look dead to those that have a shorter one.
    """
    if "lease" not in config.given or not store.is_shared:
        return
    targets, now = store.targets.of_study(study.id), store.studies.load(study.name)
    first = target.id == targets[0].id
    for record in targets:
        if record.id == target.id or (first and _OWN not in (record.options or {})):
            _check_alone(store, now, record, config.lease_s)
    if first:
        store.studies.add_options(study.id, {_OWN: config.lease_s}, seen=study.config)
    else:
        store.targets.add_options(target.id, {_OWN: config.lease_s}, seen=target.options or {})


def lease_of(store: Store, study: StudyRecord, target: TargetRecord, config: SearchConfig) -> float:
    """The length that workers of a target live by now, in seconds.

    Raises:
        StudyError: this run was given another one, and a run that began at the same moment too.
    """
    if not store.is_shared:
        return config.lease_s
    stored = config_of(store.studies.load(study.name), store.targets.load(target.id)).lease_s
    if "lease" in config.given and stored != config.lease_s:
        raise StudyError(
            f"running study {study.name!r}: --lease is {config.lease_s:g} s, but another run has just set it to "
            f"{stored:g} s. Leave --lease out."
        )
    return stored


@dataclass(frozen=True)
class AtWork:
    """The workers of a target that are alive by the target's own length; at least one."""

    target_id: int
    lease_s: float
    names: tuple[str, ...]


def at_work(store: Store, study: StudyRecord) -> list[AtWork]:
    """Who is at a study now, by target: each may have a length of its own.

    Raises:
        StudyError: the study is gone.
    """
    now = store.studies.load(study.name)
    lengths = {target.id: config_of(now, target, lenient=True).lease_s for target in store.targets.of_study(study.id)}
    crews = [AtWork(number, lease_s, tuple(store.workers.live(number, lease_s))) for number, lease_s in lengths.items()]
    return [live for live in crews if live.names]


def _check_alone(store: Store, study: StudyRecord, target: TargetRecord, wanted_s: float) -> None:
    stored_s = config_of(study, target).lease_s
    live = [] if stored_s == wanted_s else sorted(store.workers.live(target.id, max(stored_s, wanted_s)))
    if live:
        raise StudyError(
            f"running study {study.name!r}: --lease is {wanted_s:g} s, but all workers of a target share one lease, "
            "and those that run have "
            f"{stored_s:g} s: {', '.join(live)}. Leave --lease out, or end them "
            f"first. A worker that was killed counts as gone after {max(stored_s, wanted_s):g} s."
        )
