"""Joining a study as a worker: ranges that one worker calibrates for all, and a fixed search space."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from evaluators.stopwatch import time_spent
from search.errors import ArtifactError, StudyError
from search.space.choices import Space
from search.values import Ranges
from studies.artifacts import leftovers
from studies.artifacts.folder import Artifacts
from studies.artifacts.kept_ranges import read_mixes
from studies.artifacts.locations import local_folder, open_artifacts
from studies.crew import Alone, Crew, SharedCrew, locked_study
from studies.crew.crew import reported_deletion
from studies.crew.lease_length import at_work, lease_of
from studies.events import Events
from studies.judging.search_events import SearchEvents
from studies.options.config import SearchConfig
from studies.run.pipeline.build_hold import BuilderProcess
from studies.run.session.backend_values import runs_on_gpu
from studies.run.session.builders import make_builders
from studies.run.session.calibration import calibrate_target, keep_statistics
from studies.run.session.first_builds import calibrating_beside
from studies.run.session.setup import Checked, adopt_ranges
from studies.run.work import Bench, Problem, Work
from studies.store.records import CalibrationRecord, ChoiceRecord, StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_names import foreign, own
from studies.trials.ledger import Ledger


@contextmanager
def join_study(
    store: Store,
    good: Checked,
    study: StudyRecord,
    progress: SearchEvents,
    target: TargetRecord | None = None,
    *,
    state: str = "measuring",
) -> Iterator[Work]:
    """Join a study as a worker, calibrated and with its space fixed; on SQLite hold it for this process alone.

    Args:
        target: of the study that this process works on, if it was just read.
        state: what the worker is doing first, as in `WorkerRecord`.

    Raises:
        StudyError: another process runs this study on SQLite, or its space changed.
        RunError: it was deleted meanwhile.
    """
    config = good.config
    target = target or target_of(store, study, good)
    artifacts = open_artifacts(config, progress.note)
    if artifacts.remote is not None:
        artifacts.prune_copies({record.digest for record in store.files.all()})
    with ExitStack() as held:
        held.enter_context(reported_deletion(store, study))
        if not store.is_shared:
            held.enter_context(locked_study(local_folder(config), config.storage, study.name))
        made: dict[str, Space] = {}
        if _is_settled(target):  # what is refused is refused with nothing written
            made.update([_fix_space(store, artifacts, good, target, progress, resumed=True)])
        crew = held.enter_context(_join_crew(store, study, target, good, state, progress))
        _clear_leftovers(store, artifacts, crew, progress, own=config.artifacts is None)
        builders = make_builders(good.builders, good.keeper)
        with time_spent("calibration"):
            if not made:
                made.update(_calibrate_once(store, artifacts, good, study, target, crew, progress, builders, held))
            target = store.targets.load(target.id)
            space = made.get(target.ranges_digest or "")
            if space is None:  # another worker calibrated
                _, space = _fix_space(store, artifacts, good, target, progress)
        yield Work(
            Problem(config, space, good.model),
            Ledger(store, artifacts, study, target, good.limits, good.keeper.description.knobs),
            Bench(good.keeper, good.folder, good.keeper.description.engine_file, builders),
            crew,
            progress,
        )


def target_of(store: Store, study: StudyRecord, good: Checked) -> TargetRecord:
    """The study's target that this process works on; StudyError where it is none of them."""
    targets = store.targets.of_study(study.id)
    target = own(targets, good.target)
    if target is None:
        raise foreign(study.name, targets, good.target, store.url)
    return target


def _is_settled(target: TargetRecord) -> bool:
    return target.ranges_digest is not None and target.space_digest is not None


def _join_crew(
    store: Store, study: StudyRecord, target: TargetRecord, good: Checked, state: str, progress: SearchEvents
) -> AbstractContextManager[Crew]:
    device = good.config.device if good.config.device != "auto" else good.target.device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible and runs_on_gpu(good.config):
        device += f" [{visible}]"
    lease_s = lease_of(store, study, target, good.config)
    if store.is_shared:
        return SharedCrew(store, target.id, lease_s=lease_s, device=device, state=state, events=progress)
    return Alone(store, target.id, lease_s=lease_s, device=device, state=state, events=progress)


