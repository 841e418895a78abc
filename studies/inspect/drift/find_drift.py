"""Running a study's model and its best mix on fresh data, and comparing with calibration and the final split."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from evaluators.calibration.sample_statistics import SampleStatistics, read_statistics
from evaluators.data.opening import open_data
from evaluators.metrics.registry import get_metric
from search.errors import StudyError
from search.graph.shapes import input_names
from search.values import Accuracy
from studies.artifacts.kept_ranges import load_ranges
from studies.artifacts.locations import open_artifacts
from studies.events import Events
from studies.inspect.drift.drift_report import DriftReport
from studies.inspect.drift.shifts import LEAST_UNITS, LossShift, compare_losses, judge_drift
from studies.judging.standing import Standing
from studies.options.config import SearchConfig
from studies.run.session.setup import Checked, adopt_ranges, check_inputs, load_model
from studies.run.session.trusted_functions import check_trusted
from studies.store import suggestions
from studies.store.store import Store

_ENGINE = "engine"


def find_drift(store: Store, now: Standing, config: SearchConfig, events: Events) -> DriftReport:
    """Compare fresh data with those that a study was calibrated on. Stores nothing.

    Args:
        store: of the study, open.
        now: where it stands on a target.
        config: the study's, its data the fresh ones.

    Raises:
        StudyError: the study has not been calibrated, or the model is another one.
        InputError: the fresh data cannot be used.
        ArtifactError: the study's ranges or statistics are gone or damaged.
        EvaluatorError: the model or the engine cannot be run.
    """
    check_trusted(replace(config, metric=_metric_name(now, config)))
    scored = _has_what_the_metric_needs(now, config)
    config = replace(
        config,
        limits={},
        calibration_data=None,
        final_data=None,
        metric=_metric_name(now, config) if scored else None,
        decode=config.decode if scored else None,
    )
    before = _stored_statistics(now, config, events)
    with check_inputs(config, scored=scored, undivided=True, events=events) as good:
        run = _FreshRun(store, now, good, events)
        statistics = run.observe()
        loss = run.compare_loss(scored)
        return DriftReport(
            study=now.study.name,
            data=config.data,
            judged=judge_drift(before, statistics, loss),
            metric=now.metric,
            samples={"before": before.samples, "now": statistics.samples},
            clusters=statistics.clusters,
            notes=tuple(run.notes),
        )


def _metric_name(now: Standing, config: SearchConfig) -> str:
    """The study's metric, also where its data chose it: fresh data could choose another."""
    return config.metric or str(now.study.metric["name"])


def _has_what_the_metric_needs(now: Standing, config: SearchConfig) -> bool:
    """Whether the fresh data can be scored; they need not, as what a device saw last night has no labels."""
    metric = get_metric(_metric_name(now, config), config.decode)
    if not metric.needs_labels:
        return True
    inputs, fixed = load_model(config).inputs, input_names(config.input_values)
    return open_data(config.data, inputs, preprocess=config.preprocess, most=2, fixed=fixed).has_labels


def _stored_statistics(now: Standing, config: SearchConfig, events: Events) -> SampleStatistics:
    digest = now.target.statistics_digest
    if digest is None or now.target.ranges_digest is None:
        raise StudyError(
            f"looking for drift of study {now.study.name!r}: it has not been calibrated yet. Continue it first: "
            f"`{suggestions.command('resume', now.study.name, storage=now.details.storage)}`."
        )
    return read_statistics(open_artifacts(config, events.note).read_bytes(digest))


