"""Guidance of the sampler: layout, priors from profiles and sensitivities, and pairs that cannot be built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search.forecast.models import Priors
from search.forecast.priors import Baseline, NoisePrior, latency_prior, noise_prior
from search.forecast.transfer import transfer_prior
from search.sampler.goals import MixGoal
from search.sampler.guided import Guidance
from search.space.layout import Layout, make_layout
from search.values import REFERENCE, Assignment, Precision, Score
from studies.judging.rules.candidates import Aim as Recommended
from studies.judging.rules.candidates import aim_of
from studies.judging.standing import Standing
from studies.options.limits import LATENCY_MS
from studies.run.guidance import other_targets as siblings
from studies.run.guidance import sensitivities
from studies.run.hooks.hook import go_without
from studies.run.work import Work
from studies.store.records import OK, TargetRecord
from studies.trials.ledger import Ledger

_SURE = 3  # engines that did not run a pair as asked, with the same neighbours, before it is proposed no more
_SAME_SCALE = 0.005  # relative difference of the reference within which priors are not made again


def make_guidance(work: Work) -> Guidance:
    """Guidance for the study's target, which `measure_noise` completes where sensitivities are not there yet."""
    groups, space, edges = work.problem.model.groups, work.problem.space, work.problem.model.edges
    others = siblings.other_targets(work.ledger)
    also = siblings.offered_elsewhere(work.ledger, others)
    layout = make_layout([g.id for g in groups], edges, space, [g.block for g in groups], also)
    noise = _noise_of(layout, sensitivities.take(work, others))
    source = _Source(work, layout, others, noise)
    return Guidance(
        layout=layout,
        priors=source.priors,
        unbuildable=work.ledger.unbuildable,
        disobeyed=_Disobeyed(work),
        aim=source.aim,
        latency_band=lambda: work.ledger.target.band,
        noise=noise,
        latencies=work.ledger.latencies,
        groups=groups,
        score=Score(*work.problem.config.reward),
        ratio=work.ledger.study.metric["ratio"],
    )


def measure_noise(work: Work, guidance: Guidance) -> Guidance:
    """The guidance with what each group adds to the error, measured now where it is not known; one worker does it.

    Raises:
        EvaluatorError: ONNX Runtime cannot run the model, or the evaluator process dies.
    """
    sensitivities.ensure(work)
    return replace(guidance, noise=_measured_noise(work.ledger, guidance.layout))


class _Disobeyed:
    """The pairs of group and precision that audits found to run in another precision, whatever is around them.

    What a group runs in may depend on its neighbours. A pair is among them if no engine obeyed it, and either engines
    with different precisions around the group did not, or as many as `_SURE` with the same. Uniform assignments count.
    Pairs that leave a decision without any precision are not.
    """

    def __init__(self, work: Work) -> None:
        self._ledger = work.ledger
        self._space = work.problem.space
        self._around: dict[str, set[str]] = {}
        for edge in work.problem.model.edges:
            if edge.source is not None:
                self._around.setdefault(edge.source, set()).add(edge.target)
                self._around.setdefault(edge.target, set()).add(edge.source)
        self._read: tuple[tuple[int, ...], frozenset[tuple[str, Precision]]] = (), frozenset()

    def __call__(self) -> frozenset[tuple[str, Precision]]:
        store, target = self._ledger.store, self._ledger.target.id
        t = self._ledger.latest().table
        disobeying = tuple(t.id[t.not_obeyed > 0].tolist())
        if disobeying != self._read[0]:
            assignments = store.evaluations.assignments(target, disobeying)
            pairs = [
                pair
                for pair, ids in sorted(store.engines.never_obeyed(target).items())
                if self._is_sure(pair[0], [assignments[number] for number in ids])
            ]
            self._read = disobeying, self._avoidable(pairs)
        return self._read[1]

    def _is_sure(self, group: str, assignments: Sequence[Assignment]) -> bool:
        around = {tuple(assignment[each] for each in sorted(self._around.get(group, ()))) for assignment in assignments}
        return len(around) > 1 or len(assignments) >= _SURE

    def _avoidable(self, pairs: Sequence[tuple[str, Precision]]) -> frozenset[tuple[str, Precision]]:
        kept = self._ledger.unbuildable()
        avoidable: frozenset[tuple[str, Precision]] = frozenset()
        for pair in pairs:
            if self._space.size_without(kept | avoidable | {pair}):
                avoidable |= {pair}
        return avoidable