def _clear_leftovers(store: Store, artifacts: Artifacts, crew: Crew, progress: Events, *, own: bool) -> None:
    """`leftovers.clear` by one worker of those that join at once; what cannot be removed stops none."""
    with crew.try_hold("prune") as mine:
        if not mine:
            return
        try:
            leftovers.clear(store, artifacts, own=own)
        except ArtifactError as error:
            progress.note(f"clearing up: {error}")


def _calibrate_once(
    store: Store,
    artifacts: Artifacts,
    good: Checked,
    study: StudyRecord,
    target: TargetRecord,
    crew: Crew,
    progress: SearchEvents,
    builders: Sequence[BuilderProcess],
    held: ExitStack,
) -> dict[str, Space]:
    """Let one worker calibrate for all.

    Returns:
        Digest of the ranges → the space that they leave, where this worker made them in the process that measures.
    """
    made: dict[str, Space] = {}
    with calibrating_beside(good, target, builders) as (calibrating, builds):
        if builds is not None:
            held.callback(builds.close)

        def calibrate() -> None:
            crew.state("calibrating")
            digest, space = _fix_space(store, artifacts, calibrating, target, progress)
            if calibrating is good:
                made[digest] = space

        crew.once("calibration", lambda: _is_settled(store.targets.load(target.id)), calibrate)
        if builds is not None:
            progress.announce("building uniform assignments")
            builds.wait()
    return made


def _fix_space(
    store: Store,
    artifacts: Artifacts,
    good: Checked,
    target: TargetRecord,
    progress: SearchEvents,
    *,
    resumed: bool = False,
) -> tuple[str, Space]:
    """Let the evaluator process have the ranges, and store the space that they leave, or find it to be the study's.

    Returns:
        The digest of the ranges, and the space.
    """
    calibration = calibrate_target(store, artifacts, good, target, progress, resumed=resumed)
    digest = calibration.ranges_digest
    data = artifacts.read_bytes(digest)
    ranges = Ranges.from_json(json.loads(data))
    mixes = read_mixes(store, target.id) if _is_settled(target) else {}
    adopt_ranges(good.keeper, good.folder, ranges.with_mixes(mixes))
    space = good.space_under(ranges)
    if target.space_digest is None or calibration.recovery != target.recovery:
        calibration = replace(calibration, statistics_digest=keep_statistics(store, artifacts, good, progress))
    _store_space(store, target, space, calibration)
    if digest not in artifacts:  # another study that had the same may have let go of them before we had them
        store.files.add(digest, "ranges", len(data))
        artifacts.put_bytes(data, "ranges")
    return digest, space


def _store_space(store: Store, target: TargetRecord, space: Space, calibration: CalibrationRecord) -> None:
    """Store ranges and space of a new study; refuse another space for a study that has one.

    Another worker may have stored its own meanwhile, having taken this one for lost: those stay.
    """
    if target.space_digest is None:
        codes = {group: variable.precisions for variable in space.variables for group in variable.groups}
        rows = [
            ChoiceRecord(
                group=group,
                precision=choice.precision,
                code=codes[group].index(choice.precision) if choice.precision in codes.get(group, ()) else None,
                offered=choice.offered,
                reason=choice.reason,
            )
            for group, choices in space.choices.items()
            for choice in choices
        ]
        store.spaces.set_choices(target.id, space.digest, rows, calibration)
    elif target.space_digest != space.digest:
        raise StudyError(
            "resuming: the search space is not the one the study was made with: other --keep rules, granularity, "
            "ranges or precisions of the target. Start a new study for it."
        )
    elif calibration.recovery != target.recovery:  # it has gone on
        store.spaces.set_calibration(target.id, calibration)


@contextmanager
def hold_unused(store: Store, study: StudyRecord, config: SearchConfig) -> Iterator[None]:
    """Hold a study that no worker is at, to delete it.

    Raises:
        StudyError: naming who works on it.
    """
    if not store.is_shared:
        with locked_study(local_folder(config), config.storage, study.name):
            yield
        return
    live = at_work(store, study)
    if live:
        names = ", ".join(name for of_target in live for name in of_target.names)
        lengths = " or ".join(f"{lease_s:g} s" for lease_s in sorted({of_target.lease_s for of_target in live}))
        raise StudyError(
            f"deleting study {study.name!r}: other processes work on it: {names}. Stop all of them first; `bitfront "
            "status "
            f"{study.name}` shows where they run. A process that was killed counts as lost after {lengths}."
        )
    yield
