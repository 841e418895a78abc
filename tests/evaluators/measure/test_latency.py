"""Measuring with scripted sessions: what is counted, what is doubted; the device lock with real processes."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.measure import blocks
from evaluators.measure.device_lock import DeviceBusyError, device_lock
from evaluators.measure.latency import measure, spread_of, statistic_of, time_interleaved
from search.values import THREAD_CLOCK, Latency
from tests.support.scripted_sessions import COOL, HOT, Clock, states, steady

HOLD_LOCK = """
import sys, time
from evaluators.measure.device_lock import device_lock
with device_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_statistics_and_spread() -> None:
    samples = np.arange(101.0).reshape(1, 101)
    assert statistic_of(samples, "median") == 50
    assert statistic_of(samples, "p20") == 20
    assert statistic_of(np.array([1.0, 2.0, 6.0]), "mean") == 3
    assert spread_of(samples) == 1.0
    assert spread_of(np.zeros(3)) == 0.0
    with pytest.raises(ValueError, match="mean, median, p20"):
        statistic_of(samples, "mode")


def test_steady_session_is_measured_once_without_warnings() -> None:
    session = steady(2.0)
    latency = measure(session, statistic="median", seconds=0.2)
    assert latency.value_ms == latency.raw_ms == 2.0
    assert latency.baseline_ms is None
    assert latency.baseline_samples_ms.shape == (0,)
    assert latency.spread == 0
    assert latency.warnings == ()
    assert len(latency.samples_ms) == 100, "0.2 s of 2 ms"


def test_blocks_last_20_ms_and_their_first_inference_is_not_counted() -> None:
    cold = Clock(lambda i: 2.0)
    latency = measure(cold, statistic="median", seconds=0.2)
    assert set(cold.calls[4:]) == {11}
    slow_first = Clock(lambda i: 2.0)
    plain = slow_first.time

    def time(count: int) -> NDArray[np.float64]:
        samples = plain(count)
        samples[0] *= 1.5
        return samples

    slow_first.time = time  # type: ignore[method-assign]
    assert measure(slow_first, statistic="median").samples_ms.max() == latency.samples_ms.max()


def test_minimum_of_samples_counts_when_the_time_is_short() -> None:
    latency = measure(steady(10.0), statistic="median", seconds=0.01, min_samples=50)
    assert len(latency.samples_ms) == 50
    assert latency.warnings == ()


def test_time_limit_counts_when_the_model_is_slow_and_is_told() -> None:
    session = steady(500.0)
    latency = measure(session, statistic="median", max_seconds=3.0)
    assert len(latency.samples_ms) == 6
    assert latency.warnings == ("only 6 of 50 samples within 3 s",)
    assert session.done <= 6 + 4, "too few samples is no reason to measure again"


def test_candidate_and_baseline_alternate_and_both_get_their_samples() -> None:
    log: list[Clock] = []
    candidate, baseline = steady(1.0, log), steady(15.0, log)
    latency = measure(candidate, statistic="p20", baseline=baseline, seconds=0.2)
    first_turn = log.index(baseline, log.index(baseline)) + 4  # after both warmed up: one call and three blocks each
    turns = log[first_turn:]
    assert turns[0::2] == [candidate] * len(turns[0::2])
    assert turns[1::2] == [baseline] * len(turns[1::2])
    assert len(latency.baseline_samples_ms) >= 50
    assert len(latency.samples_ms) >= 50


def test_value_is_scaled_by_the_baseline() -> None:
    latency = measure(steady(3.0), statistic="p20", baseline=steady(10.2), reference_ms=10.0)
    assert latency.raw_ms == 3.0
    assert latency.baseline_ms == pytest.approx(10.2)
    assert latency.value_ms == pytest.approx(3.0 * 10.0 / 10.2)
    assert latency.warnings == ()
    unscaled = measure(steady(3.0), statistic="p20", baseline=steady(10.2))
    assert unscaled.value_ms == 3.0
    assert unscaled.baseline_ms == pytest.approx(10.2)


