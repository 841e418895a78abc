"""The latency of one inference, measured so that a second process on the same target would get the same result.

The habits are pyperf's (https://pyperf.readthedocs.io): raw samples kept, statistics derived, warm-up until stable,
and a warning wherever a number is doubtful. What noise is left on a shared CPU is mostly common to all that runs at
that moment, so candidate and baseline run in short alternating blocks and their ratio is what counts.

Measured on a 2-core VM (a 0.3 ms INT8 against a 0.8 ms FP32 network, one pinned thread, 10 fresh processes each),
range of the ratio of 20th percentiles: blocks of 2 ms 2.7 %, 5 ms 2.5 %, 10 ms 1.5 %, 20 ms 0.8 % with 0.2 s of the
candidate; 20 ms and 1 s 0.7 %; the candidate's own time 2.8 %. With three busy processes on the two cores, 0.6 s:
ratio of 20th percentiles 1.9 to 3.8 %, of medians 5 to 7 %, median of the ratios of neighbouring blocks 5 to 7 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.engine import Session
from evaluators.measure.latency_scale import off_reference, scaled, share_text
from search.values import Latency

Samples = NDArray[np.float64]
State = Callable[[], Mapping[str, Any]]

PERCENTILES: Mapping[str, float] = {"median": 50.0, "p20": 20.0}
CPU_SPREAD_LIMIT = 0.10
GPU_SPREAD_LIMIT = 0.02
MIN_SAMPLES = 50
BLOCK_MS = 20.0
MAX_COUNT = 10_000
WARM_UP_TOLERANCE = 0.02
WARM_UP_BLOCKS = 3  # that many in a row must agree
MAX_WARM_UP_S = 2.0
DRIFT_LIMIT = 0.03


def statistic_of(samples: Samples, name: str) -> float:
    """The named statistic, `median` or `p20` (20th percentile), of samples of any shape; raises ValueError."""
    if name not in PERCENTILES:
        raise ValueError(f"statistic {name!r} is unknown; there are {', '.join(PERCENTILES)}")
    return float(np.percentile(samples, PERCENTILES[name]))


def spread_of(samples: Samples) -> float:
    """Inter-quartile range over median."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else 0.0


