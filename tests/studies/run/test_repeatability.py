"""The tie band: one engine in fresh processes, and engines of one assignment built anew, between the trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from evaluators.process.keeper import EvaluatorProcess
from studies.options.read_options import read_config
from studies.run.noise import tie_band
from studies.run.session import calibration
from studies.store.reading.repeats import (
    PROVISIONAL_BAND,
    band_of,
    next_kind,
    provisional_band,
    repeats_at_most,
    spreads,
)
from studies.store.records import PROCESS, REBUILD, REOPEN, RepeatRecord
from tests.support.command_line import DATABASE, environment, evaluator_processes, invoke, ok, run_sql, write_inputs
from tests.support.forks.processes import fork_evaluators
from tests.support.records import repeat
from tests.support.requests import Asked, watch_requests

pytestmark = pytest.mark.slow


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


def repeated(rebuilt: list[float], loaded: list[float], reopened: Sequence[float] = (1.0,) * 3) -> list[RepeatRecord]:
    made = [repeat(REBUILD, value) for value in rebuilt]
    made += [repeat(REOPEN, value) for value in reopened]
    return made + [repeat(PROCESS, value) for value in loaded]


def test_the_count_of_repetitions_never_passes_its_total() -> None:
    for kind, values in ((REBUILD, [1.2, 1.0, 1.0, 1.0, 1.0]), (PROCESS, [1.0, 1.2, 1.0, 1.0, 1.0, 1.0])):
        totals = [repeats_at_most(kind, taken) for taken in range(1, len(values) + 1)]
        assert all(taken <= total for taken, total in enumerate(totals, start=1))
        assert totals[-1] == len(values), "it takes this many where the first ones disagree"
    assert (repeats_at_most(REBUILD, 2), repeats_at_most(PROCESS, 3)) == (2, 3)


@pytest.mark.parametrize(
    ("rebuilt", "loaded", "kind"),
    [
        ([], [], REBUILD),  # the baseline itself is the first of the builds
        ([1.0], [], PROCESS),
        ([1.0], [1.0], REBUILD),
        ([1.0, 1.0], [1.0, 1.0], PROCESS),
        ([1.0, 1.0], [1.0, 1.01, 1.02], None),
        ([1.2, 1.0], [1.0, 1.0, 1.0], REBUILD),  # they disagree: more are asked
        ([1.2, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0], None),
        ([1.0, 1.0], [1.0, 1.2, 1.0], PROCESS),
        # A fourth that happens to agree ends nothing: where the first three disagree it takes six.
        ([1.0, 1.0], [1.0, 1.2, 1.0, 1.0], PROCESS),
        ([1.0, 1.0], [1.0, 1.2, 1.0, 1.0, 1.0, 1.0], None),
    ],
)
def test_what_is_measured_next_follows_from_what_is_there(
    rebuilt: list[float], loaded: list[float], kind: str | None
) -> None:
    assert next_kind(1.0, repeated(rebuilt, loaded)) == kind


def test_one_engine_opened_again_comes_first_and_is_part_of_the_band() -> None:
    """It costs a second where a fresh process of TensorRT costs twelve, and other addresses alone moved it by 3 %."""
    assert next_kind(1.0, []) == REOPEN
    assert next_kind(1.0, repeated([], [], [1.0, 1.0])) == REOPEN
    assert next_kind(1.0, repeated([], [], [0.3805, 0.3888, 0.3918])) == REBUILD
    assert next_kind(1.0, repeated([], [], [1.0, 1.2, 1.0])) == REOPEN, "they disagree: more are asked"
    found = spreads(0.39, repeated([0.39, 0.39], [0.39] * 3, [0.3805, 0.3888, 0.3918]))
    assert found["repeatability"] == pytest.approx((0.3918 - 0.3805) / 0.3888)


def test_the_band_of_a_relative_target_is_that_of_ratios() -> None:
    """A machine that runs at half its clock meanwhile changes nothing."""
    made = [repeat(REBUILD, 2.0, 4.0), repeat(REBUILD, 1.01, 2.0)]
    found = spreads(0.5, made)
    assert found == {"rebuild": pytest.approx(0.01), "repeatability": 0.0}


def test_a_provisional_band_is_a_usual_one_unless_the_first_repetitions_say_more() -> None:
    assert provisional_band([]) == PROVISIONAL_BAND
    assert provisional_band(repeated([1.0], [1.0, 1.01])) == PROVISIONAL_BAND
    assert provisional_band(repeated([], [1.0, 1.2])) == pytest.approx(0.2 / 1.1)


class Calls:
    """What evaluator processes were asked for, in order: method, parameters, process, and the job it had opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, dict[str, Any], int | None, Any]] = []
        evaluate = EvaluatorProcess.measure

        def call(asked: Asked) -> Any:
            if asked.name == "load_engine":
                self.made.append(("loading", {}, None, asked.keeper.job))
            result = asked.make()
            self.made.append((asked.name, dict(asked.arguments), asked.keeper.pid, asked.keeper.job))
            return result

        def evaluated(keeper: EvaluatorProcess, *args: Any, **options: Any) -> Any:
            result = evaluate(keeper, *args, **options)
            self.made.append(("evaluate", {}, keeper.pid, keeper.job))
            return result

        watch_requests(monkeypatch, call)
        monkeypatch.setattr(EvaluatorProcess, "measure", evaluated)

    def named(self, *methods: str) -> list[tuple[str, dict[str, Any], int | None, Any]]:
        return [made for made in self.made if made[0] in methods]

    def order(self, *methods: str) -> list[str]:
        return [method for method, *_ in self.named(*methods)]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """In a folder with inputs, where the band is measured as it is in earnest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setattr(calibration, "BY_DEFAULT", "none")
    fork_evaluators(monkeypatch)
    write_inputs(tmp_path / "in")
    return Calls(monkeypatch)


def search(*arguments: Any) -> None:
    verbs.search(read_config({"model": "in/model.onnx", "data": "in/data.npz", "study": "s", **dict(arguments)}))


@pytest.mark.parametrize("keep", ["front", "none"])
def test_the_band_of_a_short_study_is_complete_before_its_finalists_are_confirmed(
    measured: Calls, tmp_path: Path, keep: str
) -> None:
    search(("trials", "2"), ("keep-engines", keep))
    timed = measured.named("time_engine")
    [warm] = {pid for _, _, pid, _ in measured.named("evaluate")}
    loaded = [call for call in timed if call[2] != warm]
    assert len(loaded) in (3, 6)
    assert len(timed) - len(loaded) in (3, 6), "and opened again in the process that is warm"
    assert len({pid for _, _, pid, _ in loaded}) == len(loaded)  # each in a process of its own
    [engine] = {params["engine"] for _, params, _, _ in timed}  # and all of them the same engine
    assert (Path(engine).parent == tmp_path / f"{DATABASE}.artifacts") == (keep == "front")
    order = measured.order("evaluate", "time_engine", "score_finalists")
    assert order == ["evaluate", "evaluate", *["time_engine"] * len(timed), "score_finalists"]
    check_stored()


def test_repetitions_are_taken_one_at_a_time_between_the_trials(measured: Calls) -> None:
    search(("trials", "14"), ("sampler", "random"))
    order = "".join({"evaluate": "e", "time_engine": "p", "time_again": "r", "score_finalists": "f"}.get(name, "")
                    for name, *_ in measured.made).lstrip("r")  # fmt: skip
    assert order.startswith("e" * 6), "the uniform assignments and four mixes first"
    assert "e" in order[order.index("p") :], "and trials go on before the band is known"
    first = order[6 : order.index("f")]
    singles = [part for part in first.split("e") if part]
    assert all(len(part) == 1 for part in singles[:-1]), order
    check_stored()


def check_stored() -> None:
    [(band, details)] = run_sql("select latency_band, details from bf_study_target")
    found = json.loads(details)
    assert band == max(0.01, found["repeatability"], found["rebuild"])
    raw = run_sql("select kind, raw_ms, baseline_ms from bf_repeat order by id")
    ratios = {kind: [one / base for each, one, base in raw if each == kind] for kind in (PROCESS, REBUILD)}
    assert found["repeatability"] == pytest.approx(band_of(ratios[PROCESS]))
    assert len(ratios[REBUILD]) >= 2
    shown = json.loads(ok("front", "s", "--json"))
    assert (shown["latency_tie_band"], shown["latency_tie_band_provisional"]) == (band, False)


def test_what_is_measured_is_stored_at_once_and_a_later_run_goes_on_with_it(
    measured: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The band is provisional until then, and says so."""
    taken = []

    def interrupted(band: Any, *args: Any) -> Any:
        taken.append(real(band, *args))
        if len(taken) == 2:
            raise KeyboardInterrupt
        return taken[-1]

    real = tie_band.TieBand._one_more
    monkeypatch.setattr(tie_band.TieBand, "_one_more", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(("trials", "14"), ("sampler", "random"))
    monkeypatch.setattr(tie_band.TieBand, "_one_more", real)
    before = run_sql("select * from bf_repeat order by id")
    assert len(before) == 2
    shown = json.loads(invoke("front", "s", "--json").stdout)
    assert (shown["latency_tie_band"] >= PROVISIONAL_BAND, shown["latency_tie_band_provisional"]) == (True, True)
    assert "provisional" in invoke("front", "s").stdout
    verbs.resume("s")
    after = run_sql("select * from bf_repeat order by id")
    assert after[:2] == before
    assert len(after) >= 8
    check_stored()


def test_on_a_gpu_the_fresh_process_is_started_while_the_search_goes_on(
    measured: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its timing takes turns; what is stored is the same."""
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", "8.6.1")
    search(("trials", "28"), ("sampler", "random"), ("backend", "tensorrt"))
    order = measured.order("evaluate", "loading", "time_engine")
    loads = [i for i, method in enumerate(order) if method == "loading"]
    between = [order[i : order.index("time_engine", i)].count("evaluate") for i in loads]
    assert len(between) >= 3
    assert min(between[:2]) >= 1, order
    [warm] = {pid for _, _, pid, _ in measured.named("evaluate")}
    fresh = [job.beside for _, _, pid, job in measured.named("time_engine") if pid != warm]
    assert set(fresh) == {True}
    assert [kind for (kind,) in run_sql("select kind from bf_repeat")].count(PROCESS) == len(fresh)
    assert run_sql("select count(*) from bf_repeat where baseline_ms is not null") == [(0,)]
    assert run_sql("select latency_band is not null from bf_study_target") == [(1,)]
    assert evaluator_processes() == []
