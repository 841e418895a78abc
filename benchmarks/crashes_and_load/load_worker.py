"""Workers of load.py, in a process of their own: evaluations are made up, all else is real. Prints figures as JSON.

usage: python -m benchmarks.crashes_and_load.load_worker warm URL TRIALS | sleepers URL WORKERS SECONDS ROUNDS
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from sqlalchemy import create_engine, text

from benchmarks.figures.bookkeeping import replaying
from bitfront import verbs
from evaluators.process.keeper import EvaluatorProcess
from search.space.choices import make_space
from studies.events import Quiet
from studies.options.read_options import change_config
from studies.run.local_run import run_here
from studies.run.session.join import target_of
from studies.run.session.setup import checked
from studies.store.repositories.claims import Claims
from studies.store.store import Store
from studies.store.target_options import config_of
from studies.trials.proposals import Proposals

NAME = "s"
PIPE_BYTES = 4000  # of ASCII, that a pipe takes at once


class Clocks:
    """Seconds of each call, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.ends: dict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.ends[name].append(time.perf_counter())
                self.seconds[name].append(self.ends[name][-1] - start)

        return call

    def median_ms(self, name: str) -> float:
        """Of all but the first, which waits for much that is done once."""
        return 1e3 * statistics.median(self.seconds[name][1:])


@contextmanager
def sleeping(seconds: float) -> Iterator[None]:
    """Evaluations sleep and answer, without an evaluator process; nothing is measured again."""
    with (
        replaying(seconds),
        patch.object(EvaluatorProcess, "adopt", lambda *_, **__: None),
        patch("studies.run.hooks.upkeep.measure_drift", lambda *_: 0.0),
    ):
        yield


def warm(url: str, trials: int) -> dict[str, float]:
    """Join the study and bring it to so many trials; milliseconds of each step, medians."""
    clocks, born = Clocks(), psutil.Process().create_time()
    with ExitStack() as stack:
        stack.enter_context(replaying())
        for owner, name in ((Proposals, "ask"), (Proposals, "tell"), (Claims, "begin"), (Claims, "record")):
            stack.enter_context(patch.object(owner, name, clocks.timed(name, getattr(owner, name))))
        clock = clocks.timed("evaluate", EvaluatorProcess.measure)
        stack.enter_context(patch.object(EvaluatorProcess, "measure", clock))
        stack.enter_context(patch("studies.run.session.setup.make_space", clocks.timed("checked", make_space)))
        verbs.worker(NAME, {"trials": trials}, storage=url)
        now = time.time() - time.perf_counter()  # what turns a perf_counter into a time
    steps = {f"{name}_ms": clocks.median_ms(name) for name in ("ask", "begin", "record", "tell")}
    each = zip(clocks.seconds["ask"], clocks.seconds["begin"], clocks.seconds["record"], strict=False)
    whole = [sum(parts) + told for parts, told in zip(each, clocks.seconds["tell"], strict=False)]
    between = np.diff(clocks.ends["evaluate"]) - np.array(clocks.seconds["evaluate"][1:])
    return steps | {
        "trial_ms": 1e3 * statistics.median(whole[1:]),
        "loop_ms": 1e3 * float(np.median(between)),
        "cold_s": now + clocks.ends["ask"][0] - born,
        "checked_s": now + clocks.ends["checked"][0] - born,
        "memory_mib": psutil.Process().memory_info().rss / 2**20,
    }


def sleepers(url: str, workers: int, seconds: float, rounds: int) -> dict[str, float]:
    """Fork so many workers of one process that has checked the inputs: they share most of its memory. Together they
    make `rounds` evaluations for each.
    """
    with Store.open(url) as store:
        study = store.studies.load(NAME)
        [target] = store.targets.of_study(study.id)
        before = store.statistics.counts(target.id).finished
        config = change_config(config_of(study, target, url), {"trials": before + rounds * workers})
    with sleeping(seconds), checked(config) as good:
        start = time.perf_counter()
        pids = [pid for pid in (_fork(url, good) for _ in range(workers)) if pid]
        connections, codes = _watch(url, pids)
        taken = time.perf_counter() - start
    with Store.open(url, write=False) as store:
        counts, left = store.statistics.counts(target.id), len(store.claims.running(target.id))
        done = counts.finished - before
    assert (done, left) == (rounds * workers, 0), (done, left)
    return {
        "per_s": done / _span_s(url, done),
        "evaluations": done,
        "seconds": taken,
        "failed": sum(code != 0 for code in codes),
        "connections": connections,
    }


def _span_s(url: str, count: int) -> float:
    """Seconds from the start of the first of the last so many evaluations to the end of the last."""
    engine = create_engine(url)
    last = f"(select started_at, finished_at from bf_evaluation order by id desc limit {count}) as e"
    with engine.connect() as connection:
        found = connection.scalar(text(f"select extract(epoch from max(finished_at) - min(started_at)) from {last}"))
    engine.dispose()
    return float(found)


def _fork(url: str, good: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with Store.open(url) as store:
            study = store.studies.load(NAME)
            run_here(store, good, study, target_of(store, study, good), Quiet())
        os._exit(0)
    except BaseException:
        os.write(sys.stderr.fileno(), traceback.format_exc()[-PIPE_BYTES:].encode())  # whole, whoever else writes
        os._exit(1)


def _watch(url: str, pids: list[int]) -> tuple[int, list[int]]:
    """The most connections that there were, and how the workers ended."""
    engine, most, codes = create_engine(url), 0, []
    left = set(pids)
    while left:
        with engine.connect() as connection:
            here = text("select count(*) from pg_stat_activity where datname = current_database()")
            most = max(most, int(connection.scalar(here) or 0) - 1)
        time.sleep(0.5)
        for pid in list(left):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                left.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
    engine.dispose()
    return most, codes


if __name__ == "__main__":
    what, url, number, *more = sys.argv[1:]
    figures = warm(url, int(number)) if what == "warm" else sleepers(url, int(number), float(more[0]), int(more[1]))
    print(json.dumps(figures))
