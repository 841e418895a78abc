"""The latency of one inference, measured so that a second process on the same target would get the same result.

The habits are pyperf's (https://pyperf.readthedocs.io): raw samples kept, statistics derived, and a warning wherever a
number is doubtful. What noise is left on a shared processor is mostly common to all that runs at that moment, so
candidate and baseline run in short alternating blocks and their ratio is what counts.

With one thread the clock is the processor time of that thread, which waiting for a processor does not stretch. It is
not free of noise: what runs on the same core or shares its caches makes an inference up to 1.4 times as long, for
seconds at a time, and every interruption costs the caches. Both hit candidate and baseline alike. Measured on a 2-core
VM at a load of 8 to 17, 0.5 s of processor time for both, three networks: standard deviation of the ratio of means
2.1, 2.5 and 2.4 %, of medians 3.4, 2.6 and 4.5 %, of 20th percentiles 2.4, 4.8 and 2.3 %, of minima 4.5 to 7 %. So the
statistic is the mean, and blocks go on until the ratio is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluators.engine import Session
from evaluators.measure.blocks import (
    BLOCK_MS,
    WARM_UP_TOLERANCE,
    InferenceBlock,
    Samples,
    run_in_turn,
    run_until,
    warm_up,
    warm_up_shortly,
)
from evaluators.measure.intervals import Z95, student_point
from evaluators.measure.latency_scale import off_reference, scale_latencies, share_text
from search.values import THREAD_CLOCK, WALL_CLOCK, Latency

State = Callable[[], Mapping[str, Any]]

MEAN = "mean"
PERCENTILES: Mapping[str, float] = {"median": 50.0, "p20": 20.0}
CPU_SPREAD_LIMIT = 0.10
GPU_SPREAD_LIMIT = 0.02
MIN_SAMPLES = 50
DRIFT_LIMIT = 0.03
# By processor time: blocks go on until the ratio to the baseline is known so well, as long as there is time.
RATIO_AIM = 0.025
RATIO_LIMIT = 0.06  # what is known less well is doubtful
MIN_ROUNDS = 5
_FEW_ROUNDS = 3  # are enough of a slow engine where they agree
_SLOW_S = 1.0  # that these take
_LONGEST = 2.0  # times the least `seconds`, of the candidate


def statistic_of(samples: Samples, name: str) -> float:
    """The named statistic, `mean`, `median` or `p20` (20th percentile), of samples of any shape; raises ValueError."""
    if name == MEAN:
        return float(np.mean(samples))
    if name not in PERCENTILES:
        raise ValueError(f"statistic {name!r} is unknown; there are {', '.join((MEAN, *PERCENTILES))}")
    return float(np.percentile(samples, PERCENTILES[name]))


def spread_of(samples: Samples) -> float:
    """Inter-quartile range over median."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else 0.0


def measure(
    session: Session,
    *,
    statistic: str,
    clock: str = WALL_CLOCK,
    baseline: Session | None = None,
    reference_ms: float | None = None,
    seconds: float = 0.2,
    max_seconds: float = 10.0,
    min_samples: int = MIN_SAMPLES,
    spread_limit: float = CPU_SPREAD_LIMIT,
    state: State | None = None,
    tries: int = 2,
) -> Latency:
    """Measure one engine, alternating with a baseline where one is given; a doubtful measurement is repeated.

    Doubtful is what never became stable, spreads, drifts, ran while the device was slowed down, or beside a baseline
    that takes another time than usual. The last is judged again whenever the measurement is read, so it is no warning.
    By processor time, doubtful is a ratio to the baseline that is not known well enough: spread and drift are those of
    the machine, and in both alike.

    Hold `device_lock` meanwhile, unless the clock is that of a thread; on processors call `cores.pin_to_one_cpu` first.

    Args:
        session: the candidate, with its inputs bound.
        statistic: `mean`, `median` or `p20`, as the target names it.
        clock: by which `session` times, as the target names it.
        baseline: an engine measured in between, with its inputs bound.
        reference_ms: what the baseline usually takes, by the same statistic; None if that is not known yet. With a
            baseline, the value is scaled by `reference_ms` ÷ the baseline's time now.
        seconds: time that the candidate itself runs, at least; twice that when the measurement is repeated. By
            processor time and with a baseline it may be less, and is twice as much at most.
        max_seconds: time that both run, at most (the block under way is finished); a slow model gives few samples.
        min_samples: samples of each, at least; by processor time five blocks of each are enough.
        spread_limit: inter-quartile range over median above which the number is doubtful.
        state: `Backend.device_state`; asked right before and right after the samples.
        tries: measurements at most.

    Returns:
        The steadiest of the measurements; `warnings` say what is doubtful in it, and are empty when nothing is.
    """
    plan = _Plan(statistic, clock, reference_ms, seconds, max_seconds, min_samples, spread_limit, state or dict)
    best = _measure_once(session, baseline, plan)
    for _ in range(1, tries):
        if not _doubtful(best, plan):
            break
        again = _measure_once(session, baseline, replace(plan, seconds=2 * seconds))
        best = min(again, best, key=lambda latency: (_doubtful(latency, plan), latency.spread))
    warnings = (*best.warnings, *_list_lasting_doubts(best, plan))
    return replace(best, warnings=warnings, around_ms=dict(session.around()))


