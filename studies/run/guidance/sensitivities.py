"""The sensitivity pass of a study, run once on its target, limited in time, and stored in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluators.diagnose.group_error import GroupError
from evaluators.process.connection import ProcessDiedError
from evaluators.stopwatch import time_spent
from search.errors import DataError, EvaluatorError
from search.values import Precision, RecoveryRecord
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.options.diagnosis.thresholds import Thresholds
from studies.store.records import GroupRecord, StudyRecord, TargetRecord

if TYPE_CHECKING:  # reading verbs take this module without ONNX and Optuna
    from evaluators.process.keeper import EvaluatorProcess
    from search.space.choices import Space
    from studies.judging.search_events import SearchEvents
    from studies.options.config import SearchConfig
    from studies.run.session.setup import Checked
    from studies.run.work import Work
    from studies.store.store import Store
    from studies.trials.ledger import Ledger

Errors = Mapping[tuple[str, Precision], float]

SHARE = 0.05  # of the time that a study is expected to take
MOST_S = 60.0
LEAST_S = 5.0
_SHARE_OF_LEFT, _SHORTEST_S = 0.2, 0.5  # of the time limit
_SHARE_BESIDE = 0.25


@time_spent("sensitivities")
def ensure(work: Work) -> Errors:
    """The error that each group adds to the outputs in each lower precision; one worker measures it for all.

    Once an evaluation of the target is finished: the time that it took says how long this may take.

    Returns:
        (group id, precision) → noise over power of the outputs with that group alone in it; infinite where outputs are
        not finite. A pair that cannot be run alone, and FP32, are absent.

    Raises:
        EvaluatorError: ONNX Runtime cannot run the model, or the evaluator process dies.
    """
    from studies.run.guidance.other_targets import other_targets

    def find() -> None:
        if not take(work, other_targets(work.ledger)):
            measure(work)

    work.crew.once("sensitivity", lambda: is_known(work.ledger), find)
    return work.ledger.store.spaces.sensitivities(work.ledger.target.id)


def take(work: Work, others: Sequence[TargetRecord]) -> Errors:
    """The errors that are there; where there are none, those taken over from another target of the study.

    Args:
        others: the study's other targets.
    """
    from studies.run.guidance.other_targets import known_sensitivities

    spaces, target = work.ledger.store.spaces, work.ledger.target.id
    known = spaces.sensitivities(target)
    errors_elsewhere = () if known else known_sensitivities(work, others)
    if not errors_elsewhere:
        return known
    work.events.note("sensitivity: taken over from another target of the study, which rounds in the same way")
    spaces.set_sensitivities(target, errors_elsewhere, replace=False)
    return spaces.sensitivities(target)


def is_known(ledger: Ledger) -> bool:
    """Whether the target's sensitivities are in the database."""
    return bool(ledger.store.spaces.sensitivities(ledger.target.id))


def measure(work: Work, *, again: bool = False) -> tuple[str, ...]:
    """Run the pass and store what it finds; what is noteworthy of it, in words.

    Args:
        again: replaces what is there; else what another worker stored meanwhile stays.
    """
    # From what the finished evaluations took, and the study's time limit.
    took = work.ledger.store.evaluations.table(work.ledger.target.id).total_s
    took = took[took > 0]  # NaN where it was not recorded
    bounds = [float(took.mean()) * work.problem.config.trials] if len(took) else []
    if work.problem.config.time_limit_s is not None:
        bounds.append(work.problem.config.time_limit_s)
    seconds = min(
        seconds_for(work.problem.config, min(bounds, default=None)), max(_SHORTEST_S, _SHARE_OF_LEFT * work.pace.left_s)
    )
    rows, notes = run(work.bench.keeper, work.problem.space, seconds, work.events)
    work.ledger.store.spaces.set_sensitivities(work.ledger.target.id, rows, replace=again)
    return notes


def run(
    keeper: EvaluatorProcess, space: Space, seconds: float, progress: SearchEvents
) -> tuple[tuple[GroupError, ...], tuple[str, ...]]:
    """Run the pass over every lower precision that a space offers; its rows, and notes."""
    rows, notes, _ = _run_pass(keeper, space, seconds, progress)
    return rows, notes


def _run_pass(
    keeper: EvaluatorProcess, space: Space, seconds: float, progress: SearchEvents
) -> tuple[tuple[GroupError, ...], tuple[str, ...], tuple[int, ...]]:
    """What `run` gives, and the samples on which the float model is not finite."""
    pairs = space.lower_pairs()
    if not pairs:
        return (), (), ()
    progress.step("sensitivity of the groups", 0, len(pairs))
    try:
        line = keeper.ask(on_progress=partial(progress.step, "sensitivity of the groups"))
        sensitivity_pass = line.diagnoses.measure_sensitivity(seconds, pairs)
    except ProcessDiedError as death:
        raise EvaluatorError(failure_text(str(death))) from death
    for note in sensitivity_pass.notes:
        progress.detail(f"sensitivity: {note}")
    return tuple(sensitivity_pass.rows), tuple(sensitivity_pass.notes), tuple(sensitivity_pass.not_finite)


def failure_text(reason: str) -> str:
    """What to say where the pass failed: why, and what to do."""
    return f"measuring the sensitivity of the groups: {reason.rstrip('.')}. If memory is short, take a smaller --batch."


def seconds_for(config: SearchConfig, expected_s: float | None) -> float:
    """How long the pass may take: as asked for, else a share of the study, 60 s at most.

    Args:
        expected_s: how long the study will take; None if nothing is known of that.
    """
    if config.sensitivity_time_s is not None:
        return config.sensitivity_time_s
    return MOST_S if expected_s is None else min(MOST_S, max(LEAST_S, SHARE * expected_s))