class _FreshRun:
    """One look at fresh data in an evaluator process."""

    def __init__(self, store: Store, now: Standing, good: Checked, events: Events) -> None:
        if good.model.digest != now.study.model_digest:
            raise StudyError(
                f"looking for drift of study {now.study.name!r}: the model {good.config.model} has other content than "
                "that of "
                "the study. Give the study's own file; --model gives its path if it has moved."
            )
        self._store = store
        self._now = now
        self._good = good
        self._events = events
        self._artifacts = open_artifacts(good.config, events.note)
        self.notes: list[str] = []
        ranges = load_ranges(store, self._artifacts, now.target.id, str(now.target.ranges_digest))
        adopt_ranges(good.keeper, good.folder, ranges)

    def observe(self) -> SampleStatistics:
        progress = partial(self._events.step, "fresh samples")
        return self._good.keeper.ask("looking at the fresh samples", progress).calibrations.observe_samples()

    def compare_loss(self, scored: bool) -> LossShift | None:
        """The loss of the pick `best` on the fresh data beside that on the final split; None if there is none."""
        best, why = self._now.picks.best, ""
        if not scored:
            why = f"the metric {self._now.metric.name} needs labels, and the fresh data have none"
        elif best is None or not self._now.point(best).final.scored:
            why = "the study has no pick that was scored on its final split"
        elif self._good.target.fingerprint != self._now.target.target.fingerprint:
            why = "this host is not the study's target, so its engine cannot be run here"
        if why or best is None:
            self.notes.append(f"The loss was not compared: {why}.")
            return None
        return self._score(best)

    def _score(self, row: int) -> LossShift:
        point = self._now.point(row)
        line = self._good.keeper.ask("scoring the engine on the fresh data", partial(self._events.step, "scoring"))
        scores = line.scores.score_engines({_ENGINE: self._engine(row)})
        before = self._before(row)
        if _ENGINE not in scores.accuracy:
            nan = float("nan")
            failure = scores.failed[_ENGINE]
            return LossShift(point.trial, before, (nan, nan, nan), 0.0, nan, scores.reference, 0, failure=failure)
        accuracy = scores.accuracy[_ENGINE]
        now = (accuracy.loss, accuracy.loss_low, accuracy.loss_high)
        units = min(self._units_of_study(row), self._units_of_fresh(accuracy))
        if units < LEAST_UNITS:
            self.notes.append(
                f"The loss takes no part in the verdict: one of both is of {units} samples, clusters or batches, "
                f"and at least {LEAST_UNITS} are needed."
            )
        p = compare_losses(before, now, units)
        return LossShift(point.trial, before, now, p, accuracy.value, scores.reference, accuracy.samples)

    def _units_of_study(self, row: int) -> int:
        """Samples, clusters or batches that the interval on the final split comes from."""
        place = self._now.final.place(row)
        assert place is not None
        codes = self._store.studies.score_clusters(self._now.study.id).get("final")
        if codes is not None:
            return len(np.unique(codes))
        samples = int(self._now.final.scores.samples[place])
        return -(-samples // self._good.model.batch) if self._gathers() else samples

    def _units_of_fresh(self, accuracy: Accuracy) -> int:
        codes = self._good.keeper.description.score_clusters.get("final")
        if codes is not None:
            return len(np.unique(codes))
        return len(accuracy.scores) if self._gathers() else accuracy.samples

    def _gathers(self) -> bool:
        return bool(self._good.metric["kind"] == "accumulating")

    def _before(self, row: int) -> tuple[float, float, float]:
        """The loss on the study's final split with its 95 % interval, not widened for the mixes that were tried."""
        final = self._now.final
        place = final.place(row)
        assert place is not None
        loss, low, high = (
            column[place] for column in (final.scores.loss, final.scores.loss_low, final.scores.loss_high)
        )
        return float(loss), float(low), float(high)

    def _engine(self, row: int) -> Path:
        """The engine of an evaluation, built again where it was not kept."""
        table = self._now.table
        digest, number = str(table.artifact[row]), int(table.id[row])
        if digest and digest in self._artifacts:
            return self._artifacts.path(digest)
        self.notes.append(f"The engine of trial {int(table.trial[row])} was not kept and was built again.")
        assignment = self._store.evaluations.assignments(self._now.target.id, [number])[number]
        out = self._good.folder / f"{number}.engine"
        self._good.keeper.ask("building the engine again").builds.rebuild(assignment, out)
        return out
