"""Evaluating the mixes of a study again on fresh data, as a new study, in pairs of old and new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from search.values import Assignment, Ranges
from studies.artifacts.folder import Artifacts
from studies.artifacts.kept_ranges import load_ranges
from studies.artifacts.locations import open_artifacts
from studies.events import Events
from studies.gate.check import GateLimits
from studies.gate.renewed.gate_mixes import GatedMixes, MixPair, gate_mixes
from studies.judging.standing import Standing
from studies.options.limits import MAX_DROP, Limits, MetricScale
from studies.options.resolve_limits import resolve_limits
from studies.run.claims.renewed_mixes import front_mixes
from studies.run.session.setup import Checked, adopt_ranges
from studies.store.records import OK
from studies.store.store import Store


def gate_renewal(
    store: Store, before: Standing, now: Standing, good: Checked, limits: GateLimits, events: Events
) -> GatedMixes:
    """Hold every mix of the old front, built with the new ranges, against the same mix as it was.

    Args:
        before, now: where the old study and the new one stand.
        good: the inputs of the new one.

    Raises:
        ConfigError: `max_drop` means nothing for the metric, or is a percentage of an FP32 value of 0.
        ArtifactError: ranges are gone.
        EvaluatorError: an engine cannot be built, loaded or run.
    """
    allowed = resolve_drop(limits, now.metric).with_fp32(now.measures.fp32_value)
    if text := allowed.share_text(now.metric):
        events.note(text)
    pairs = _Pairs(store, before, now, good, events).find()
    return gate_mixes(pairs, good, limits, allowed[MAX_DROP.name], events)


def resolve_drop(limits: GateLimits, metric: MetricScale) -> Limits:
    """The drop that is allowed in the unit of the metric, or as a percentage of FP32's value; 0 if nothing was said.

    Raises:
        ConfigError: it means nothing for this metric.
    """
    return resolve_limits({MAX_DROP.name: 0.0 if limits.max_drop is None else limits.max_drop}, metric, 1)


class _Pairs:
    """Engines of the old study's mixes before and after."""

    def __init__(self, store: Store, before: Standing, now: Standing, good: Checked, events: Events) -> None:
        self._store = store
        self._before = before
        self._now = now
        self._good = good
        self._artifacts: Artifacts = open_artifacts(good.config, events.note)
        ranges = Ranges.from_json(json.loads(self._artifacts.read_bytes(str(self._now.target.ranges_digest))))
        self._space = self._good.space_under(ranges)

    def find(self) -> list[MixPair]:
        """A pair for each mix of the old front that depends on ranges, and one of the two picks `best`."""
        old = front_mixes(self._store, self._before)
        scaled = {row: mix for row, mix in old.items() if any(precision.quantized for precision in mix.values())}
        pairs = [(row, self._find_evaluations.get(self._space.nearest(mix))) for row, mix in scaled.items()]
        best = self._before.picks.best, self._now.picks.best
        if best[0] is not None and best[1] is not None and best not in pairs:
            pairs.append((best[0], best[1]))
        before = {row: self._engine(self._before, row, old[row]) for row, _ in pairs}
        self._adopt(self._now)
        return [self._pair(row, again, before[row], best=(row, again) == best) for row, again in pairs]

    def _pair(self, row: int, again: int | None, before: Path, *, best: bool) -> MixPair:
        trial = int(self._before.table.trial[row])
        if again is None:
            return MixPair(trial, None, before, None, "it was not evaluated again: its build failed", best)
        mix = next(mix for mix, place in self._find_evaluations.items() if place == again)
        return MixPair(trial, int(self._now.table.trial[again]), before, self._engine(self._now, again, mix), best=best)

    @cached_property
    def _find_evaluations(self) -> dict[Assignment, int]:
        """Assignment → row of the new study, of those that went well."""
        table = self._now.table
        assignments: Mapping[int, Assignment] = self._store.evaluations.assignments(self._now.target.id)
        return {assignments[int(table.id[row])]: row for row in range(len(table)) if table.status[row] == OK}

    def _engine(self, now: Standing, row: int, mix: Assignment) -> Path:
        """The engine of an evaluation, built again with the ranges of its own study where it was not kept."""
        digest, number = str(now.table.artifact[row] or ""), int(now.table.id[row])
        if digest and digest in self._artifacts and self._artifacts.is_whole(digest):
            return self._artifacts.path(digest)
        out = self._good.folder / f"renewed-{number}.engine"
        self._adopt(now)
        self._good.keeper.ask(f"building the engine of trial {now.table.trial[row]} again").builds.rebuild(mix, out)
        return out

    def _adopt(self, now: Standing) -> None:
        ranges = load_ranges(self._store, self._artifacts, now.target.id, str(now.target.ranges_digest))
        folder = self._good.folder / f"study-{now.study.id}"
        folder.mkdir(exist_ok=True)
        adopt_ranges(self._good.keeper, folder, ranges)