def seconds_beside(config: SearchConfig) -> float:
    """How long the pass may take beside the first builds: as asked for, else 60 s, a quarter of the time limit at most.

    The search does not wait for it, but what comes late helps little.
    """
    if config.sensitivity_time_s is not None:
        return config.sensitivity_time_s
    return MOST_S if config.time_limit_s is None else min(MOST_S, max(LEAST_S, _SHARE_BESIDE * config.time_limit_s))


# -- the verb ----------------------------------------------------------------------------------------------------------


def of_study(
    url: str,
    name: str,
    thresholds: Thresholds,
    *,
    again: bool,
    changes: Mapping[str, Any],
    progress: SearchEvents,
    wanted: str | None = None,
) -> Sensitivities:
    """The sensitivities of a study's groups; measured and stored where they were not.

    Args:
        changes: `sensitivity_time_s`, and `model` and `data` where files have moved.
        wanted: which of the study's targets, see `targets.choose`; None for the first.

    Raises:
        StudyError: no such study or target, or model, data or target are not its own.
        EvaluatorError: the model cannot be run.
    """
    from studies.options.read_options import change_config
    from studies.store.store import Store
    from studies.store.target_names import choose
    from studies.store.target_options import config_of

    with Store.open(url, write=False) as store:
        study = store.studies.load(name)
        target = choose(store.targets.of_study(study.id), wanted, name)
        config = change_config(config_of(study, target, url), changes)
        sensitivities = None if again else _load_stored(store, study, target, thresholds)
    if sensitivities is not None and sensitivities.rows:
        return sensitivities
    with Store.open(url) as store:
        measured, notes = _measure_study(store, study, target, config, progress, again=again)
        return replace(_load_stored(store, study, measured, thresholds), notes=notes)


def _load_stored(store: Store, study: StudyRecord, target: TargetRecord, thresholds: Thresholds) -> Sensitivities:
    rows, groups = store.spaces.sensitivity_rows(target.id), store.studies.groups(study.id)
    by_id = {group.id: group for group in groups}
    return Sensitivities(study.name, _in_order(rows, groups), by_id, thresholds, recovery=target.recovery)


def _measure_study(
    store: Store,
    study: StudyRecord,
    target: TargetRecord,
    config: SearchConfig,
    progress: SearchEvents,
    *,
    again: bool,
) -> tuple[TargetRecord, tuple[str, ...]]:
    """Measure and store; the target that it was measured for, and notes."""
    from studies.artifacts.shipping import here
    from studies.crew.crew import reported_deletion
    from studies.run.session.data_caches import check_artifacts, study_cache
    from studies.run.session.join import join_study
    from studies.run.session.setup import check_inputs
    from studies.run.session.study_rows import check_unchanged

    check_artifacts(config)
    config = here(store, study, config, progress)
    inputs = check_inputs(config, events=progress, cache=study_cache(config))
    with inputs as good, reported_deletion(store, study):
        check_unchanged(good, study, target)
        with join_study(store, good, study, progress) as work:
            notes = measure(work, again=again)
            return work.ledger.target, notes


def of_model(config: SearchConfig, thresholds: Thresholds, progress: SearchEvents) -> Sensitivities:
    """The sensitivities of a model's groups on a target, recovered as asked for, without a study; stores nothing.

    No metric scores anything here: outputs may have any form, and labels are not read.

    Raises:
        InputError: the model, the data, a rule or the target cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies.run.session.calibration import calibrate_recovered
    from studies.run.session.setup import adopt_ranges, check_inputs, check_searchable

    config = config.with_values({"timing_cache": "none"})  # nothing is built
    with check_inputs(config, scored=False, events=progress) as good:
        check_searchable(good)
        ranges, record = calibrate_recovered(good, progress)
        adopt_ranges(good.keeper, good.folder, ranges)
        space = good.space_under(ranges)
        sensitivities = of_checked(good, space, thresholds, progress)
        return sensitivities if record is None else replace(sensitivities, recovery=record)


def of_checked(good: Checked, space: Space, thresholds: Thresholds, progress: SearchEvents) -> Sensitivities:
    """The sensitivities of the groups of inputs that were found good and calibrated; stores nothing.

    Raises:
        DataError: the float model is not finite on some samples.
        EvaluatorError: the model cannot be run.
    """
    rows, notes, not_finite = _run_pass(good.keeper, space, seconds_for(good.config, None), progress)
    if not_finite:
        raise DataError(_not_finite(not_finite))
    groups = tuple(map(GroupRecord.of_group, good.model.groups))
    known, plain = {group.id: group for group in groups}, RecoveryRecord("none", own=good.model.own_groups)
    return Sensitivities(good.config.model, _in_order(rows, groups), known, thresholds, notes, recovery=plain)


def _not_finite(samples: Sequence[int]) -> str:
    named = ", ".join(map(str, samples[:5])) + (", …" if len(samples) > 5 else "")
    return (
        f"running the FP32 model: outputs hold NaN or infinite values on {len(samples)} of the samples looked at "
        f"({named}). What it computes in FP32 has to be finite: leave them out."
    )


def _in_order(rows: tuple[GroupError, ...], groups: tuple[GroupRecord, ...]) -> tuple[GroupError, ...]:
    places = {group.id: place for place, group in enumerate(groups)}
    return tuple(sorted(rows, key=lambda row: (places[row.group], row.precision)))
