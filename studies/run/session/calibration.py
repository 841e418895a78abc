"""The ranges of a study on a target, with recovery: the study's own, those of an earlier study, or new ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from evaluators.calibration.sample_statistics import statistics_bytes
from evaluators.process.results import Recovered
from search.errors import EvaluatorError, InputError, StudyError
from search.values import Ranges, RecoveryRecord, digest_of, is_quantized
from studies.artifacts.folder import Artifacts
from studies.artifacts.kept_ranges import KeptRanges
from studies.events import Events
from studies.judging.findings.remedies import OWN_SCALES
from studies.judging.findings.rescue_table import step_text
from studies.options.config import SearchConfig
from studies.run.session.setup import Checked, calibrate, calibration_cache_of
from studies.store.records import CalibrationRecord, TargetRecord
from studies.store.store import Store

SHARE = 0.05  # of the time that a study is expected to take, which recovery may take
USUAL_S = 60.0  # that it may take in any case, but for short time limits
BY_DEFAULT = "auto"  # the steps that `--recover auto` stands for
_SHARE_OF_LIMIT = 0.25
_LONGER = 3.0  # times as long where it was cut before: with the same time it would end at the same place
_TAKEN_OVER = "{}: taken over from an earlier study with the same model and data"
_TRIAL_S = 8.0  # that a trial is taken to last where no time limit says how long the study may take


def calibrate_target(
    store: Store,
    artifacts: Artifacts,
    good: Checked,
    target: TargetRecord,
    progress: Events,
    *,
    resumed: bool = False,
) -> CalibrationRecord:
    """What a target is calibrated with; the ranges are among the artifacts then.

    Args:
        resumed: whether the study was calibrated by an earlier command: recovery that was cut may go on then.

    Raises:
        StudyError: the study's ranges are gone, and those calibrated again are not the same.
        EvaluatorError: the evaluator process dies over it, or a step that was named fails.
    """
    if target.ranges_digest is not None and target.ranges_digest in artifacts:
        if not (resumed and _may_go_on(store, target)):
            return CalibrationRecord(target.ranges_digest, target.recovery)
        progress.note("recovery goes on, because it ran out of time and no mix rests on it yet")
        return _Calibration(store, artifacts, good, progress, longer=True).find()
    calibration = _Calibration(store, artifacts, good, progress).find()
    _tell_own_scales(calibration.recovery, progress)
    if target.ranges_digest not in (None, calibration.ranges_digest):
        raise StudyError(
            "resuming: the study's INT8 ranges were removed from its artifacts, and new ones differ from them, because "
            "the calibration cache, the version of bitfront or the time for recovery is another one. Start a new study."
        )
    return calibration


def is_cut(record: RecoveryRecord | None) -> bool:
    """Whether recovery may do more with more time."""
    return record is not None and bool(record.cut)


def _may_go_on(store: Store, target: TargetRecord) -> bool:
    """Whether recovery was cut, though not twice, and the target's evaluations would be the same with other ranges.

    On a server other workers may be building with them.
    """
    if store.is_shared or target.recovery is None or not target.recovery.cut or target.recovery.again:
        return False
    return not any(is_quantized(each) for each in store.evaluations.assignments(target.id).values())


class _Calibration:
    """Finds ranges that were made of the same content, or makes them.

    Args:
        longer: whether recovery was cut before, and gets more time now.
    """

    def __init__(
        self, store: Store, artifacts: Artifacts, good: Checked, progress: Events, *, longer: bool = False
    ) -> None:
        self._longer = longer
        self._kept = KeptRanges.of_user(progress, used=not good.config.no_cache)
        self._store = store
        self._artifacts = artifacts
        self._good = good
        self._progress = progress
        self._cache = calibration_cache_of(good.config)
        self._steps = steps_for(good.config)

    def find(self) -> CalibrationRecord:
        """The calibration of an earlier study where it fits, else a new one."""
        if self._cache is not None and self._steps != self._good.config.recover:
            self._progress.note(
                "recovery: no step is tried, because the ranges of --calibration-cache are kept unchanged"
            )
        plain = self._key("none")
        key = self._key(self._steps)
        if key == plain:  # there is no step to try
            return CalibrationRecord(self._find_plain(plain))
        if self._good.config.recover_time_s is not None:
            key = digest_of([key, self._good.config.recover_time_s])
        known = self._store.targets.find_recovery(key)
        if known is not None and known.ranges_digest in self._artifacts and not is_cut(known.recovery):
            self._progress.note(_TAKEN_OVER.format("calibration and recovery"))
            return known
        kept = self._kept.find(key)
        if kept is not None:
            self._progress.note(_TAKEN_OVER.format("calibration and recovery"))
            return CalibrationRecord(self._keep(kept[0], None), kept[1], key)
        recovery = recover(self._good, self._plain(plain), self._steps, self._progress, longer=self._longer)
        record = replace(recovery.record, again=self._longer)
        if (recovery.record.steps or recovery.record.formats) and not is_cut(recovery.record):
            self._kept.keep(key, recovery.ranges, record)
        return CalibrationRecord(self._keep(recovery.ranges, None), record, key)

    def _plain(self, key: str) -> Ranges:
        """Ranges without recovery, from which it starts: those of an earlier study, else new ones."""
        stored = self._store.files.find(key)
        if stored is not None and stored.digest in self._artifacts:
            return Ranges.from_json(json.loads(self._artifacts.read_bytes(stored.digest)))
        kept = self._kept.find(key)
        return self._calibrate(key) if kept is None else kept[0]

    def _key(self, steps: str) -> str:
        return self._good.keeper.ask().calibrations.find_key(self._good.config.calibration, self._cache, steps)

    def _find_plain(self, key: str) -> str:
        """Digest of ranges without recovery."""
        stored = self._store.files.find(key)
        if stored is not None and stored.digest in self._artifacts:
            self._progress.note(_TAKEN_OVER.format("calibration"))
            return stored.digest
        kept = self._kept.find(key)
        if kept is not None:
            self._progress.note(_TAKEN_OVER.format("calibration"))
        return self._keep(self._calibrate(key) if kept is None else kept[0], key)

    def _calibrate(self, key: str) -> Ranges:
        line = self._good.keeper.ask("calibrating", partial(self._progress.step, "calibrating"))
        calibration = line.calibrations.calibrate(self._good.config.calibration, self._cache)
        for note in calibration.notes:
            self._progress.detail(f"calibration: {note}")
        for text in calibration.mismatches:
            self._progress.note(f"calibration: {text}")
        self._kept.keep(key, calibration.ranges)
        return calibration.ranges

    def _keep(self, ranges: Ranges, key: str | None) -> str:
        data = json.dumps(ranges.to_json(), sort_keys=True).encode()
        digest = self._artifacts.put_bytes(data, "ranges")
        self._store.files.add(digest, "ranges", len(data), key=key)
        return digest


def keep_statistics(store: Store, artifacts: Artifacts, good: Checked, progress: Events) -> str:
    """Keep what each calibration sample does to each tensor under the adopted ranges; the digest of the file.

    Drift of fresh data is told by comparison with them, when the calibration data may be gone.
    """
    line = good.keeper.ask("looking at the calibration samples", partial(progress.step, "calibration samples"))
    data = statistics_bytes(line.calibrations.observe_samples())
    digest = artifacts.put_bytes(data, "statistics")
    store.files.add(digest, "statistics", len(data))
    return digest


def steps_for(config: SearchConfig) -> str:
    """The recovery steps of a study; none by default where ranges were given: they are the user's."""
    if config.recover != "auto":
        return config.recover
    return BY_DEFAULT if config.calibration_cache is None else "none"