def time_interleaved(
    sessions: Mapping[str, Session],
    rounds: int,
    *,
    block_ms: float = BLOCK_MS,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, Samples]:
    """Time several engines in turn, block by block, so that all see the same noise.

    Args:
        sessions: engines by name, inputs bound.
        rounds: blocks of each.
        block_ms: length of a block; at least one inference.
        alive: called after every block.

    Returns:
        By name (rounds, inferences of a block) float64 milliseconds; rows of one index ran one after the other.
    """
    counts = {name: warm_up(session, block_ms, np.median)[0] for name, session in sessions.items()}
    blocks = run_in_turn(sessions, counts, rounds, alive)
    return {name: np.stack([block.ms for block in own_blocks]) for name, own_blocks in blocks.items()}


def measure_together(
    sessions: Mapping[str, Session],
    rounds: int,
    *,
    statistic: str,
    clock: str = WALL_CLOCK,
    baseline: Session | None = None,
    relative: bool = True,
    reference_ms: float | None = None,
    spread_limit: float = CPU_SPREAD_LIMIT,
    state: State | None = None,
    again: bool = True,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, Latency]:
    """Measure several engines in turn, as `time_interleaved` runs them; all once more where one of them is doubtful.

    Doubtful is what is so to `measure`. The engines are compared with each other, so one measurement is kept as a
    whole: the second, of twice the rounds, unless it is the more doubtful.

    Args:
        sessions: engines by name, inputs bound.
        rounds: blocks of each, fewer where they are long: see `blocks.rounds_worth`.
        baseline: an engine that runs in turn with them, with its inputs bound.
        relative: whether the baseline's time counts; else it only keeps them company.
        statistic, clock, reference_ms, spread_limit, state: as `measure` has them.
        again: whether a doubtful measurement is repeated.
        alive: called after every block.

    Returns:
        By name; `warnings` say what is doubtful, as those of `measure` do.
    """
    plan = _Plan(statistic, clock, reference_ms, 0.0, math.inf, 0, spread_limit, state or dict)
    reference = baseline if relative else None
    everyone = dict(sessions) if baseline is None else {"": baseline, **sessions}
    best = _together_once(everyone, reference, rounds, plan, alive)
    if again and any(_doubtful(latency, plan) for latency in best.values()):
        second = _together_once(everyone, reference, 2 * rounds, plan, alive)
        best = min(second, best, key=lambda latencies: _doubtfulness(latencies, plan))
    return {
        name: replace(latency, warnings=(*latency.warnings, *_list_lasting_doubts(latency, plan)))
        for name, latency in best.items()
    }


