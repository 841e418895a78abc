"""How often `bitfront gate` is wrong, and how small a worsening it finds, by resampling stored scores and times.

`benchmarks.gate.record` stored what is resampled. Engines that are equally good are made of two that are not: on each
sample, or cluster, chance decides which of the two scores is the candidate's. A worsening is planted by turning right
answers of the candidate into wrong ones, by subtracting from its scores, or by multiplying its times. The decisions are
those of the verb, at the level of a gate with two checks. Every number is that of so many runs, the same each time.

usage: python -m benchmarks.gate.simulate [--runs 200] [--docs]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.gate.record import STORED as SCORES
from benchmarks.page import table, write_section
from studies.gate.check import Check, Verdict, divide_level
from studies.gate.latency import ProcessTimes, judge_latency
from studies.gate.loss import PairedScores, judge_loss

STORED = RESULTS / "gate.json"
LEVEL = divide_level(2)
PROCESSES = 6
# Ratios of two engines in 10 processes of a quiet 2-core machine had a range of 0.8 % (evaluators/measure/latency.py),
# which is three standard deviations of a ratio, and a ratio has two engines.
QUIET_DEVIATION = 0.008 / 3 / np.sqrt(2)
HEAD = ("case", "limit", "null runs", "false alarms", "wrongly held at the limit", "planted", "found")

Floats = NDArray[np.float64]
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One kind of check on one kind of data.

    Attributes:
        judge: draws one sample in which the candidate is worse by so much, and judges it by a limit.
        limit: by which a worsening is found or not.
        planted: how much worse the candidate is then; None for what the check of an equal candidate calls detectable.
    """

    name: str
    judge: Callable[[Random, float, float], Check]
    limit: float
    planted: float | None = None


def cases(data: dict[str, NDArray[Any]]) -> list[Case]:
    """All that is simulated."""
    clusters = data["clusters"]
    found = []
    for other, samples in (("half", 1000), ("int8", 1000), ("half", 5000)):
        draw = share_draw(data["top1_fp32"], data[f"top1_{other}"], samples)
        found.append(Case(f"top1, fp32 or {other}, {samples} samples", draw, 0.01))
    draw = cluster_draw(data["top1_fp32"], data["top1_int8"], clusters)
    found.append(Case(f"top1, fp32 or int8, {len(np.unique(clusters))} clusters", draw, 0.01))
    found.append(Case("SQNR, half or int8, 500 samples", mean_draw(data["sqnr_half"], data["sqnr_int8"], 500), 1.0))
    times = data["times_ms"]
    found.append(Case(f"latency, {PROCESSES} processes, as recorded on a busy machine", time_draw(times), 0.01))
    steady = time_draw(calm_times(times))
    found.append(Case(f"latency, {PROCESSES} processes, scaled to a quiet machine", steady, 0.01, 0.03))
    return found


def calm_times(times: Floats) -> Floats:
    """The recorded times, whose deviations from the mean of a process are scaled to those of a quiet machine."""
    logs = np.log(times)
    middle = logs.mean(axis=1, keepdims=True)
    deviations = logs - middle
    return np.asarray(np.exp(middle + deviations * QUIET_DEVIATION / deviations.std()))


# -- draws -------------------------------------------------------------------------------------------------------------


def swap(random: Random, one: Floats, other: Floats, codes: NDArray[Any]) -> tuple[Floats, Floats]:
    """Two engines of the same accuracy: those of a code are swapped together, or not."""
    swapped = random.random(int(codes.max()) + 1)[codes] < 0.5
    return np.where(swapped, other, one).astype(float), np.where(swapped, one, other).astype(float)


def share_draw(one: NDArray[Any], other: NDArray[Any], samples: int) -> Callable[[Random, float, float], Check]:
    def judge(random: Random, worse: float, limit: float) -> Check:
        rows = random.integers(len(one), size=samples)
        candidate, baseline = swap(random, one[rows], other[rows], np.arange(samples))
        spoil(random, candidate, worse)
        return judge_loss(PairedScores(candidate, baseline, ratio=True, higher_is_better=True), limit, LEVEL)

    return judge


