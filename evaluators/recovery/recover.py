"""Recovery of one model on one target: dividing the samples, trying the steps, and scoring the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations
from evaluators.cores import worthwhile_threads
from evaluators.data import Batch, Dataset, batches, gather_forms
from evaluators.held_folders import held_folder
from evaluators.lowering.placement import Placement
from evaluators.metrics.contract import Metric
from evaluators.recovery.auto import KeptSteps, StepTrials
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.final_losses import FinalSamples, FinalScorer
from evaluators.recovery.held_out import FEWEST, HeldOut
from evaluators.recovery.int8.bias import BiasStep
from evaluators.recovery.registry import AUTO
from evaluators.recovery.sample_choice import usual_samples
from evaluators.recovery.step import RecoveryStep
from search.graph.model import Model
from search.space.choices import make_space
from search.space.range_rules import RangeRule, set_ranges
from search.space.rules import KeepRule
from search.values import (
    REFERENCE,
    Assignment,
    Capability,
    LossEstimate,
    Precision,
    Ranges,
    RecoveryRecord,
    StepRecord,
    TensorRange,
    is_quantized,
)

Indices = NDArray[np.int64]

_STEPS_SHARE = 0.7  # of the time; the rest scores what was kept
_FORMATS_SHARE = 0.2  # of the time that other precisions than INT8 have, where they are offered
_RUN_SHARE = 0.03  # of the time, for one run of the float model over the held-out samples
STRETCH = 3.0  # times as long may recovery take where the machine is busy, if nobody says how long
_HELD_OUT_SHARE = 3  # one of so many calibration samples is held out


class Budget:
    """Time for recovery, by the processor time of this process: on a busy machine the same is tried as on an idle one.

    Args:
        seconds: on an idle machine, on which about half of the threads of a session have work all the time.
        wall_s: that it may take however busy the machine is.
    """

    def __init__(self, seconds: float, wall_s: float | None = None) -> None:
        self.seconds = seconds
        self.wall_s = STRETCH * seconds if wall_s is None else wall_s
        self._rate = (1 + worthwhile_threads()) / 2
        self._start = time.process_time(), time.monotonic()

    def left(self, kept_back: float = 0.0) -> float:
        """Seconds, without a share that is kept back."""
        used, wall_s = time.process_time() - self._start[0], self.elapsed_s()
        return min((1 - kept_back) * self.seconds - used / self._rate, (1 - kept_back) * self.wall_s - wall_s)

    def elapsed_s(self) -> float:
        """Seconds of wall time."""
        return time.monotonic() - self._start[1]

    def processor_s(self, seconds: float) -> float:
        """Seconds of it as processor time."""
        return max(0.0, seconds) * self._rate

    def idle_s(self, processor_s: float) -> float:
        """The inverse of `processor_s`."""
        return processor_s / self._rate


@dataclass(frozen=True)
class CalibrationSamples:
    """What steps fit to and what decides, of the samples for calibration."""

    dataset: Dataset
    indices: Indices

    def divide(self) -> tuple[Indices, Indices]:
        """Samples to fit to, and those held out; clusters stay whole. Too few samples are all in both.

        Both in random order: steps look at as many of the first ones as they have time and memory for, and data are
        often sorted by class.
        """
        random = np.random.RandomState(int(self.dataset.digest[:8], 16))
        clusters = self.clusters(self.indices)
        codes = np.arange(len(self.indices)) if clusters is None else clusters
        units = random.permutation(np.unique(codes))
        chosen = units[: len(units) // _HELD_OUT_SHARE]
        if len(chosen) < FEWEST:
            return self.indices, self.indices
        order = random.permutation(len(codes))
        held_out = np.isin(codes[order], chosen)
        return self.indices[order[~held_out]], self.indices[order[held_out]]

    def clusters(self, indices: Indices) -> Indices | None:
        """(samples,) the same number for samples that belong together; None if they are independent."""
        if self.dataset.clusters is None:
            return None
        return np.unique(self.dataset.clusters[indices], return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class Subject:
    """What is recovered.

    Attributes:
        model: the user's clean model.
        capability, placement: of the target.
        metric: of the study.
        samples: for calibration.
        final: the final split, on which the result is scored.
        method: of calibration.
        rules: ranges that the user set by hand.
        keep: the user's rules of groups that stay in float.
    """

    model: Model
    capability: Capability
    placement: Placement
    metric: Metric
    samples: CalibrationSamples
    final: FinalSamples
    method: str
    rules: Sequence[RangeRule] = ()
    keep: Sequence[KeepRule] = ()


def recover(
    subject: Subject,
    emulator: Emulator,
    setting: str,
    steps: Sequence[RecoveryStep],
    ranges: Ranges,
    *,
    budget: Budget,
    done: Callable[[int, int], None],
    alive: Callable[[], None],
) -> tuple[Ranges, RecoveryRecord]:
    """Try steps on INT8 everywhere but in groups that the user keeps in float; keep what lowers its outputs' error.

    Then those that know other precisions, each on all of the network that is offered it.

    Args:
        setting: the value of `--recover`: what is not `auto` forces the steps.
        steps: in the order in which they are tried.
        ranges: of plain INT8, calibrated on all calibration samples.
        budget: for everything.
        done: told how many of the steps are tried.
        alive: called now and then in between.

    Returns:
        The ranges with what was kept, and what there is to tell of it.

    Raises:
        EvaluatorError: ONNX Runtime cannot run the model, or a step that is forced fails.
    """
    forced, model = setting != AUTO, subject.model
    wanted = _all_in(subject, ranges)
    int8 = wanted.pop(Precision.INT8)
    if model.own:
        steps = [step for step in steps if not step.exact]  # they would change the constants that the file quantized
    why = _why_not(model, int8)
    if why and not wanted:
        return ranges, RecoveryRecord(setting, notes=(why,), own=model.own_groups)
    with held_folder() as folder:
        run = _Recovery(subject, emulator, int8, budget, folder, alive)
        kept_steps = KeptSteps(ranges, (), notes=(why,))
        if not why:
            int8_steps = [step for step in steps if step.serves(Precision.INT8)]
            kept_back = 1 - _STEPS_SHARE + _FORMATS_SHARE * bool(wanted)
            kept_steps = run.try_steps(int8_steps, ranges, forced=forced, done=done, kept_back=kept_back)
        whole = run.calibrate_whole(kept_steps, ranges)
        chosen, formats = run.try_formats(wanted, steps, whole, forced=forced)
        stages = [ranges, *kept_steps.stages[:-1], whole] if kept_steps.stages else [ranges]
        plain, *losses = [None] if why else run.score(stages)
    final = iter(losses)
    records = tuple(replace(step, final=next(final)) if step.kept else step for step in kept_steps.steps)
    about = RecoveryRecord(setting, records, plain, kept_steps.notes, budget.elapsed_s(), formats=formats)
    return replace(chosen, selected=ranges.selected), replace(about, own=model.own_groups)


def _why_not(model: Model, int8: Assignment) -> str:
    """Why there is no INT8 to recover; empty if there is."""
    if not is_quantized(int8):
        return "no group of this model can run in INT8, because of the target or of --keep"
    if model.own and all(model.own.owns(group) for group in model.groups if int8[group.id].recovered):
        return "all INT8 is the file's own, which is left as it is"
    return ""


def correct_mix(
    subject: Subject,
    emulator: Emulator,
    mix: Assignment,
    ranges: Ranges,
    *,
    budget: Budget,
    done: Callable[[int, int], None],
    alive: Callable[[], None],
) -> tuple[Ranges, RecoveryRecord]:
    """Correct biases and scales of channels for one mix, whose groups in float feed other values to those in INT8.

    Both are fitted again on the samples that all recovery steps fit to. The mix with and without them is emulated on
    the held-out ones, which decide.

    Args:
        ranges: of the study, with what was recovered for all INT8.
        budget, done, alive: as of `recover`.

    Returns:
        The ranges of this mix, which are those given where nothing is kept, and a record of the one step.

    Raises:
        EvaluatorError: ONNX Runtime cannot run the model.
    """
    plain = ranges.with_mixes({})
    with held_folder() as folder:
        run = _Recovery(subject, emulator, mix, budget, folder, alive)
        trials = StepTrials(run.context, run.decision_samples, forced=False, done=done)
        outcome = trials.run([BiasStep()], plain)
    return outcome.ranges, RecoveryRecord(BiasStep.name, outcome.steps, None, outcome.notes, budget.elapsed_s())


def _all_in(subject: Subject, ranges: Ranges) -> dict[Precision, Assignment]:
    """INT8, and the other precisions of which constants are codes that no inference finds anew → all in it that may."""
    # Correcting biases of the others brings too little: `benchmarks/results/formats.md`, "Not corrected".
    choices = make_space(subject.model, subject.capability, ranges, subject.keep).choices
    offered = {(group, c.precision) for group, some in choices.items() for c in some if c.offered}
    known = {p for _, p in offered if p.blocks or p.calibrated} | {Precision.INT8}
    return {p: Assignment({g: p if (g, p) in offered else REFERENCE for g in choices}) for p in sorted(known)}


class _Recovery:
    """One recovery with what it holds open."""

    def __init__(
        self,
        subject: Subject,
        emulator: Emulator,
        int8: Assignment,
        budget: Budget,
        folder: Path,
        alive: Callable[[], None],
    ) -> None:
        self._subject = subject
        self._budget = budget
        self._folder = folder
        self._kept_back = 0.0
        dataset, batch = subject.samples.dataset, subject.model.batch
        fitting, held_out = subject.samples.divide()
        self._fitting = gather_forms(dataset, fitting, batch)
        self._held_out = gather_forms(dataset, self._usual(held_out), batch)
        self._wild = len(held_out) - len(self._held_out)
        # Where samples are too few to be divided, those that decide are all there are.
        others = fitting if len(fitting) < len(subject.samples.indices) else fitting[:0]
        self._only_scored = gather_forms(dataset, self._usual(others, fewest=0), batch)
        self.context = RecoveryContext(
            given=subject.model,
            placement=subject.placement,
            assignment=int8,
            emulator=emulator,
            fitting=lambda: self._batches(self._fitting),
            held_out=lambda: self._batches(self._held_out),
            calibrate_model=self._calibrate,
            clip_model=self._clip,
            seconds_left=lambda: self._budget.left(self._kept_back),
            alive=alive,
        )
        self._exact = emulator.open(subject.model.graph)

    def try_steps(
        self,
        steps: Sequence[RecoveryStep],
        ranges: Ranges,
        *,
        forced: bool,
        done: Callable[[int, int], None],
        kept_back: float,
    ) -> KeptSteps:
        """Try steps as `StepTrials.run` does, without the share of the time that is kept back."""
        self._kept_back = kept_back
        held_out = self.decision_samples
        plain = ranges if self._all_fit else self._calibrate(self._subject.model)
        pass_s = self._budget.idle_s(held_out.run_s * len(self._fitting) / self._subject.model.batch)
        kept_steps = StepTrials(self.context, held_out, forced=forced, done=done, pass_s=pass_s).run(steps, plain)
        return kept_steps if kept_steps.stages else replace(kept_steps, ranges=ranges)

    def try_formats(
        self, wanted: Mapping[Precision, Assignment], steps: Sequence[RecoveryStep], ranges: Ranges, *, forced: bool
    ) -> tuple[Ranges, tuple[StepRecord, ...]]:
        """The ranges with what is kept for ops in each precision, and what was tried."""
        self._kept_back = 1 - _STEPS_SHARE
        records = list[StepRecord]()
        for precision, assignment in wanted.items():
            context = replace(self.context, assignment=assignment, precision=precision)
            trials = StepTrials(context, self.decision_samples, forced=forced, done=lambda *_: self.context.alive())
            kept_steps = trials.run([step for step in steps if step.serves(precision)], ranges)
            ranges = kept_steps.ranges
            records += [replace(step, name=f"{step.name} of {precision.name}") for step in kept_steps.steps]
        return ranges, tuple(records)

    @property
    def _all_fit(self) -> bool:
        """Whether steps fit to all samples, because these are too few to hold some out."""
        return len(self._fitting) == len(self._subject.samples.indices)

    @cached_property
    def decision_samples(self) -> HeldOut:
        """The samples that decide, with the float model's outputs."""
        both = self._subject.samples.clusters(np.concatenate([self._held_out, self._only_scored]))
        count = len(self._held_out)
        held_out = HeldOut(
            self._exact,
            self.context.held_out,
            self._subject.metric,
            self._folder / "held-out",
            seconds=self._budget.processor_s(_RUN_SHARE * self._budget.seconds),
            others=lambda: self._batches(self._only_scored),
            clusters=None if both is None else both[:count],
            other_clusters=None if both is None else both[count:],
        )
        if self._wild:
            held_out.notes.append(
                f"{self._wild} held-out samples are ignored, because their amplitude is far from usual"
            )
        return held_out

    def calibrate_whole(self, kept_steps: KeptSteps, plain: Ranges) -> Ranges:
        """Ranges from all calibration samples where only exact steps are kept: nothing was fitted to the others."""
        if not kept_steps.stages:
            return plain
        if not all(step.exact for step in kept_steps.steps if step.kept) or self._all_fit:
            return kept_steps.ranges
        whole = self._calibrate(self.context.model(kept_steps.ranges.recovery), indices=self._subject.samples.indices)
        return replace(whole, recovery=kept_steps.ranges.recovery)

    def score(self, stages: Sequence[Ranges]) -> list[LossEstimate | None]:
        """The loss of all INT8 under each of these ranges on the final samples."""
        subject, batch = self._subject, self._subject.model.batch
        scorer = FinalScorer(
            self._exact, subject.metric, subject.final, batch, self._folder / "final", self.context.alive
        )
        openers = [lambda stage=stage: self.context.open_quantized(stage) for stage in stages]
        return scorer.score(openers, self._budget.processor_s(self._budget.left()))

    def _usual(self, some: Indices, fewest: int = FEWEST) -> Indices:
        """Some samples without garbage; all of them where fewer than so many are left."""
        usual = some[np.isin(some, self._no_garbage)]
        return usual if len(usual) >= fewest else some

    @cached_property
    def _no_garbage(self) -> Indices:
        samples = self._subject.samples
        return usual_samples(samples.dataset, samples.indices, self._subject.model.batch)

    def _batches(self, indices: Indices) -> Iterator[Batch]:
        for batch in batches(self._subject.samples.dataset, indices, self._subject.model.batch):
            yield batch
            self.context.alive()

    def _calibrate(self, model: Model, method: str | None = None, indices: Indices | None = None) -> Ranges:
        ranges = activations.collect(
            model,
            self._subject.samples.dataset,
            self._fitting if indices is None else indices,
            method or self._subject.method,
            threads=worthwhile_threads(),
            progress=lambda done, total: self.context.alive(),
        )
        return set_ranges(self._subject.model.own.fix(ranges), self._subject.rules)

    def _clip(
        self, model: Model, known: Ranges, methods: Sequence[str], tensors: Container[str]
    ) -> list[dict[str, TensorRange]]:
        return activations.collect_clipped(
            model,
            self._subject.samples.dataset,
            self._fitting,
            known,
            methods,
            tensors,
            threads=worthwhile_threads(),
            progress=lambda done, total: self.context.alive(),
        )
