"""TensorRT's optimization level for a study on a target: given, or chosen by the time of the first build.

Measured on an H200 with TensorRT 8.6: level 3 takes three times as long to build as level 2 (84 s against 27 s for the
FP32 engine of a network with SiLU, 230 s against 76 s for FP16; 2.3 to 2.8 times for ResNet-18), and its engines are 3
to 11 % faster. Level 1 builds no sooner than level 2. Of all uniform assignments together the first builds take about
five times as long as that of FP32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError, StudyError
from search.values import REFERENCE
from studies.judging.findings.optimization_levels import level_texts
from studies.store.records import TargetRecord

if TYPE_CHECKING:
    from evaluators.process.keeper import EvaluatorProcess
    from studies.options.config import SearchConfig
    from studies.run.work import Work

START_LEVEL = 2  # that the first engine is built at
HIGH_LEVEL = 3  # TensorRT's own default
TIMES_LONGER = 3  # that the high level builds, compared with the one at the start
ALL_FIRST = 5  # what the first builds of all precisions take, compared with that of FP32
SHARE = 0.15  # of the study's time that they may take at the high level
TRIAL_S = 8.0  # that a trial is taken to last where no time limit says how long the study may take
_KEY = "optimization_level"
_TASK = "optimization level"


@dataclass(frozen=True)
class LevelChoice:
    """An optimization level and, in words, why it was chosen."""

    level: int
    reason: str


def first_level(config: SearchConfig, target: TargetRecord) -> int:
    """The level of the first build: the target's, the one that is asked for, or the one to choose by."""
    option_level: int | None = config.builder_option(_KEY)
    known = target.optimization_level if target.optimization_level is not None else option_level
    return START_LEVEL if known is None else known


@time_spent("evaluator")
def settle_level(work: Work) -> None:
    """Fix the optimization level of the study's target before its first evaluation, and build at it from now on.

    One worker chooses and stores it; the others, and later runs, take it over. Other backends have no such level.

    Raises:
        StudyError: another level was asked for than the study has on this target.
    """
    if _KEY not in work.bench.keeper.job.options:
        return
    option_level = work.problem.config.builder_option(_KEY)
    ledger = work.ledger
    work.crew.once(
        _TASK, lambda: ledger.reload_target().optimization_level is not None, lambda: _choose(work, option_level)
    )
    check_level(work.ledger.study.name, work.ledger.reload_target(), work.problem.config)
    assert work.ledger.target.optimization_level is not None
    _build_at(work, work.ledger.target.optimization_level)


def check_level(study: str, target: TargetRecord, config: SearchConfig) -> None:
    """Refuse another optimization level than a study has on a target.

    Raises:
        StudyError: naming both.
    """
    level, option_level = target.optimization_level, config.builder_option(_KEY)
    if level is not None and option_level not in (None, level):
        raise StudyError(
            f"resuming study {study!r} at --optimization-level {option_level}: its engines on this target are built at "
            f"level {level}, and latencies of two levels cannot be compared. Leave the option out, start a new study, "
            "or give --final-optimization-level to build exports at another level."
        )


def choose_level(first_s: float, time_s: float) -> LevelChoice:
    """The level by what the FP32 engine took to build at the start level.

    Args:
        first_s: seconds of that build.
        time_s: that the study may take.
    """
    high_s = TIMES_LONGER * ALL_FIRST * first_s
    took = f"the first build took {first_s:.0f} s" if first_s >= 1 else f"the first build took {first_s:.1f} s"
    if high_s <= SHARE * time_s:
        return LevelChoice(HIGH_LEVEL, f"{took} at level {START_LEVEL}, so level {HIGH_LEVEL} is affordable")
    return LevelChoice(START_LEVEL, f"{took}; level {HIGH_LEVEL} would take about three times as long")


def _choose(work: Work, option_level: int | None) -> None:
    choice = _by_first_build(work) if option_level is None else LevelChoice(option_level, "as asked for")
    details = {"level_reason": choice.reason}
    work.ledger.store.targets.settle(work.ledger.target.id, details=details, optimization_level=choice.level)
    work.events.note(level_texts(work.ledger.reload_target())[0])


def _by_first_build(work: Work) -> LevelChoice:
    _build_at(work, START_LEVEL)
    work.events.step("building the FP32 engine, to choose an optimization level", 0, 1)
    try:
        first_s = work.bench.keeper.ask().builds.build_first(work.problem.space.uniform(REFERENCE))
    except EvaluatorError as error:
        return LevelChoice(START_LEVEL, f"the first build failed, so the time of a higher level is not known ({error})")
    work.pace.first_build_s = first_s
    return choose_level(first_s, study_s(work.problem.config))


def study_s(config: SearchConfig) -> float:
    """Seconds that a study may take: its time limit, else what its trials usually take."""
    limit_s: float | None = config.time_limit_s
    return TRIAL_S * config.trials if limit_s is None or math.isinf(limit_s) else limit_s


def build_at(keeper: EvaluatorProcess, level: int) -> None:
    """Let a process build at a level from now on, where its backend has levels."""
    options = dict(keeper.job.options)
    if options.get(_KEY, level) != level:
        keeper.adopt(options={**options, _KEY: level})


def _build_at(work: Work, level: int) -> None:
    build_at(work.bench.keeper, level)
    work.ledger.knobs = work.bench.keeper.ask().setup.knobs()