def test_beside_a_baseline_far_from_its_usual_time_is_measured_again_and_judged_when_read() -> None:
    session = steady(3.0)
    latency = measure(session, statistic="p20", baseline=steady(16.0), reference_ms=10.0)
    assert latency.warnings == ()
    alone = steady(3.0)
    measure(alone, statistic="p20", baseline=steady(16.0))
    assert session.done > 1.5 * alone.done


def test_wide_spread_is_measured_again_and_then_marked() -> None:
    session = Clock(lambda i: 1.0 if i % 2 else 1.5)
    latency = measure(session, statistic="median", seconds=0.1)
    assert any("spread" in warning and "more than 10 %" in warning for warning in latency.warnings)
    assert session.done > 250, "0.1 s, then 0.2 s, of about 1.25 ms"
    assert measure(Clock(lambda i: 1.0 if i % 2 else 1.5), statistic="p20", spread_limit=0.6).warnings == ()


def test_a_passing_disturbance_leaves_no_mark() -> None:
    session = Clock(lambda i: 5.0 + (i % 2) * 4 if 15 <= i < 60 else 5.0)
    latency = measure(session, statistic="median")
    assert latency.warnings == ()
    assert latency.spread == 0
    assert len(latency.samples_ms) >= 80, "repeated with twice the time"


def test_as_many_tries_are_made_as_are_allowed_until_one_is_steady() -> None:
    hopeless = Clock(lambda i: 5.0 + (i % 2) * 4)
    assert measure(hopeless, statistic="median", tries=2).warnings != ()
    twice = hopeless.done
    late = Clock(lambda i: 5.0 + (i % 2) * 4 if i < twice else 5.0)
    latency = measure(late, statistic="median", tries=5)
    assert (latency.warnings, latency.spread) == ((), 0)
    assert twice < late.done < 2 * twice, "a third one, and no more"


def test_drift_of_the_candidate_is_doubted_but_not_when_the_baseline_drifts_alike() -> None:
    def creeping(i: int) -> float:
        return 2.0 * (1 + 0.1 * i / 200)

    alone = measure(Clock(creeping), statistic="median", seconds=0.4)
    assert any(warning.startswith("drift") and "slower" in warning for warning in alone.warnings)
    together = measure(Clock(creeping), statistic="median", baseline=Clock(creeping), seconds=0.4)
    assert not any(warning.startswith("drift") for warning in together.warnings)


