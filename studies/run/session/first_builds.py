"""What builders learn from uniform assignments while another process calibrates."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import BitfrontError
from search.values import Assignment
from studies.run.pipeline.build_hold import BuilderProcess
from studies.run.session.builders import learns
from studies.run.session.levels import build_at, choose_level, first_level, study_s
from studies.run.session.setup import Checked
from studies.store.records import TargetRecord

# All but the first builder build a mix as well only if their first build took no longer: both then end about when
# calibration and recovery do, which took 85 to 110 s in searches of eight minutes.
_QUICK_S = 50.0


class FirstBuilds:
    """Builds uniform assignments in threads, so that builders have learnt from them when the search begins.

    The first builds of TensorRT take minutes, most of them for the times of tactics, which no range changes. FP32 and
    FP16 need no ranges at all, so their engines serve the evaluations too, unless recovery changes the model.

    Mixes have kernels that no uniform assignment has, where precisions meet: in two builders the first two mixes of a
    network with SiLU took 78 s each on an H200, and those behind them 10 s; on a busy host 118 s, both beside each
    other. So the first of several builders goes on with a mix, which may outlast calibration, while the others do what
    there is to do; these build a mix only where their first build was quick.

    Args:
        builders: take the lower precisions, several one each; without them the process that measures does.
    """

    def __init__(self, good: Checked, target: TargetRecord, builders: Sequence[BuilderProcess]) -> None:
        self._good = good
        self._target = target
        self._over = threading.Event()
        self._closed = threading.Event()
        finest, *others = good.space.baselines.values()
        lower = others[::-1]
        self._work = [partial(self._build_own, [finest, *([] if builders else lower)])]
        for number, builder in enumerate(builders):
            # One of several learns from one precision alone: while it built another, nobody could ask it for a mix.
            theirs = lower if len(builders) == 1 else lower[number % max(1, len(lower)) :][:1]
            mix = alternate(lower[number % 2], lower[1 - number % 2]) if len(builders) > 1 and lower[1:] else None
            self._work.append(partial(self._teach, builder, theirs, mix, math.inf if number == 0 else _QUICK_S))
        self._measurer_idle = threading.Event()
        self._level = first_level(good.config, target)

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

    def _build_own(self, assignments: Sequence[Assignment]) -> None:
        """Build in the process that measures; the time of the first build chooses the level, if nobody has yet."""
        is_open = self._target.optimization_level is None
        is_open = is_open and self._good.config.builder_option("optimization_level") is None
        for place, assignment in enumerate(assignments):
            if self._over.is_set():
                return
            seconds = self._build(self._good.keeper, assignment)
            if place == 0 and is_open:
                self._level = choose_level(seconds, study_s(self._good.config)).level

    def _teach(
        self, builder: BuilderProcess, assignments: Sequence[Assignment], mix: Assignment | None, quick_s: float
    ) -> None:
        builder.process.open()  # as it was prepared, before its level changes
        seconds = 0.0
        for assignment in assignments:
            if self._over.is_set():
                return
            builder.known.add(assignment)
            seconds = self._build(builder.process, assignment)
        if mix is not None and seconds <= quick_s and not self._over.is_set():
            builder.learns_mix = True
            try:
                self._build(builder.process, mix)
            finally:
                builder.learns_mix = False

    def _build(self, process: EvaluatorProcess, assignment: Assignment) -> float:
        build_at(process, self._level)
        return process.ask("building before the search").builds.build_first(assignment)


def alternate(first: Assignment, second: Assignment) -> Assignment:
    """A mix that takes each second group from the other assignment, so that precisions meet as often as they can."""
    return Assignment({group: (first, second)[place % 2][group] for place, group in enumerate(first)})


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
    if not learns(good.config):
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
