"""The tie band: one engine in fresh processes, and engines of one assignment built anew."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluators.process import EvaluatorProcess
from search.values import Latency
from searched import DATABASE, ok, quick, write_inputs
from studies import commands, repeatability
from studies.progress import Quiet
from studies.repeatability import band_of


@pytest.mark.parametrize(
    ("values_ms", "band"),
    [
        ([2.0], 0.0),
        ([2.0, 2.1], 0.1 / 2.05),
        ([2.0, 2.1, 1.9], 0.1),  # the whole range of three
        ([2.0, 2.0, 2.0, 2.02, 1.98, 9.0], 0.01),  # of six the four nearest to the median: one burst is left out
    ],
)
def test_the_band_is_the_range_of_most(values_ms: list[float], band: float) -> None:
    assert band_of(values_ms) == pytest.approx(band)


def latencies(values_ms: list[float]) -> Iterator[Latency]:
    return (Latency(value, value, 0.0, None, np.empty(0), np.empty(0)) for value in values_ms)


@pytest.mark.parametrize(
    ("known", "values_ms", "taken"),
    [
        ((), [1.0, 1.01, 1.02, 5.0], 3),
        ((1.0,), [1.01, 1.02, 5.0], 2),
        ((1.0,), [1.2, 1.0, 1.0, 1.0, 1.0, 5.0], 5),  # they disagree: more are asked
    ],
)
def test_more_is_measured_where_the_first_disagree(known: Any, values_ms: list[float], taken: int) -> None:
    left = latencies(values_ms)
    work: Any = SimpleNamespace(progress=Quiet())
    band = repeatability._spread(work, "measuring", lambda: next(left), *known)
    assert band == band_of([*known, *values_ms[:taken]])
    assert len(list(left)) == len(values_ms) - taken


class Calls:
    """What an evaluator process was asked for, by which process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, dict[str, Any], int | None]] = []
        real = EvaluatorProcess.call

        def call(keeper: EvaluatorProcess, method: str, params: Any = None, on_event: Any = None) -> Any:
            result = real(keeper, method, params, on_event)
            self.made.append((method, dict(params or {}), keeper.pid))
            return result

        monkeypatch.setattr(EvaluatorProcess, "call", call)

    def named(self, method: str, before: str = "") -> list[tuple[dict[str, Any], int | None]]:
        """Of one method, all or those before the first of another one."""
        end = next((i for i, (name, *_) in enumerate(self.made) if name == before), len(self.made))
        return [(params, pid) for name, params, pid in self.made[:end] if name == method]


@pytest.mark.parametrize("keep", ["front", "none"])
def test_the_band_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    calls = Calls(monkeypatch)
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "trials": "2", "keep-engines": keep}
    process_spread = repeatability._process_spread
    with quick(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeatability, "_REPEATS", 3)
        patch.setattr(repeatability, "_process_spread", process_spread)
        commands.search(options)
    loaded, rebuilt = calls.named("time_engine"), calls.named("time_again")
    built = calls.named("build", before="time_engine")  # finalists that were let go of may be built later
    assert len(loaded) in (3, 6)
    assert len({pid for _, pid in loaded}) == len(loaded)  # each in a process of its own
    [engine] = {params["engine"] for params, _ in loaded}  # and all of them the same engine
    assert (Path(engine).parent == tmp_path / f"{DATABASE}.artifacts") == (keep == "front")
    assert [params["out"] for params, _ in built][:1] == ([engine] if keep == "none" else [])
    # Three set the reference before anything else, of FP32; the rest are of the baseline, in one process.
    again = rebuilt[3:]
    assert len(again) in (2, 5)
    assert len({pid for _, pid in again}) == 1
    assert {params["assignment"] for params, _ in again}.isdisjoint({rebuilt[0][0]["assignment"]})
    check_stored()


def check_stored() -> None:
    connection = sqlite3.connect(DATABASE)
    [(band, details)] = connection.execute("select latency_band, details from bf_study_target").fetchall()
    connection.close()
    found = json.loads(details)
    assert band == max(0.01, found["repeatability"], found["rebuild"])
    assert json.loads(ok("front", "s", "--json"))["latency_tie_band"] == band
