"""The start time of a command, and the kinds of work that its time is counted by."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from evaluators.stopwatch import Stopwatch, current_stopwatch, use_stopwatch
from search.values import Evaluation

KINDS: Mapping[str, str] = {
    "start": "start of the process, checking inputs",
    "calibration": "calibration",
    "first builds": "builds of the uniform assignments",
    "builds": "lowering and builds of mixes",
    "loading": "audits, loading engines",
    "reference": "FP32's own engine and outputs",
    "timing": "latency",
    "running": "engines over the samples",
    "scoring": "scoring outputs",
    "evaluator": "evaluator process: starts, attempts that died, what is under way",
    "sampler": "sampler",
    "sensitivities": "sensitivities",
    "tie band": "tie band, drift",
    "finalists": "finalists",
    "database": "database",
    "waiting": "waiting for other processes",
    "other": "other",
}
"""Every kind of work that time is spent on, with what it is, in the order of tables."""

_OF_STAGE = {
    "lower": "builds",
    "build": "builds",
    "audit": "loading",
    "load": "loading",
    "latency": "timing",
    "run": "running",
    "score": "scoring",
    "reference": "reference",
    "wait": "waiting",
}
_STARTED = "BITFRONT_STARTED"  # of workers: when their parent's command began, on the clock of `time.monotonic`


class _Command:
    """Whether the next run is that of a command line, which began with its process."""

    is_whole_process = False


def note_command() -> None:
    """Say that this process is one command: what it runs next began when the process did."""
    _Command.is_whole_process = True


@contextmanager
def clocked_run() -> Iterator[None]:
    """Count the time of one run, from the start of its command; within another run nothing. Also a decorator."""
    if current_stopwatch() is not None:
        yield
        return
    with use_stopwatch(Stopwatch(_run_start(), "start")):
        yield


def _run_start() -> float:
    """When the run began, on the clock of `time.monotonic`."""
    if not _Command.is_whole_process:
        return time.monotonic()
    import psutil

    _Command.is_whole_process = False
    age_s = time.time() - psutil.Process().create_time()
    return time.monotonic() - max(0.0, age_s)


def limit_start() -> float:
    """When a time limit of this run began to count, on the clock of `time.monotonic`: for workers with their parent."""
    parent_start, watch = os.environ.get(_STARTED), current_stopwatch()
    if parent_start is not None:
        return float(parent_start)
    return time.monotonic() if watch is None else watch.began


def for_workers() -> dict[str, str]:
    """Environment that lets the time limits of workers count from the start of this command."""
    return {_STARTED: repr(limit_start())}


def begin_search() -> None:
    """From now on what nothing else measures counts as `other`, no longer as the start."""
    if (watch := current_stopwatch()) is not None:
        watch.turn("other")


def count_parts(evaluation: Evaluation, *, uniform: bool, at_most_s: float = math.inf) -> None:
    """Divide what was counted as `evaluator` while an evaluation ran among its parts.

    Args:
        uniform: whether it is a uniform assignment, whose build is one of the first ones.
        at_most_s: seconds that were spent waiting for it, where other evaluations went on meanwhile: its parts share
            them.
    """
    if (watch := current_stopwatch()) is None:
        return
    share = min(1.0, at_most_s / max(sum(evaluation.stage_s.values()), 1e-9))
    for stage, seconds in evaluation.stage_s.items():
        kind = _OF_STAGE[stage]
        watch.move("evaluator", "first builds" if uniform and kind == "builds" else kind, share * seconds)