def spoil(random: Random, candidate: Floats, worse: float) -> None:
    """Turn right answers into wrong ones, each with the same probability, so that this share is lost on average."""
    right = candidate == 1
    candidate[right & (random.random(len(candidate)) < worse / max(right.mean(), 1e-9))] = 0


def cluster_draw(
    one: NDArray[Any], other: NDArray[Any], clusters: NDArray[Any]
) -> Callable[[Random, float, float], Check]:
    members = [np.flatnonzero(clusters == code) for code in np.unique(clusters)]

    def judge(random: Random, worse: float, limit: float) -> Check:
        drawn = [members[index] for index in random.integers(len(members), size=len(members))]
        rows, codes = np.concatenate(drawn), np.repeat(np.arange(len(drawn)), [len(each) for each in drawn])
        candidate, baseline = swap(random, one[rows], other[rows], codes)
        spoil(random, candidate, worse)
        scores = PairedScores(candidate, baseline, ratio=True, higher_is_better=True, clusters=codes)
        return judge_loss(scores, limit, LEVEL)

    return judge


def mean_draw(one: NDArray[Any], other: NDArray[Any], samples: int) -> Callable[[Random, float, float], Check]:
    def judge(random: Random, worse: float, limit: float) -> Check:
        rows = random.integers(len(one), size=samples)
        candidate, baseline = swap(random, one[rows], other[rows], np.arange(samples))
        return judge_loss(PairedScores(candidate - worse, baseline, ratio=False, higher_is_better=True), limit, LEVEL)

    return judge


def time_draw(times: Floats) -> Callable[[Random, float, float], Check]:
    def judge(random: Random, worse: float, limit: float) -> Check:
        drawn = random.permuted(times[random.integers(len(times), size=PROCESSES)], axis=1)
        found = [ProcessTimes(float(one) * (1 + worse), float(two), float(three)) for one, two, three in drawn]
        return judge_latency(found, limit, LEVEL)

    return judge


# -- counts ------------------------------------------------------------------------------------------------------------


def simulate(case: Case, runs: int, seed: int) -> dict[str, Any]:
    """Counts of one case."""
    random = np.random.default_rng(seed)
    alarms = sum(case.judge(random, 0.0, 0.0).verdict is Verdict.FAILS for _ in range(runs))
    held = sum(case.judge(random, case.limit, case.limit).verdict is Verdict.HOLDS for _ in range(runs))
    planted, hits = [], 0
    for _ in range(runs):
        worse = case.judge(random, 0.0, case.limit).smallest if case.planted is None else case.planted
        if worse is not None:
            planted.append(worse)
            hits += case.judge(random, worse, case.limit).verdict is Verdict.FAILS
    return {
        "case": case.name,
        "limit": case.limit,
        "runs": runs,
        "false_alarms": alarms,
        "wrongly_held": held,
        "planted": float(np.median(planted)),
        "planted_runs": len(planted),
        "found": hits,
    }


def rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row of texts per case."""
    told = []
    for one in found:
        show = "{:.2f} dB".format if one["case"].startswith("SQNR") else (lambda value: f"{100 * value:.2f} %")
        counts = [str(one["runs"]), str(one["false_alarms"]), str(one["wrongly_held"])]
        share = one["found"] / one["planted_runs"]
        told.append([one["case"], show(one["limit"]), *counts, show(one["planted"]), f"{share:.1%}"])
    return told


def main(runs: int, *, docs: bool) -> None:
    data = dict(np.load(SCORES))
    found = [simulate(case, runs, seed) for seed, case in enumerate(cases(data))]
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    text = table(HEAD, rows(found))
    print(text)
    if docs:
        write_section("gate", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks-tables.md")
    given = parser.parse_args()
    main(given.runs, docs=given.docs)
