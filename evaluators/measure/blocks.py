"""Running engines in blocks of a few inferences, strictly in turn, so that what disturbs one disturbs all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from evaluators.engine import Session


Samples = NDArray[np.float64]

BLOCK_MS = 20.0
MAX_COUNT = 10_000
MANY = 8  # inferences of a block, from which on its first is not counted
WARM_UP_TOLERANCE = 0.02
WARM_UP_BLOCKS = 3  # that many in a row must agree
MAX_WARM_UP_S = 2.0
_LONG_BLOCK_MS = 100.0  # a block of so long an inference averages over more noise than several short ones
_FEWEST_ROUNDS = 5  # where blocks are that long


@dataclass(frozen=True)
class InferenceBlock:
    """Inferences of one engine, one right after the other.

    Attributes:
        ms: (n,) milliseconds by the clock of the target, of those that count.
        undisturbed: (n,) bool, False for those that other processes are known to have stretched.
        total_ms: what all inferences took by that clock, the one that does not count too.
        wall_ms: what they took on the wall.
    """

    ms: Samples
    undisturbed: NDArray[np.bool_]
    total_ms: float
    wall_ms: float

    @property
    def spent_ms(self) -> float:
        """What is taken from the time that there is."""
        return max(self.total_ms, self.wall_ms)


def time_block(session: Session, count: int) -> InferenceBlock:
    """Time some inferences, after one that is not counted where a block has many.

    The first inference after another engine has run finds its weights gone from the caches: it took 6 % (0.8 ms
    network) to 24 % (0.3 ms) longer. Where a block is a few long inferences that matters little and would cost much.
    """
    uncounted = int(count >= MANY)
    start = time.perf_counter_ns()
    times = session.time(count + uncounted)
    wall_ms = (time.perf_counter_ns() - start) / 1e6
    counted = slice(uncounted, None)
    samples, masked = np.ma.getdata(times), np.ma.getmaskarray(times)
    return InferenceBlock(samples[counted], ~masked[counted], float(samples.sum()), wall_ms)


def rounds_worth(rounds: int, block_ms: float) -> int:
    """How many of some rounds are worth their time where each block of an engine takes so long."""
    return min(rounds, max(_FEWEST_ROUNDS, round(rounds * _LONG_BLOCK_MS / max(block_ms, _LONG_BLOCK_MS))))


def run_in_turn(
    sessions: Mapping[str, Session], counts: Mapping[str, int], rounds: int, alive: Callable[[], None]
) -> dict[str, list[InferenceBlock]]:
    """Blocks of each, in rounds.

    Args:
        counts: inferences of a block of each.
        rounds: at most; as many as `rounds_worth` says, by the quickest engine of the first round.
        alive: called after every block.
    """
    blocks: dict[str, list[InferenceBlock]] = {name: [] for name in sessions}
    done = 0
    while done < (rounds_worth(rounds, min(each[0].spent_ms for each in blocks.values())) if done else rounds):
        for name, session in sessions.items():
            blocks[name].append(time_block(session, counts[name]))
            alive()
        done += 1
    return blocks


def run_until(
    sessions: Sequence[Session],
    counts: Sequence[int],
    enough: Callable[[Sequence[Sequence[InferenceBlock]]], bool],
    max_seconds: float,
    fewest: int = 1,
) -> list[list[InferenceBlock]]:
    """Blocks of each session, strictly in turn, until there are enough or time is up; one of each at least.

    Args:
        fewest: blocks of each, before which time is up by the clock of the target alone: a busy machine must not leave
            so few that they have to be taken again.
    """
    rows: list[list[InferenceBlock]] = [[] for _ in sessions]
    spent_ms = clock_ms = 0.0
    most_ms = 1000 * max_seconds
    while not rows[0] or ((clock_ms if len(rows[0]) < fewest else spent_ms) < most_ms and not enough(rows)):
        for session, count, blocks in zip(sessions, counts, rows, strict=True):
            blocks.append(time_block(session, count))
            spent_ms += blocks[-1].spent_ms
            clock_ms += blocks[-1].total_ms
    return rows


def warm_up(session: Session, block_ms: float, typical: Callable[[Samples], float]) -> tuple[int, bool]:
    """Run blocks until three in a row agree within 2 %, for 2 s at most (three blocks at least).

    Args:
        typical: the statistic by which blocks are compared.

    Returns:
        How many inferences make a block, and whether the engine became stable.
    """
    session.time(1)  # the first inference allocates; it says nothing about the rest
    count, spent_ms = 1, 0.0
    recent: list[float] = []
    while spent_ms < 1000 * MAX_WARM_UP_S or len(recent) < WARM_UP_BLOCKS:
        times = session.time(count)
        samples, undisturbed = np.ma.getdata(times), ~np.ma.getmaskarray(times)
        spent_ms += float(samples.sum())
        recent = [*recent, typical(samples[undisturbed] if undisturbed.any() else samples)][-WARM_UP_BLOCKS:]
        count = _count_of(block_ms, recent[-1])
        if len(recent) == WARM_UP_BLOCKS and max(recent) <= (1 + WARM_UP_TOLERANCE) * min(recent):
            return count, True
    return count, False


def warm_up_shortly(session: Session, block_ms: float) -> int:
    """Run a block; how many inferences make one. By processor time a cold start is over after the first inferences."""
    if float(session.time(1)[0]) >= _LONG_BLOCK_MS:  # what it allocates hardly shows
        return 1
    count = _count_of(block_ms, float(session.time(1)[0]))
    return _count_of(block_ms, float(session.time(count).mean()))


def _count_of(block_ms: float, ms: float) -> int:
    return max(1, min(MAX_COUNT, round(block_ms / max(ms, 1e-6))))
