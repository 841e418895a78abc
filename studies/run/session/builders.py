"""Processes that only build, beside the one that measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from evaluators.cores import usable_processors
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from studies.options.config import SearchConfig
from studies.run.pipeline.build_hold import BuilderProcess
from studies.run.session.backend_values import backend_kind

USUAL_BUILDERS = 2  # they gave 1.6 times as many evaluations on an H200, and four hardly more
_LEAST_PROCESSORS = 8  # below that calibration, builders and the process that measures take each other's
_LEAST_BYTES = 16 * 2**30  # of free memory


@contextmanager
def prepared_builders(config: SearchConfig, job: Job, folder: Path) -> Iterator[tuple[EvaluatorProcess, ...]]:
    """Start as many as were asked for, or as pay on this machine: on a GPU that takes as long as checking the inputs.

    Args:
        job: of the process that measures, of which only what says how its backend is opened has to be final by now.

    Yields:
        The processes, which know no model yet; see `make_builders`. They end with the context.
    """
    count = _usual_builders(config) if config.builders is None else config.builders
    made = [EvaluatorProcess(job, folder / f"builder{number}.log") for number in range(count)]
    try:
        for process in made:
            process.prepare()
        yield tuple(made)
    finally:
        for process in made:
            process.close()


def make_builders(prepared: Sequence[EvaluatorProcess], measuring: EvaluatorProcess) -> tuple[BuilderProcess, ...]:
    """Let prepared processes build what one that measures does."""
    for process in prepared:
        # Not `beside`: it would take turns for the device, and be held with the turn that a measurement waits for.
        process.job = replace(measuring.job, folder=str(process.log.with_suffix("")), only_builds=True)
        process.limits = measuring.limits
    return tuple(map(BuilderProcess, prepared))


def learns(config: SearchConfig) -> bool:
    """Whether builders learn from what they build, so that the first builds take the longest."""
    return backend_kind(config).later_builds < 1


def _usual_builders(config: SearchConfig) -> int:
    """Several where a builder learns, which takes a processor and leaves the device to others most of the time."""
    roomy = usable_processors() >= _LEAST_PROCESSORS and psutil.virtual_memory().available >= _LEAST_BYTES
    return USUAL_BUILDERS if learns(config) and roomy else 0
