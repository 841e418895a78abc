"""First builds of a builder that learns, made while another process calibrates the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from evaluators.backends.registry import kind_named
from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import BitfrontError
from search.space.choices import make_space
from search.values import Assignment, Precision
from studies.run.session.levels import START_LEVEL, build_at, choose_level, first_level, study_s
from studies.run.session.setup import Checked
from studies.store.records import TargetRecord


@contextmanager
def first_builds(good: Checked, target: TargetRecord, *, wanted: bool) -> Iterator[Checked]:
    """Let the process that builds learn from uniform assignments, while the context calibrates in another process.

    The first builds of TensorRT take minutes, most of them for the times of tactics, which no range changes. FP32 and
    FP16 need no ranges at all, so their engines serve the evaluations too, unless recovery changes the model. Leaving
    the context waits for the build under way, and begins no other one.

    Args:
        wanted: whether there is anything to calibrate.

    Yields:
        The same inputs with the process that calibrates: the one that builds, where its builder learns nothing.
    """
    if not wanted or kind_named(good.target.backend).later_builds == 1:
        yield good
        return
    job = replace(good.keeper.job, folder=str(good.folder / "calibration"), beside=True)
    over = threading.Event()
    thread = threading.Thread(target=_build_all, args=(good, target, over), name="bitfront-first-builds", daemon=True)
    with EvaluatorProcess(job, good.folder / "calibration.log", good.keeper.limits) as calibrating:
        thread.start()
        try:
            yield replace(good, keeper=calibrating, folder=good.folder / "calibration")
        except BaseException:
            good.keeper.cancel()  # nobody waits for what it builds
            raise
        finally:
            over.set()
            with time_spent("first builds"):
                thread.join()


def _build_all(good: Checked, target: TargetRecord, over: threading.Event) -> None:
    """What fails here fails again as an evaluation, which says so."""
    level = first_level(good.config, target)
    chosen = level == START_LEVEL and good.config.builder_option("optimization_level") is None
    build_at(good.keeper, level)
    for assignment in _uniform(good):
        with suppress(BitfrontError):
            seconds = good.keeper.ask("building before the search").builds.build_first(assignment)
            if chosen and target.optimization_level is None:
                build_at(good.keeper, choose_level(seconds, study_s(good.config)).level)
            chosen = False
        if over.is_set():
            return


def _uniform(good: Checked) -> list[Assignment]:
    """FP32 first, by whose build the level is chosen; then from the coarsest: INT8 alone needs ranges."""
    space = make_space(good.model, good.capability, None, good.config.keep, good.config.granularity)
    lower = sorted((p for p in space.precisions if p is not Precision.FP32), reverse=True)
    made = [space.uniform(precision) for precision in (Precision.FP32, *lower)]
    return list(dict.fromkeys(made))
