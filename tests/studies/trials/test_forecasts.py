"""What was predicted of evaluations: read from Optuna's tables, compared, shown, and told while searching."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from search.forecast.forecasts import FORECAST
from search.forecast.quality import NINETY
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.store.records import TargetRecord
from studies.store.store import Store
from studies.trials import forecasts
from studies.trials.forecasts import Compared, Forecasts
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, write_inputs
from tests.support.networks import mobile_cnn

URL = f"sqlite:///{DATABASE}"


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`, by the guided sampler."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def opened(name: str = "small") -> tuple[Store, Standing]:
    store = Store.open(URL, write=False)
    study = store.studies.load(name)
    return store, read_standing(store, study, target_of(store, name), Limits())


def target_of(store: Store, name: str = "small") -> TargetRecord:
    return store.targets.of_study(store.studies.load(name).id)[0]


def told() -> dict[int, dict[str, Any]]:
    """Trial number → forecast, as Optuna itself reads it."""
    with Store.open(URL, write=False) as store:
        study = optuna.load_study(storage=URL, study_name=target_of(store).optuna_study)
    return {t.number: t.user_attrs[FORECAST] for t in study.trials if FORECAST in t.user_attrs}


def change(statement: str, *values: Any) -> None:
    connection = sqlite3.connect(DATABASE)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def test_forecasts_are_those_of_optuna_s_trials(studied: Path) -> None:
    store, now = opened()
    trials = {int(number): int(trial) for number, trial in zip(now.table.id, now.table.trial, strict=True)}
    found = {trials[number]: each.to_json() for number, each in store.trials.forecasts(now.target).items()}
    assert found
    assert found == told()
    part = forecasts.compare_forecasts(store, now)
    assert part is not None
    assert list(part.latency.trial) == sorted(found)
    assert list(part.latency.predicted) == [found[trial]["ms"] for trial in sorted(found)]
    rows = [list(now.table.trial).index(trial) for trial in sorted(found)]
    assert list(part.latency.measured) == list(now.table.latency_ms[rows])
    assert list(part.loss.measured) == list(now.table.loss[rows])
    assert part.loss.scale is not None
    store.close()


def test_a_loss_that_was_stopped_early_is_compared_with_no_forecast(studied: Path) -> None:
    first = sorted(told())[0]
    where = "where id = (select evaluation_id from bf_trial where number = ? and not reused)"
    change(f"update bf_evaluation set samples = samples - 1 {where}", first)
    store, now = opened()
    part = forecasts.compare_forecasts(store, now)
    assert part is not None
    assert first in part.latency.trial
    assert first not in part.loss.trial
    store.close()


@pytest.mark.slow
def test_a_mix_that_a_script_enqueued_has_a_forecast(studied: Path) -> None:
    with Store.open(URL, write=False) as store:
        study = optuna.load_study(storage=URL, study_name=target_of(store).optuna_study)
    tried = {tuple(trial.params.values()) for trial in study.trials}
    names = list(study.trials[0].params)
    new = next(codes for codes in itertools.product(range(2), repeat=len(names)) if codes not in tried)
    study.enqueue_trial(dict(zip(names, new, strict=True)))
    ok("resume", "small", "--trials", len(store_trials()) + 1)
    enqueued = next(t for t in study.get_trials() if tuple(t.params.values()) == new)
    assert enqueued.user_attrs[FORECAST]["how"] == "asked"
    assert enqueued.user_attrs[FORECAST]["ms"] > 0
    study.enqueue_trial(dict(zip(names, new, strict=True)))
    ok("resume", "small", "--trials", len(store_trials()) + 1)
    again = [t for t in study.get_trials() if tuple(t.params.values()) == new][1]
    assert FORECAST not in again.user_attrs


def store_trials() -> list[int]:
    """Trials of the study `small` that were evaluated."""
    store, now = opened()
    store.close()
    return [int(trial) for trial in now.table.trial]


@pytest.mark.slow
def test_other_samplers_predict_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    result = invoke("search", "in/model.onnx", "--data", "in/data.npz", "--study", "small", "--trials", 4, "--sampler",
                    "random")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "forecasts" not in result.output
    store, now = opened()
    assert store.trials.forecasts(now.target) == {}
    assert forecasts.compare_forecasts(store, now) is None
    store.close()
    assert "forecast" not in ok("show", "small", 3)
    assert json.loads(ok("show", "small", 3, "--json"))["forecast"] is None
    ok("report", "small", "--out", "r.html")
    assert "<summary>Forecasts" not in Path("r.html").read_text(encoding="utf-8")


def test_a_database_without_optuna_s_tables_has_none(studied: Path) -> None:
    connection = sqlite3.connect(DATABASE)
    connection.execute("drop table trial_user_attributes")
    connection.close()
    store, now = opened()
    assert store.trials.forecasts(now.target) == {}
    store.close()


# -- showing -----------------------------------------------------------------------------------------------------------


def test_show_tells_the_forecast(studied: Path) -> None:
    trial, forecast = max(told().items())
    assert json.loads(ok("show", "small", trial, "--json"))["forecast"] == forecast
    line = next(line for line in ok("show", "small", trial, "-v").splitlines() if line.startswith("forecast: "))
    latency, loss = line.removeprefix("forecast: ").split(", loss ")
    value, half = (float(part.removesuffix(" ms")) for part in latency.split(" ± "))
    assert value == pytest.approx(forecast["ms"], rel=5e-3)  # three digits are shown
    assert half == pytest.approx(NINETY * forecast["ms_std"], rel=0.06)
    value, half = (float(part.removesuffix(" %")) / 100 for part in loss.split(" ± "))
    assert value == pytest.approx(forecast["loss"], rel=1e-2)
    assert half == pytest.approx(NINETY * forecast["loss_std"], rel=0.06)
    assert "forecast" not in ok("show", "small", 0)  # a baseline


def test_the_report_compares(studied: Path) -> None:
    ok("report", "small", "--out", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<summary>Forecasts" in page
    assert 'data-figure="latency-forecasts"' in page
    assert f'data-label="forecasts">{len(told())}</td>' in page


# -- how good they were ------------------------------------------------------------------------------------------------


def part(predicted: list[float], measured: list[float], scale: float | None = None) -> Compared:
    n = len(measured)
    return Compared(np.arange(n), np.array(predicted), np.full(n, 0.01), np.array(measured), scale)


def test_qualities_over_all_and_over_the_last() -> None:
    truth = [1.0 + 0.1 * i for i in range(40)]
    bad_start = [5.0] * 15 + truth[15:]
    found = Forecasts(part(bad_start, truth), part(truth[:3], truth[:3], scale=2.0))
    rows = {(name, over): quality for name, over, quality in found.qualities()}
    assert list(rows) == [("latency", "all"), ("latency", "the last 25"), ("loss", "all")]
    assert rows["latency", "all"].coverage == pytest.approx(25 / 40)
    assert rows["latency", "the last 25"].coverage == 1
    assert found.verdict() == ""
    assert "latency is predicted poorly" in Forecasts(part(bad_start[::-1], truth), found.loss).verdict()
    poor = Forecasts(found.latency, part([0.5] * 10, truth[:10], scale=2.0)).verdict()
    assert poor == "The loss is predicted poorly here. Until that improves, half of the proposals come from TPE."
    both = Forecasts(part(bad_start[::-1], truth), part([0.5] * 10, truth[:10], scale=2.0)).verdict()
    assert both.startswith("The latency and the loss are predicted poorly")


def test_errors_within_the_tie_band_are_not_poor() -> None:
    """Ten forecasts, each off by 15 %, on a target whose measurements differ by 20 %."""
    truth = [1.0 + 0.1 * i for i in range(10)]
    found = replace(part([1.15 * ms for ms in truth], truth), std=np.full(10, 0.2))
    fine = part(truth, truth)
    assert "latency is predicted poorly" in Forecasts(found, fine).verdict()
    assert Forecasts(replace(found, band=0.2), fine).verdict() == ""


def test_errors_of_losses_have_no_scale_where_all_baselines_are_lossless() -> None:
    found = part([0.1, 0.2], [0.0, 0.0], scale=0.0).quality()
    assert math.isnan(found.error)
    assert forecasts.error_text(found) == forecasts.ranks_text(found) == "–"


# -- while searching ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_search_says_when_forecasts_turn_poor_and_good_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Real forecasts, but found poor from the second to the fourth.
    monkeypatch.setattr(
        "search.forecast.forecasts.is_poor", lambda found, band=0.0: found is not None and 2 <= found.n < 5
    )
    write_inputs(tmp_path / "in", mobile_cnn())
    search = ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 16, "-v")
    lines = [line for line in invoke(*search).stderr.splitlines() if line.startswith("forecasts")]
    assert [line.split(" (")[0].split(":")[0] for line in lines] == [
        "forecasts are poor here",
        "forecasts are good again",
        "forecasts of the latency",
        "forecasts of the loss",
    ]
    assert lines[0].endswith("half of the proposals come from TPE until they are better")
    assert "inside the 90 % interval (over " in lines[2]
