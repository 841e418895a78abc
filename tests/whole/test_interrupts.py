"""Ctrl-C and SIGTERM in the middle of anything."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from search.errors import RunError
from studies import interrupts
from studies.crew import SharedCrew
from studies.interrupts import came_of_interrupt, handle_interrupts, held_back
from studies.store.database.database_url import parse_url
from studies.store.database.retries import report_errors
from studies.store.store import Store, close_optuna, optuna_storage
from tests.support.command_line import environment
from tests.support.paths import ROOT
from tests.support.study_rows import KINDS, STUDY, TARGET, fresh_url

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals"), pytest.mark.slow]
URL = parse_url("sqlite:///s.db")


def raise_after(earlier: BaseException) -> None:
    """Fail, as a rollback may, because of what came before."""
    try:
        raise earlier
    finally:
        raise AttributeError("no such connection")


def error_of(earlier: BaseException) -> AttributeError:
    with pytest.raises(AttributeError) as caught:
        raise_after(earlier)
    return caught.value


def test_what_came_of_an_interrupt_is_known() -> None:
    first = error_of(KeyboardInterrupt())
    late = error_of(first)
    assert came_of_interrupt(late)
    assert not came_of_interrupt(late, before=first)
    assert came_of_interrupt(KeyboardInterrupt())
    assert not came_of_interrupt(ValueError())
    assert not came_of_interrupt(None)


def test_an_interrupt_stays_one_when_it_cannot_be_rolled_back() -> None:
    with pytest.raises(KeyboardInterrupt), report_errors("store a trial", URL):
        raise_after(KeyboardInterrupt())


def test_what_fails_while_cleaning_up_after_an_interrupt_is_an_error() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(RunError, match="disk is full"), report_errors("store a trial", URL):
            raise OperationalError("insert", {}, Exception("disk is full")) from None


@pytest.fixture
def handler() -> Iterator[None]:
    with handle_interrupts():
        yield


def linger() -> None:
    """Sleep in pieces: a signal that comes right before one is handled only after it."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        time.sleep(0.01)


def send() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


@pytest.mark.usefixtures("handler")
def test_an_interrupt_waits_for_the_end_of_what_must_not_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_S", 600)
    done = []

    def work() -> None:
        with held_back():
            send()
            with held_back():
                done.append(1)
                send()
            done.append(2)
        done.append(3)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert done == [1, 2, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        send()


@pytest.mark.usefixtures("handler")
def test_an_interrupt_wins_over_the_error_of_what_it_waited_for() -> None:
    def work() -> None:
        with held_back():
            send()
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.usefixtures("handler")
def test_what_takes_long_is_cut_off_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_S", 0.3)

    def work() -> None:
        with held_back():
            send()
            linger()

    with pytest.raises(KeyboardInterrupt):
        work()
    with pytest.raises(KeyboardInterrupt):
        send()


@pytest.mark.usefixtures("handler")
def test_what_is_being_cut_off_is_not_held_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_S", 0.3)

    def work() -> None:
        with held_back():
            try:
                send()
                linger()
            finally:
                monkeypatch.setattr(interrupts, "_LONGEST_S", 600)
                with pytest.raises(KeyboardInterrupt):
                    send()

    for _ in range(2):
        monkeypatch.setattr(interrupts, "_LONGEST_S", 0.3)
        with pytest.raises(KeyboardInterrupt):
            work()


def test_a_verb_in_another_thread_handles_nothing() -> None:
    def other() -> object:
        with handle_interrupts():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result(300) is signal.getsignal(signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_an_interrupt_that_came_through_does_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_S", 0.1)
    with pytest.raises(KeyboardInterrupt), held_back():
        send()
    time.sleep(0.5)


def test_other_threads_are_not_interrupted_and_hold_nothing_back() -> None:
    with ThreadPoolExecutor(1) as pool, handle_interrupts():
        inside, over = threading.Event(), threading.Event()

        def other() -> None:
            with held_back():
                inside.set()
                over.wait(300)

        running = pool.submit(other)
        inside.wait(300)
        with pytest.raises(KeyboardInterrupt):
            send()
        over.set()
        running.result(300)


def test_ctrl_c_is_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with handle_interrupts():
        assert signal.getsignal(signal.SIGINT) is interrupts.interrupt
    assert signal.getsignal(signal.SIGINT) is before


class Slow:
    """Gets Ctrl-C while it is finalized."""

    def __del__(self) -> None:
        send()


def drop_one() -> None:
    Slow()
    linger()


def drop_a_reference() -> None:
    kind = type("kind", (), {})
    held = weakref.ref(kind, lambda _: send())
    del kind
    gc.collect()
    linger()
    assert held() is None


@pytest.mark.parametrize("work", [drop_one, drop_a_reference])
def test_an_interrupt_in_a_finalizer_is_not_dropped(work: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt), handle_interrupts():
        work()


def test_an_interrupt_that_comes_back_too_early_is_not_dropped_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that sends it again may be quicker than the one that starts it."""
    send_after = interrupts._send_after

    def slowly(seconds: float, since: float | None) -> None:
        send_after(seconds, since)
        if not early:
            early.append(time.monotonic())
            while time.monotonic() < early[0] + 5 * interrupts._SOON_S:
                time.sleep(0.001)

    early: list[float] = []
    monkeypatch.setattr(interrupts, "_send_after", slowly)
    with pytest.raises(KeyboardInterrupt), handle_interrupts():
        drop_one()
    assert early


def test_other_errors_in_finalizers_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))

    class Bad:
        def __del__(self) -> None:
            raise ValueError

    with handle_interrupts():
        Bad()
    Bad()
    assert told == [ValueError, ValueError]


IGNORED = """
import os, signal, sys, time
from bitfront.cli.base import resumable, verb
class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
@verb
def work():
    with resumable('none', 'sqlite:///none.db'):
        Slow()
        for _ in range(3000):
            time.sleep(0.01)
import typer
try:
    work()
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def test_sigterm_in_a_finalizer_ends_what_a_shell_started_in_the_background(tmp_path: Path) -> None:
    """There SIGINT is ignored."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORED],
        env=environment({"PYTHONPATH": str(ROOT)}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM is taken as Ctrl-C."""
    before = signal.signal(signal.SIGALRM, interrupts.interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("handler", "alarm")
def test_a_database_can_be_used_at_once_after_an_interrupt(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off anywhere, SQLAlchemy may leave a connection behind that holds a lock."""
    monkeypatch.setattr(interrupts, "_LONGEST_S", 600)
    url, chance = fresh_url(kind, tmp_path), random.Random(5)
    with Store.open(url, create=True) as store:
        storage = optuna_storage(url)
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo")
        trials = storage.create_new_study([StudyDirection.MINIMIZE], "demo")

        def work() -> None:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.02))
            end = time.monotonic() + 300
            while time.monotonic() < end:
                trial = storage.create_new_trial(trials)
                storage.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
                store.targets.add_details(target, seen=trial)

        for number in range(60):
            with pytest.raises(KeyboardInterrupt):
                work()
            store.targets.add_details(target, after=number)
        close_optuna(storage)


def test_a_worker_that_was_interrupted_has_not_failed(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo")
        for earlier in (KeyboardInterrupt(), ValueError()):
            with pytest.raises(AttributeError), SharedCrew(store, target, lease_s=60):
                raise_after(earlier)
        assert [worker.state for worker in store.workers.of_target(target)] == ["ended", "failed"]