def test_warm_up_waits_for_a_cold_start_and_gives_up_in_the_end() -> None:
    cold = Clock(lambda i: 10.0 * (1 + 2.0 * 0.8**i if i < 30 else 1))
    assert measure(cold, statistic="median").samples_ms.max() < 10.5
    restless = Clock(lambda i: 10.0 * 1.03 ** (i // 3 % 5))
    assert any("warm-up" in warning for warning in measure(restless, statistic="median").warnings)


def test_interleaved_gives_rounds_of_each_in_turn() -> None:
    log: list[Clock] = []
    sessions = {name: steady(ms, log) for name, ms in {"a": 1.0, "b": 5.0, "base": 40.0}.items()}
    samples = time_interleaved(sessions, 4)
    assert {name: rows.shape for name, rows in samples.items()} == {"a": (4, 20), "b": (4, 4), "base": (4, 1)}
    assert log[-12:] == list(sessions.values()) * 4
    assert statistic_of(samples["b"], "median") == 5.0


def test_state_of_the_device_and_what_surrounds_an_inference_are_kept() -> None:
    latency = measure(steady(1.0), statistic="median", state=states(COOL, {**COOL, "sm_clock_mhz": 1965}))
    assert latency.conditions == {"before": COOL, "after": {**COOL, "sm_clock_mhz": 1965}, "throttled": []}
    assert (latency.around_ms, latency.warnings) == ({"enqueue": 0.25}, ())
    for unknown in (None, dict):
        assert measure(steady(1.0), statistic="median", state=unknown).conditions == {}


def test_what_was_throttled_is_measured_again_and_then_marked() -> None:
    session = steady(1.0)
    latency = measure(session, statistic="median", state=states(COOL, HOT, HOT, COOL))
    assert latency.warnings == ("the device was slowed down: power brake, hardware slowdown",)
    assert latency.conditions["throttled"] == ["power brake", "hardware slowdown"]
    assert session.done > 600, "0.2 s, then 0.4 s, of 1 ms"


def test_a_throttled_try_gives_way_to_one_that_is_not() -> None:
    coming = [HOT, COOL, COOL, COOL]
    session = Clock(lambda i: 1.5 if len(coming) > 2 else 2.0)  # the throttled try even looks faster
    latency = measure(session, statistic="median", state=lambda: coming.pop(0))
    assert (latency.value_ms, latency.warnings) == (2.0, ())
    assert latency.conditions == {"before": COOL, "after": COOL, "throttled": []}


def test_other_processes_are_told_but_not_a_reason_to_measure_again() -> None:
    session = steady(1.0)
    latency = measure(session, statistic="median", state=states(COOL, {**COOL, "other_processes": 2}))
    assert latency.warnings == ("2 other processes use the device",)
    assert session.done < 400
    alone = measure(steady(1.0), statistic="median", state=states({**COOL, "other_processes": 1}, {}))
    assert alone.warnings == ("1 other process uses the device",)


# -- processor time ----------------------------------------------------------------------------------------------------


def by_thread(session: Clock, baseline: Clock, **rest: Any) -> Latency:
    return measure(session, baseline=baseline, statistic="mean", clock=THREAD_CLOCK, **rest)


def test_a_ratio_that_is_known_at_once_takes_five_blocks_of_each() -> None:
    session, baseline = steady(5.0), steady(10.0)
    latency = by_thread(session, baseline, reference_ms=11.0)
    assert (latency.raw_ms, latency.value_ms, latency.warnings) == (5.0, pytest.approx(5.5), ())
    assert (len(latency.samples_ms), len(latency.baseline_samples_ms)) == (5 * 4, 5 * 2)


def test_a_slow_engine_is_known_after_three_inferences_that_agree() -> None:
    session, baseline = steady(1000.0), steady(900.0)
    latency = by_thread(session, baseline)
    assert (latency.raw_ms, latency.baseline_ms, latency.warnings) == (1000.0, 900.0, ())
    assert session.done == baseline.done == 1 + 3
    restless = Clock(lambda i: 1000.0 * (1 + 0.05 * (i % 2)))
    by_thread(restless, steady(900.0), tries=1)
    assert restless.done == 1 + 5


def test_a_busy_machine_leaves_a_slow_engine_the_inferences_that_tell_its_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count(step=8_000_000_000)
    monkeypatch.setattr(blocks.time, "perf_counter_ns", lambda: next(ticks))
    session = steady(1000.0)
    assert by_thread(session, steady(900.0)).warnings == ()
    assert session.done == 1 + 3
    slower = steady(6000.0)
    by_thread(slower, steady(5000.0))
    assert slower.done == 1 + 1


def test_blocks_go_on_while_the_ratio_is_not_known_and_end_at_twice_the_time() -> None:
    restless = Clock(lambda i: 5.0 * (1 + 0.2 * ((i + 2) // 4 % 2)))  # every second block
    latency = by_thread(restless, steady(10.0), seconds=0.2)
    assert sum(latency.samples_ms) == pytest.approx(400, abs=25)
    assert latency.warnings == ()
    lost = Clock(lambda i: 5.0 * (1 + 1.0 * ((i + 2) // 4 % 2)))
    (warning,) = by_thread(lost, steady(10.0), tries=1).warnings
    assert warning.startswith("the ratio to FP32 is known to ± ")


def test_what_slows_both_alike_is_neither_spread_nor_doubt() -> None:
    """As a neighbour on the same core does, for a while."""
    log: list[Clock] = []

    def slowed(milliseconds: float) -> Clock:
        return Clock(lambda i: milliseconds * (1.4 if len(log) % 12 >= 6 else 1.0), log)

    latency = by_thread(slowed(5.0), slowed(10.0), reference_ms=10.0)
    assert latency.warnings == ()
    assert latency.spread == 0
    assert latency.value_ms == pytest.approx(5.0)
    assert latency.raw_ms > 5.2


def test_wall_time_is_kept_beside_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = blocks.time_block
    monkeypatch.setattr(blocks, "time_block", lambda *given: replace(b := real(*given), wall_ms=3 * b.total_ms))
    assert by_thread(steady(5.0), steady(10.0)).wall_ms == pytest.approx(15.0)
    assert measure(steady(5.0), statistic="median").wall_ms is None


# -- several threads ---------------------------------------------------------------------------------------------------


class Interrupted(Clock):
    """Inferences that other processes stretched are masked."""

    def time(self, count: int) -> NDArray[np.float64]:
        samples = super().time(count)
        return np.ma.masked_array(samples, samples > 5.0)


def test_interrupted_inferences_do_not_count() -> None:
    latency = measure(Interrupted(lambda i: 20.0 if i % 3 == 0 else 5.0), statistic="mean")
    assert latency.raw_ms == 5.0
    assert set(latency.samples_ms) == {5.0}
    assert latency.warnings == ()
    assert latency.conditions["interrupted"] > 0


def test_too_few_that_were_not_interrupted_are_told() -> None:
    latency = measure(Interrupted(lambda i: 5.0 if i % 10 == 0 else 20.0), statistic="mean", max_seconds=2.0, tries=1)
    assert latency.raw_ms == 5.0
    assert re.search(r"other processes interrupted \d+ inferences, which leaves \d+ of the 50", latency.warnings[-1])
    none = measure(Interrupted(lambda i: 20.0), statistic="mean", max_seconds=2.0, tries=1)
    assert none.raw_ms == 20.0
    assert any("which leaves" in warning for warning in none.warnings)


def hold_lock(device: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, device], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device name whose lock lies in a folder of this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])))
    return "test/cuda:0"


@pytest.mark.slow
def test_device_lock_is_held_by_one_process_and_freed_when_it_is_killed(device: str) -> None:
    holder = hold_lock(device)
    try:
        with pytest.raises(DeviceBusyError, match=r"test/cuda:0.*bitfront-test_cuda_0\.lock"), device_lock(device, 0.1):
            pass
        with device_lock("another device", 0.1):
            pass
        waits: list[int | None] = []
        with pytest.raises(DeviceBusyError), device_lock(device, 0.7, waits.append):
            pass
        assert waits == [holder.pid]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with device_lock(device, 10):
        pass


def is_held(lock: filelock.FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    return False


def test_whoever_gives_the_device_back_cannot_overtake_one_who_waits(device: str, tmp_path: Path) -> None:
    """Locks are polled for: without an order, one who measures again and again keeps all others waiting."""
    end = threading.Event()

    def wait_for_it() -> None:
        with device_lock(device, 60):
            end.wait(300)

    waiting = threading.Thread(target=wait_for_it)
    turn = filelock.FileLock(tmp_path / "bitfront-test_cuda_0.next.lock")
    with device_lock(device, 60):
        waiting.start()
        late = time.monotonic() + 300
        while not is_held(turn):
            assert time.monotonic() < late
    with pytest.raises(DeviceBusyError), device_lock(device, 0):
        pass
    end.set()
    waiting.join(300)
    assert not waiting.is_alive()


def test_device_lock_is_freed_on_errors_and_open_to_other_users(device: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="inside"), device_lock(device, 0.1):
        raise RuntimeError("inside")
    with device_lock(device, 0.1):
        pass
    assert (tmp_path / "bitfront-test_cuda_0.lock").stat().st_mode & 0o777 == 0o666


def test_device_lock_that_cannot_be_opened_says_what_to_do(tmp_path: Path, device: str) -> None:
    (tmp_path / "bitfront-test_cuda_0.lock").mkdir()
    with pytest.raises(DeviceBusyError, match="TMPDIR"), device_lock(device, 0.1):
        pass