def measure(
    session: Session,
    *,
    statistic: str,
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

    Hold `device_lock` meanwhile; on CPUs call `cores.pin_to_one_cpu` first.

    Args:
        session: the candidate, with its inputs bound.
        statistic: `median` or `p20`, as the target names it.
        baseline: an engine measured in between, with its inputs bound.
        reference_ms: what the baseline usually takes, by the same statistic; None if that is not known yet. With a
            baseline, the value is scaled by `reference_ms` ÷ the baseline's time now.
        seconds: time that the candidate itself runs, at least; twice that when the measurement is repeated.
        max_seconds: time that both run, at most (the block under way is finished); a slow model gives few samples.
        min_samples: samples of each, at least.
        spread_limit: inter-quartile range over median above which the number is doubtful.
        state: `Backend.device_state`; asked right before and right after the samples.
        tries: measurements at most.

    Returns:
        The steadiest of the measurements; `warnings` say what is doubtful in it, and are empty when nothing is.
    """
    plan = _Plan(statistic, reference_ms, seconds, max_seconds, min_samples, spread_limit, state or dict)
    best = _measure_once(session, baseline, plan)
    for _ in range(1, tries):
        if not _doubtful(best, plan):
            break
        again = _measure_once(session, baseline, replace(plan, seconds=2 * seconds))
        best = min(again, best, key=lambda latency: (_doubtful(latency, plan), latency.spread))
    warnings = (*best.warnings, *_unmended(best, plan))
    return replace(best, warnings=warnings, around_ms=dict(session.around()))


def interleaved(
    sessions: Mapping[str, Session],
    rounds: int,
    *,
    block_ms: float = BLOCK_MS,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, Samples]:
    """Time several engines in turn, block by block, so that all see the same noise: for finalists and a baseline.

    Args:
        sessions: engines by name, inputs bound.
        rounds: blocks of each.
        block_ms: length of a block; at least one inference.
        alive: called after every block.

    Returns:
        By name (rounds, inferences of a block) float64 milliseconds; rows of one index ran one after the other.
    """
    warmed = _warm_all(sessions, "median", block_ms, alive)
    return {name: np.stack(rows) for name, rows in _in_turn(sessions, warmed, rounds, alive).items()}


def measure_together(
    sessions: Mapping[str, Session],
    rounds: int,
    *,
    statistic: str,
    baseline: Session | None = None,
    relative: bool = True,
    reference_ms: float | None = None,
    spread_limit: float = CPU_SPREAD_LIMIT,
    state: State | None = None,
    again: bool = True,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, Latency]:
    """Measure several engines in turn, as `interleaved` runs them; all once more where one of them is doubtful.

    Doubtful is what is so to `measure`. The engines are compared with each other, so one measurement is kept as a
    whole: the second, of twice the rounds, unless it is the more doubtful.

    Args:
        sessions: engines by name, inputs bound.
        rounds: blocks of each.
        baseline: an engine that runs in turn with them, with its inputs bound.
        relative: whether the baseline's time counts; else it only keeps them company.
        statistic, reference_ms, spread_limit, state: as `measure` has them.
        again: whether a doubtful measurement is repeated.
        alive: called after every block.

    Returns:
        By name; `warnings` say what is doubtful, as those of `measure` do.
    """
    plan = _Plan(statistic, reference_ms, 0.0, math.inf, 0, spread_limit, state or dict)
    reference = baseline if relative else None
    everyone = dict(sessions) if baseline is None else {"": baseline, **sessions}
    best = _together_once(everyone, reference, rounds, plan, alive)
    if again and any(_doubtful(latency, plan) for latency in best.values()):
        second = _together_once(everyone, reference, 2 * rounds, plan, alive)
        best = min(second, best, key=lambda found: _doubtfulness(found, plan))
    return {
        name: replace(latency, warnings=(*latency.warnings, *_unmended(latency, plan)))
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
    reference_ms: float | None
    seconds: float
    max_seconds: float
    min_samples: int
    spread_limit: float
    state: State


def _measure_once(session: Session, baseline: Session | None, plan: _Plan) -> Latency:
    sessions = [session] if baseline is None else [session, baseline]
    warmed = [_warm_up(each, plan.statistic, BLOCK_MS) for each in sessions]
    before = plan.state()
    rows = _alternate(sessions, [count for count, _ in warmed], plan)
    return _latency_of(rows, all(stable for _, stable in warmed), conditions_of(before, plan.state()), plan)


def _together_once(
    everyone: Mapping[str, Session], baseline: Session | None, rounds: int, plan: _Plan, alive: Callable[[], None]
) -> dict[str, Latency]:
    """Of all but the one named `""`; held against the baseline where one is given."""
    warmed = _warm_all(everyone, plan.statistic, BLOCK_MS, alive)
    before = plan.state()
    blocks = _in_turn(everyone, warmed, rounds, alive)
    conditions = conditions_of(before, plan.state())
    found = {}
    for name in everyone:
        if name:
            beside = [name] if baseline is None else [name, ""]
            stable = all(warmed[each][1] for each in beside)
            found[name] = _latency_of([blocks[each] for each in beside], stable, conditions, plan)
    return found


def _doubtful(latency: Latency, plan: _Plan) -> int:
    """How many things are doubtful: its warnings, and a baseline away from its usual time."""
    beside = np.nan if latency.baseline_ms is None else latency.baseline_ms
    return len(latency.warnings) + int(off_reference(beside, plan.reference_ms))


def _doubtfulness(found: Mapping[str, Latency], plan: _Plan) -> tuple[int, float]:
    latencies = found.values()
    return sum(_doubtful(latency, plan) for latency in latencies), max(latency.spread for latency in latencies)


def _latency_of(rows: list[list[Samples]], stable: bool, conditions: Mapping[str, Any], plan: _Plan) -> Latency:
    """Of the blocks of a candidate and, where there is one, of its baseline; `warnings` say what is doubtful."""
    samples = [np.concatenate(blocks) for blocks in rows]
    raw_ms = statistic_of(samples[0], plan.statistic)
    baseline_ms = statistic_of(samples[1], plan.statistic) if len(samples) > 1 else None
    beside = np.nan if baseline_ms is None else baseline_ms
    return Latency(
        value_ms=float(scaled(raw_ms, beside, plan.reference_ms)),
        raw_ms=raw_ms,
        spread=spread_of(samples[0]),
        baseline_ms=baseline_ms,
        samples_ms=samples[0],
        baseline_samples_ms=samples[1] if len(samples) > 1 else np.empty(0),
        warnings=(*_doubts(rows, stable, plan), *_slowdowns(conditions)),
        conditions=conditions,
    )


def _warm_all(
    sessions: Mapping[str, Session], statistic: str, block_ms: float, alive: Callable[[], None]
) -> dict[str, tuple[int, bool]]:
    """By name what `_warm_up` says."""
    warmed = {}
    for name, session in sessions.items():
        warmed[name] = _warm_up(session, statistic, block_ms)
        alive()
    return warmed


def _in_turn(
    sessions: Mapping[str, Session], warmed: Mapping[str, tuple[int, bool]], rounds: int, alive: Callable[[], None]
) -> dict[str, list[Samples]]:
    """Blocks of each, in rounds."""
    blocks: dict[str, list[Samples]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            blocks[name].append(_block(session, warmed[name][0]))
            alive()
    return blocks


def _alternate(sessions: list[Session], counts: list[int], plan: _Plan) -> list[list[Samples]]:
    """Blocks of each session, strictly in turn, until there are enough or time is up."""
    rows: list[list[Samples]] = [[] for _ in sessions]
    spent_ms, of_candidate_ms, fewest = 0.0, 0.0, 0
    while fewest < plan.min_samples or of_candidate_ms < 1000 * plan.seconds:
        for session, count, blocks in zip(sessions, counts, rows, strict=True):
            blocks.append(_block(session, count))
            spent_ms += float(blocks[-1].sum())
        of_candidate_ms += float(rows[0][-1].sum())
        fewest = min(sum(len(block) for block in blocks) for blocks in rows)
        if spent_ms >= 1000 * plan.max_seconds:
            break
    return rows


def _block(session: Session, count: int) -> Samples:
    """(count,) milliseconds, after one inference that is not counted where a block has several.

    The first inference after another engine has run finds its weights gone from the caches: it took 6 % (0.8 ms
    network) to 24 % (0.3 ms) longer. Where a block is one long inference that matters little and would cost double.
    """
    return session.time(count) if count == 1 else session.time(count + 1)[1:]


def _warm_up(session: Session, statistic: str, block_ms: float) -> tuple[int, bool]:
    """Run blocks until three in a row agree within 2 %, for 2 s at most (three blocks at least).

    Returns:
        How many inferences make a block, and whether the engine became stable.
    """
    session.time(1)  # the first inference allocates; it says nothing about the rest
    count, spent_ms = 1, 0.0
    recent: list[float] = []
    while spent_ms < 1000 * MAX_WARM_UP_S or len(recent) < WARM_UP_BLOCKS:
        samples = session.time(count)
        spent_ms += float(samples.sum())
        recent = [*recent, statistic_of(samples, statistic)][-WARM_UP_BLOCKS:]
        count = max(1, min(MAX_COUNT, round(block_ms / max(recent[-1], 1e-6))))
        if len(recent) == WARM_UP_BLOCKS and max(recent) <= (1 + WARM_UP_TOLERANCE) * min(recent):
            return count, True
    return count, False


def _doubts(rows: list[list[Samples]], warm: bool, plan: _Plan) -> Iterator[str]:
    """What makes a measurement worth repeating, in words."""
    spread, drift = spread_of(np.concatenate(rows[0])), _drift(rows, plan.statistic)
    if not warm:
        yield f"warm-up never became stable: blocks differed by more than {share_text(WARM_UP_TOLERANCE)}"
    if spread > plan.spread_limit:
        yield f"spread {share_text(spread)} of the median, more than {share_text(plan.spread_limit)}"
    if abs(drift) > DRIFT_LIMIT:
        yield f"drift: the second half of the samples is {share_text(abs(drift))} {'slower' if drift > 0 else 'faster'}"


def _slowdowns(conditions: Mapping[str, Any]) -> Iterator[str]:
    if conditions.get("throttled"):
        yield f"the device was slowed down: {', '.join(conditions['throttled'])}"


def _drift(rows: list[list[Samples]], statistic: str) -> float:
    """How much longer the second half of the blocks took, relative to the baseline's; 0 where halves are too few."""
    middle = len(rows[0]) // 2
    if middle < 2:
        return 0.0
    ratios = [
        statistic_of(np.concatenate(blocks[-middle:]), statistic)
        / statistic_of(np.concatenate(blocks[:middle]), statistic)
        for blocks in rows
    ]
    return ratios[0] / (ratios[1] if len(ratios) > 1 else 1.0) - 1


def _unmended(latency: Latency, plan: _Plan) -> Iterator[str]:
    """What is doubtful and would be so again: other processes on the device, too few samples before time was up."""
    others = max(latency.conditions.get(when, {}).get("other_processes", 0) for when in ("before", "after"))
    if others:
        yield f"{others} other {'process uses' if others == 1 else 'processes use'} the device"
    if len(latency.samples_ms) < plan.min_samples:
        yield f"only {len(latency.samples_ms)} of {plan.min_samples} samples within {plan.max_seconds:g} s"