def _measured_noise(ledger: Ledger, layout: Layout) -> NoisePrior | None:
    """What the stored sensitivities say of each group; None while there are none."""
    return _noise_of(layout, ledger.store.spaces.sensitivities(ledger.target.id))


def _noise_of(layout: Layout, output_errors: sensitivities.Errors) -> NoisePrior | None:
    """The prior of the noise from the errors of the outputs by group and precision; None without any errors."""
    if not output_errors:
        return None
    errors = np.full((len(layout.groups), len(layout.palette)), np.nan)
    errors[:, layout.places[REFERENCE]] = 0.0
    finite = [error for error in output_errors.values() if np.isfinite(error)]
    worst = 10 * max([*finite, 0.1])  # outputs that are not finite: worse than anything that was measured
    for (group, precision), error in output_errors.items():
        errors[layout.groups.index(group), layout.places[precision]] = min(error, worst)
    return noise_prior(layout, errors)


class _Source:
    """Priors from the finished baselines, made again when another one is finished or sensitivities are there."""

    def __init__(self, work: Work, layout: Layout, others: Sequence[TargetRecord], noise: NoisePrior | None) -> None:
        self._work = work
        self._layout = layout
        self._noise = noise
        multiply_adds = {group.id: group.multiply_adds for group in work.problem.model.groups}
        self._work_of = np.array([multiply_adds[name] for name in layout.groups])
        self._elsewhere = go_without(
            "learning from another target of the study",
            work.events.note,
            lambda: siblings.elsewhere(work, others, layout, self._work_of),
            None,
        )
        self._made: tuple[tuple[int, ...], float | None, Priors] | None = None

    def priors(self) -> Priors | None:
        now = self._work.ledger.latest()
        known = tuple(int(now.table.id[row]) for row in now.measures.baselines if now.table.status[row] == OK)
        if not known:
            return None
        if self._noise is None:
            self._noise = _measured_noise(self._work.ledger, self._layout)
            self._made = None if self._noise is not None else self._made
        reference_ms = now.table.reference_ms
        if self._made is None or self._made[0] != known or _has_moved(self._made[1], reference_ms):
            self._made = (known, reference_ms, self._priors(self._baselines(now, known)))
        return self._made[2]

    def _priors(self, baselines: list[Baseline]) -> Priors:
        latency = latency_prior(self._layout, baselines, self._work_of)
        noise, decibels = self._noise or noise_prior(self._layout), self._work.ledger.study.metric["unit"] == "dB"
        if self._elsewhere is None:
            return Priors(latency, noise, decibels=decibels)
        latency = transfer_prior(self._layout, latency, baselines, self._elsewhere)
        return Priors(latency, noise, self._elsewhere.losses(), decibels)

    def aim(self) -> MixGoal:
        """The limits; a bound on the metric itself is one on the loss once FP32 has been measured."""
        ledger, limits = self._work.ledger, self._work.ledger.limits
        reference = ledger.store.evaluations.reference_value(ledger.target.id) if limits.needs_reference else None
        losses = limits.allowed_losses(reference, ledger.study.metric["higher_is_better"])
        knee = aim_of(limits, relative=ledger.study.metric["relative"]) is Recommended.KNEE
        return MixGoal(limits.most(LATENCY_MS), min(losses, default=None), knee)

    def _baselines(self, now: Standing, numbers: Sequence[int]) -> list[Baseline]:
        store = self._work.ledger.store
        assignments = store.evaluations.assignments(now.target.id, numbers)
        precisions = self._layout.precisions_of([assignments[number] for number in numbers])
        rows = np.searchsorted(now.table.id, numbers)
        latencies_ms = now.table.latency_ms[rows].tolist()
        profiles = (store.engines.profile(number) for number in numbers)
        return [Baseline(*each) for each in zip(precisions, latencies_ms, profiles, strict=True)]


def _has_moved(before_ms: float | None, now_ms: float | None) -> bool:
    """Whether latencies are on another scale than they were, by more than the priors could tell."""
    return before_ms is not None and now_ms is not None and abs(now_ms / before_ms - 1) > _SAME_SCALE