def conditions_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`Latency.conditions` of two answers of `Backend.device_state`; empty if both are."""
    if not before and not after:
        return {}
    throttled = dict.fromkeys([*before.get("throttled", ()), *after.get("throttled", ())])
    return {"before": dict(before), "after": dict(after), "throttled": list(throttled)}


@dataclass(frozen=True)
class _Plan:
    """The arguments of `measure` and `measure_together` that both tries share."""

    statistic: str
    clock: str
    reference_ms: float | None
    seconds: float
    max_seconds: float
    min_samples: int
    spread_limit: float
    state: State

    @property
    def by_thread(self) -> bool:
        return self.clock == THREAD_CLOCK

    def warm_up(self, session: Session) -> tuple[int, bool]:
        """How many inferences make a block, and whether the engine became stable."""
        if self.by_thread:
            return warm_up_shortly(session, BLOCK_MS), True
        return warm_up(session, BLOCK_MS, lambda samples: statistic_of(samples, self.statistic))


def _measure_once(session: Session, baseline: Session | None, plan: _Plan) -> Latency:
    sessions = [session] if baseline is None else [session, baseline]
    warmed = [plan.warm_up(each) for each in sessions]
    before = plan.state()
    counts = [count for count, _ in warmed]
    fewest = _FEW_ROUNDS if plan.by_thread else 1
    rows = run_until(sessions, counts, lambda rows: _are_enough(rows, plan), plan.max_seconds, fewest)
    return _latency_of(rows, all(stable for _, stable in warmed), conditions_of(before, plan.state()), plan)


def _are_enough(rows: Sequence[Sequence[InferenceBlock]], plan: _Plan) -> bool:
    """Whether these blocks of a candidate and, where there is one, of its baseline tell the latency."""
    of_candidate_s = sum(float(block.ms.sum()) for block in rows[0]) / 1000
    if not plan.by_thread:
        fewest = min(sum(int(block.undisturbed.sum()) for block in blocks) for blocks in rows)
        return fewest >= plan.min_samples and of_candidate_s >= plan.seconds
    if len(rows[0]) < MIN_ROUNDS:
        few = len(rows[0]) >= _FEW_ROUNDS and of_candidate_s >= _SLOW_S
        return few and len(rows) > 1 and _ratio_error(rows) <= RATIO_AIM
    if len(rows) == 1:
        return of_candidate_s >= plan.seconds
    return of_candidate_s >= _LONGEST * plan.seconds or _ratio_error(rows) <= RATIO_AIM


def _together_once(
    everyone: Mapping[str, Session], baseline: Session | None, rounds: int, plan: _Plan, alive: Callable[[], None]
) -> dict[str, Latency]:
    """Latencies of all but the engine named `""`, relative to the baseline where there is one."""
    warmed = {}
    for name, session in everyone.items():
        warmed[name] = plan.warm_up(session)
        alive()
    before = plan.state()
    blocks = run_in_turn(everyone, {name: count for name, (count, _) in warmed.items()}, rounds, alive)
    conditions = conditions_of(before, plan.state())
    latencies = {}
    for name in everyone:
        if name:
            beside = [name] if baseline is None else [name, ""]
            stable = all(warmed[each][1] for each in beside)
            latencies[name] = _latency_of([blocks[each] for each in beside], stable, conditions, plan)
    return latencies


def _doubtful(latency: Latency, plan: _Plan) -> int:
    """How many things are doubtful: its warnings, and a baseline away from its usual time."""
    beside = np.nan if latency.baseline_ms is None else latency.baseline_ms
    return len(latency.warnings) + int(off_reference(beside, plan.reference_ms))


def _doubtfulness(latencies: Mapping[str, Latency], plan: _Plan) -> tuple[int, float]:
    several = latencies.values()
    return sum(_doubtful(latency, plan) for latency in several), max(latency.spread for latency in several)


def _latency_of(rows: list[list[InferenceBlock]], stable: bool, conditions: Mapping[str, Any], plan: _Plan) -> Latency:
    """The latency of a candidate from its blocks and those of its baseline, if any; `warnings` say what is doubtful."""
    samples = [_select_undisturbed(blocks) for blocks in rows]
    raw_ms = statistic_of(samples[0], plan.statistic)
    baseline_ms = statistic_of(samples[1], plan.statistic) if len(samples) > 1 else None
    beside = np.nan if baseline_ms is None else baseline_ms
    good = np.concatenate([block.undisturbed for block in rows[0]])
    counts = {} if good.all() else {"interrupted": int((~good).sum()), "undisturbed": int(good.sum())}
    return Latency(
        value_ms=float(scale_latencies(raw_ms, beside, plan.reference_ms)),
        raw_ms=raw_ms,
        spread=_spread(rows),
        baseline_ms=baseline_ms,
        samples_ms=samples[0],
        baseline_samples_ms=samples[1] if len(samples) > 1 else np.empty(0),
        warnings=(*_doubts(rows, stable, plan), *_slowdowns(conditions)),
        conditions={**conditions, **counts},
        wall_ms=raw_ms * _stretch(rows[0]) if plan.by_thread else None,
    )


def _select_undisturbed(blocks: Sequence[InferenceBlock]) -> Samples:
    """Samples that no other process stretched; all of them where there are no such."""
    samples = np.concatenate([block.ms for block in blocks])
    good = np.concatenate([block.undisturbed for block in blocks])
    return samples[good] if good.any() else samples


def _stretch(blocks: Sequence[InferenceBlock]) -> float:
    """Wall time over the time by the clock of the target."""
    total_ms = sum(block.total_ms for block in blocks)
    return sum(block.wall_ms for block in blocks) / total_ms if total_ms else 1.0


def _spread(rows: Sequence[Sequence[InferenceBlock]]) -> float:
    """The spread of the candidate's samples, relative to the baseline of the same round where there is one."""
    if len(rows) == 1 or any(not np.all(block.ms > 0) for block in rows[1]):
        return spread_of(_select_undisturbed(rows[0]))
    held = [replace(one, ms=one.ms / np.mean(other.ms)) for one, other in zip(*rows, strict=True)]
    return spread_of(_select_undisturbed(held))


