"""Processes that build, and what the one that measures builds while another process calibrates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil

from evaluators.cores import usable_processors
from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import BitfrontError
from search.space.choices import Space
from search.values import Assignment
from studies.run.session.backend_values import backend_kind
from studies.run.session.levels import build_at, choose_level, first_level, study_s
from studies.run.session.setup import Checked
from studies.store.records import TargetRecord

USUAL_BUILDERS = 1  # two that build gave 1.6 times as many evaluations on an H200, and four hardly more
_LEAST_PROCESSORS = 8  # below that calibration, builders and the process that measures take each other's
_LEAST_BYTES = 16 * 2**30  # of free memory


def make_builders(good: Checked) -> tuple[EvaluatorProcess, ...]:
    """As many as were asked for, or as pay on this machine; each is started by its first request."""
    count = good.config.builders
    made = []
    for number in range(_usual_builders(good) if count is None else count):
        # Not `beside`: it would take turns for the device, and be held with the turn that a measurement waits for.
        job = replace(good.keeper.job, folder=str(good.folder / f"builder{number}"), only_builds=True)
        made.append(EvaluatorProcess(job, good.folder / f"builder{number}.log", good.keeper.limits))
    return tuple(made)


def _usual_builders(good: Checked) -> int:
    """One where a builder learns, which takes a processor and leaves the device to others most of the time."""
    roomy = usable_processors() >= _LEAST_PROCESSORS and psutil.virtual_memory().available >= _LEAST_BYTES
    return USUAL_BUILDERS if _learns(good) and roomy else 0


def _learns(good: Checked) -> bool:
    return backend_kind(good.config).later_builds < 1


def lessons(good: Checked, space: Space) -> tuple[Assignment, ...]:
    """What a builder learns most from, in a good order; nothing where builders do not learn.

    Those of FP32 and FP16 come before INT8: they need no ranges, so that they are not built again. An engine that is
    built by one process after the others takes half of what it takes a fresh one.
    """
    uniform = [space.uniform(precision) for precision in sorted(space.precisions)]
    return tuple(dict.fromkeys(uniform)) if _learns(good) else ()


class FirstBuilds:
    """Builds uniform assignments in a thread, in the process that measures, until the search begins.

    The first builds of TensorRT take minutes, most of them for the times of tactics, which no range changes. All are
    built by one process, though several would end sooner: it then knows the tactics that mixes are made of. FP32 and
    FP16 need no ranges at all, so their engines serve the evaluations too, unless recovery changes the model.
    """

    def __init__(self, good: Checked, target: TargetRecord) -> None:
        self._good = good
        self._target = target
        self._over = threading.Event()
        self._closed = threading.Event()
        self._idle = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._serve, name="bitfront-first-build", daemon=True).start()

    def wait(self) -> None:
        """Begin nothing else, and wait until the process that measures is free."""
        self._over.set()
        with time_spent("first builds"):
            self._idle.wait()

    def close(self) -> None:
        """Let the thread end, which the process ends with that it has started."""
        self._over.set()
        self._closed.set()

    def _serve(self) -> None:
        try:
            with suppress(BitfrontError):  # what fails here fails again as an evaluation, which says so
                self._build_all()
        finally:
            self._idle.set()
            self._closed.wait()

    def _build_all(self) -> None:
        config, target, process = self._good.config, self._target, self._good.keeper
        build_at(process, first_level(config, target))
        choosing = config.builder_option("optimization_level") is None and target.optimization_level is None
        for assignment in lessons(self._good, self._good.space):
            seconds = process.ask("building before the search").builds.build_first(assignment)
            if choosing:
                build_at(process, choose_level(seconds, study_s(config)).level)
            choosing = False
            if self._over.is_set():
                return


@contextmanager
def calibrating_beside(good: Checked, target: TargetRecord) -> Iterator[tuple[Checked, FirstBuilds | None]]:
    """Let the builder of the process that measures learn while the context calibrates in a process of its own.

    Call `FirstBuilds.wait` before the process that measures is asked for anything else.

    Yields:
        The same inputs with the process that calibrates: the one that measures, where no builder learns anything; and
        the first builds, None where there are none.
    """
    if not _learns(good):
        yield good, None
        return
    job = replace(good.keeper.job, folder=str(good.folder / "calibration"), beside=True)
    builds = FirstBuilds(good, target)
    with EvaluatorProcess(job, good.folder / "calibration.log", good.keeper.limits) as process:
        builds.start()
        try:
            yield replace(good, keeper=process, folder=good.folder / "calibration"), builds
        except BaseException:
            builds.close()
            good.keeper.cancel()  # nobody waits for what it builds
            raise
