"""Processes that build, and what their builders learn from uniform assignments while another process calibrates."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import psutil

from evaluators.cores import usable_processors
from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import BitfrontError
from search.values import REFERENCE, Assignment
from studies.run.pipeline.build_hold import BuilderProcess
from studies.run.session.backend_values import backend_kind
from studies.run.session.levels import build_at, choose_level, first_level, study_s
from studies.run.session.setup import Checked
from studies.store.records import TargetRecord

USUAL_BUILDERS = 2  # they gave 1.6 times as many evaluations on an H200, and four hardly more
_LEAST_PROCESSORS = 8  # below that calibration, builders and the process that measures take each other's
_LEAST_BYTES = 16 * 2**30  # of free memory


def make_builders(good: Checked) -> tuple[BuilderProcess, ...]:
    """As many as were asked for, or as pay on this machine; each is started by its first request."""
    count = good.config.builders
    made = []
    for number in range(_usual_builders(good) if count is None else count):
        # Not `beside`: it would take turns for the device, and be held with the turn that a measurement waits for.
        job = replace(good.keeper.job, folder=str(good.folder / f"builder{number}"), only_builds=True)
        made.append(EvaluatorProcess(job, good.folder / f"builder{number}.log", good.keeper.limits))
    return tuple(map(BuilderProcess, made))


def _usual_builders(good: Checked) -> int:
    """Several where a builder learns, which takes a processor and leaves the device to others most of the time."""
    roomy = usable_processors() >= _LEAST_PROCESSORS and psutil.virtual_memory().available >= _LEAST_BYTES
    return USUAL_BUILDERS if _learns(good) and roomy else 0


def _learns(good: Checked) -> bool:
    return backend_kind(good.config).later_builds < 1


class FirstBuilds:
    """Builds uniform assignments in threads, so that builders have learnt from them when the search begins.

    The first builds of TensorRT take minutes, most of them for the times of tactics, which no range changes. FP32 and
    FP16 need no ranges at all, so their engines serve the evaluations too, unless recovery changes the model.

    Args:
        builders: take the lower precisions, several one each; without them the process that measures does.
    """

    def __init__(self, good: Checked, target: TargetRecord, builders: Sequence[BuilderProcess]) -> None:
        self._good = good
        self._target = target
        self._over = threading.Event()
        self._closed = threading.Event()
        # The uniform assignments below FP32, from the coarsest.
        found = [good.space.uniform(precision) for precision in sorted(good.space.precisions, reverse=True)]
        lower = [each for each in dict.fromkeys(found) if each != good.space.uniform(REFERENCE)]
        mine = [good.space.uniform(REFERENCE), *([] if builders else lower)]
        self._work = [partial(self._build_all, good.keeper, list(dict.fromkeys(mine)), None)]
        for number, builder in enumerate(builders):
            # One of several learns from one precision alone: while it built another, nobody could ask it for a mix.
            theirs = lower if len(builders) == 1 else lower[number % max(1, len(lower)) :][:1]
            self._work.append(partial(self._build_all, builder.process, theirs, builder))
        self._measurer_idle = threading.Event()

    def start(self) -> None:
        for number, work in enumerate(self._work):
            idle = threading.Event() if number else self._measurer_idle
            threading.Thread(target=self._serve, args=(work, idle), name="bitfront-first-build", daemon=True).start()

    def wait(self) -> None:
        """Begin nothing else, and wait until the process that measures is free; others answer when they are."""
        self._over.set()
        with time_spent("first builds"):
            self._measurer_idle.wait()

    def close(self) -> None:
        """Let the threads end. A process that only builds ends with the thread that has started it."""
        self._over.set()
        self._closed.set()

    def _serve(self, work: partial[None], idle: threading.Event) -> None:
        try:
            with suppress(BitfrontError):  # what fails here fails again as an evaluation, which says so
                work()
        finally:
            idle.set()
            self._closed.wait()

    def _build_all(
        self, process: EvaluatorProcess, assignments: Sequence[Assignment], builder: BuilderProcess | None
    ) -> None:
        config, target = self._good.config, self._target
        build_at(process, first_level(config, target))
        choosing = builder is None and config.builder_option("optimization_level") is None
        for assignment in assignments:
            if builder is not None:
                builder.known.add(assignment)
            seconds = process.ask("building before the search").builds.build_first(assignment)
            if choosing and target.optimization_level is None:
                build_at(process, choose_level(seconds, study_s(config)).level)
            choosing = False
            if self._over.is_set():
                return


@contextmanager
def calibrating_beside(
    good: Checked, target: TargetRecord, builders: Sequence[BuilderProcess]
) -> Iterator[tuple[Checked, FirstBuilds | None]]:
    """Let builders learn while the context calibrates in a process of its own.

    Call `FirstBuilds.wait` before the process that measures is asked for anything else.

    Yields:
        The same inputs with the process that calibrates: the one that measures, where no builder learns anything; and
        the first builds, None where there are none.
    """
    if not _learns(good):
        yield good, None
        return
    job = replace(good.keeper.job, folder=str(good.folder / "calibration"), beside=True)
    builds = FirstBuilds(good, target, builders)
    with EvaluatorProcess(job, good.folder / "calibration.log", good.keeper.limits) as process:
        builds.start()
        try:
            yield replace(good, keeper=process, folder=good.folder / "calibration"), builds
        except BaseException:
            builds.close()
            for each in (good.keeper, *(builder.process for builder in builders)):
                each.cancel()  # nobody waits for what it builds
            raise