def recover(good: Checked, ranges: Ranges, steps: str, progress: Events, *, longer: bool = False) -> Recovered:
    """Try recovery steps, and tell what came of each. Where no step was named, a failure leaves the ranges as they are.

    Args:
        ranges: of plain INT8.
        steps: as `--recover` takes them.
        longer: for more than the usual time.

    Raises:
        EvaluatorError: steps were named, and one of them fails or the evaluator process dies over it.
    """
    progress.step("recovering INT8", 0, 1)
    line = good.keeper.ask("recovering INT8", partial(progress.step, "recovering INT8"))
    seconds, config = seconds_for(good.config), good.config
    wall_s = None if config.time_limit_s is None else max(seconds, _SHARE_OF_LIMIT * config.time_limit_s)
    if longer:
        seconds *= _LONGER
    try:
        recovery = line.calibrations.recover(ranges, config.calibration, steps, seconds, wall_s)
    except (EvaluatorError, InputError) as error:
        if steps != BY_DEFAULT:
            raise
        progress.note(f"recovery is left out, because it failed: {error}")
        return Recovered(ranges, RecoveryRecord(steps, notes=(f"it failed: {error}",)))
    for step in (*recovery.record.steps, *recovery.record.formats):
        progress.detail(f"recovery: {step_text(step)}")
    for note in recovery.record.notes:
        progress.detail(f"recovery: {note}")
    return recovery


def calibrate_recovered(good: Checked, progress: Events) -> tuple[Ranges, RecoveryRecord | None]:
    """Ranges with what recovery changed, of inputs that no study keeps them for, and what it tried.

    Returns:
        The record is None if nothing was to be tried.

    Raises:
        EvaluatorError: the evaluator process dies over it, or a step that was named fails.
    """
    ranges, steps = calibrate(good, good.config.calibration), steps_for(good.config)
    if steps == "none":
        return ranges, None
    recovery = recover(good, ranges, steps, progress)
    _tell_own_scales(recovery.record, progress)
    return recovery.ranges, recovery.record


def _tell_own_scales(record: RecoveryRecord | None, progress: Events) -> None:
    """That recovery does not change a quantized file's scales, where steps were named or none was left to be tried."""
    if record is not None and record.own and (record.asked != BY_DEFAULT or not record.steps):
        named = f"--recover {record.asked} changes no layer that has them" if record.asked != BY_DEFAULT else ""
        progress.note("recovery: " + ". ".join(filter(None, [OWN_SCALES, named])))


def seconds_for(config: SearchConfig) -> float:
    """How long recovery may take on an idle machine.

    Without a time of the user's it is 60 s or 5 % of the study's expected time, whichever is larger. Under a time limit
    the 60 s are at most a quarter of it.
    """
    if config.recover_time_s is not None:
        return config.recover_time_s
    limit_s: float | None = config.time_limit_s
    expected_s = _TRIAL_S * config.trials if limit_s is None else limit_s
    usual_s = USUAL_S if limit_s is None else min(USUAL_S, _SHARE_OF_LIMIT * limit_s)
    return max(usual_s, SHARE * expected_s)