def _ratio_error(rows: Sequence[Sequence[InferenceBlock]]) -> float:
    """Half of the 95 % interval of candidate ÷ baseline, relative, from how much its rounds differ."""
    means = np.array([[block.ms.mean() for block in blocks] for blocks in rows])
    if means.shape[1] < 2 or not np.all(means > 0):
        return 0.0
    ratios = np.log(means[0] / means[1])
    rounds = len(ratios)
    return student_point(Z95, rounds - 1) * float(np.std(ratios, ddof=1)) / math.sqrt(rounds)


def _doubts(rows: list[list[InferenceBlock]], warm: bool, plan: _Plan) -> Iterator[str]:
    """What makes a measurement worth repeating, in words."""
    if plan.by_thread:
        error = _ratio_error(rows) if len(rows) > 1 else 0.0
        if error > RATIO_LIMIT:
            yield f"the ratio to FP32 is known to ± {share_text(error)} only, more than ± {share_text(RATIO_LIMIT)}"
        return
    spread, drift = spread_of(_select_undisturbed(rows[0])), _drift(rows, plan.statistic)
    if not warm:
        yield f"warm-up never became stable: blocks differed by more than {share_text(WARM_UP_TOLERANCE)}"
    if spread > plan.spread_limit:
        yield f"spread {share_text(spread)} of the median, more than {share_text(plan.spread_limit)}"
    if abs(drift) > DRIFT_LIMIT:
        yield f"drift: the second half of the samples is {share_text(abs(drift))} {'slower' if drift > 0 else 'faster'}"


def _slowdowns(conditions: Mapping[str, Any]) -> Iterator[str]:
    if conditions.get("throttled"):
        yield f"the device was slowed down: {', '.join(conditions['throttled'])}"


def _drift(rows: list[list[InferenceBlock]], statistic: str) -> float:
    """How much longer the second half of the blocks took, relative to the baseline's; 0 where halves are too few."""
    middle = len(rows[0]) // 2
    if middle < 2:
        return 0.0
    ratios = [
        statistic_of(_select_undisturbed(blocks[-middle:]), statistic)
        / statistic_of(_select_undisturbed(blocks[:middle]), statistic)
        for blocks in rows
    ]
    return ratios[0] / (ratios[1] if len(ratios) > 1 else 1.0) - 1


def _list_lasting_doubts(latency: Latency, plan: _Plan) -> Iterator[str]:
    """What is doubtful and would be so again: other processes on the device, too few samples before time was up."""
    others = max(latency.conditions.get(when, {}).get("other_processes", 0) for when in ("before", "after"))
    if others:
        yield f"{others} other {'process uses' if others == 1 else 'processes use'} the device"
    samples = latency.conditions.get("undisturbed", len(latency.samples_ms))
    if samples < plan.min_samples and "undisturbed" in latency.conditions:
        interrupted = latency.conditions["interrupted"]
        yield (
            f"other processes interrupted {interrupted} inferences, which leaves {samples} of the {plan.min_samples} "
            "that are wanted"
        )
    elif samples < plan.min_samples and not plan.by_thread:
        yield f"only {samples} of {plan.min_samples} samples within {plan.max_seconds:g} s"
