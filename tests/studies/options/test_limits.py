"""The table of limits: a limit that another package registers counts wherever the built-in ones do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from search.errors import ConfigError
from studies.judging.rules.feasibility import keeps_limits, overshoots
from studies.judging.standing import read_standing
from studies.options.config import SearchConfig
from studies.options.limits import LIMITS, Limit, Limits, MetricScale, register_limit
from studies.options.quantities import Amount
from studies.options.read_options import read_config
from studies.options.resolve_limits import resolve_limits
from studies.store.store import Store
from tests.support.command_line import copy_finished, finished, ok
from tests.support.extensions.toy_limit import MAX_FILE

TOP1 = MetricScale("top1", ratio=True)


@pytest.fixture
def largest_engine() -> Iterator[Limit]:
    """A limit that bitfront does not ship, of a column that one of its own bounds too."""
    finished()  # the study that all tests share has no such limit
    limit = register_limit(MAX_FILE)
    yield limit
    del LIMITS[limit.name]


def test_a_registered_limit_is_an_option_and_is_stored(largest_engine: Limit) -> None:
    config = read_config({"model": "m.onnx", "data": "d.npz", "max-file": "10MB"})
    assert config.limits == {"max_file_bytes": 10_000_000}
    assert SearchConfig.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match="--max-file: expected a size with its unit"):
        read_config({"model": "m.onnx", "data": "d.npz", "max-file": "10"})
    assert resolve_limits(config.limits, TOP1, 1).to_json()["max_file_bytes"] == 10_000_000
    assert largest_engine.text(10_000_000, TOP1) == "file ≤ 10 MB"


def test_a_registered_limit_decides_what_is_feasible(
    largest_engine: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    with Store.open("sqlite:///bitfront.db", write=False) as store:
        study = store.studies.load("small")
        now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits())
        sizes = now.table.size_bytes[:]
        bound = int(sizes[now.judgement.feasible].max()) - 1
        bounded = replace(now, limits=Limits(max_file_bytes=bound))
        assert 0 < bounded.judgement.feasible.sum() < now.judgement.feasible.sum()
        assert bounded.judgement.feasible.tolist() == (now.judgement.feasible & (sizes <= bound)).tolist()
        nearest = replace(now, limits=Limits(max_file_bytes=1)).judgement.nearest()
        assert [name for near in nearest for name, _ in near.misses] == ["file"] * len(nearest)


def test_numbers_below_zero_are_bounded_where_they_mean_something() -> None:
    limit = register_limit(
        replace(
            MAX_FILE,
            name="min_alike",
            option="min-alike",
            column="resemblance",
            word="alike",
            unit="number",
            least=True,
        )
    )
    try:
        measures = {"resemblance": np.array([0.9, -0.5, np.nan])}
        over = overshoots(measures, Limits(min_alike=0.5), higher_is_better=True)["alike"]
        assert over[:2] == pytest.approx([-0.8, 2.0])
        assert np.isnan(over[2])
        assert limit.text(0.5, TOP1) == "alike ≥ 0.5"
    finally:
        del LIMITS[limit.name]


def test_a_limit_with_a_name_that_is_taken_is_refused(largest_engine: Limit) -> None:
    with pytest.raises(ConfigError, match="max_file_bytes"):
        register_limit(replace(largest_engine, option="max-file"))
    with pytest.raises(ConfigError, match="max_drop"):
        register_limit(replace(largest_engine, name="other", option="max-drop"))
    with pytest.raises(ConfigError, match="a word of its own, got one of the limit max_file_bytes"):
        register_limit(replace(largest_engine, name="other", option="max-file"))
    with pytest.raises(ConfigError, match="expected an option with hyphens"):  # Python and files spell both
        register_limit(replace(largest_engine, name="other", option="max_way", word="way"))


def test_a_limit_of_an_unknown_unit_is_refused(largest_engine: Limit) -> None:
    with pytest.raises(ConfigError, match="expected a unit of ms, s, bytes, number or metric, got 'parsec'"):
        register_limit(replace(largest_engine, name="other", option="max-way", word="way", unit="parsec"))


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_colour"):
        Limits(max_colour=1.0)
    with pytest.raises(ConfigError, match="max_colour"):
        resolve_limits({"max_colour": 1.0}, TOP1, 1)


def test_bounds_of_the_evaluator_are_widened_by_the_tie_band() -> None:
    given = Limits(latency_budget_ms=2.0, max_drop=0.01, max_memory_bytes=9)
    assert given.early(0.5) == {"latency_ms": 3.0, "drop": 0.01}


def test_allowed_losses_need_fp32_only_for_a_bound_on_the_metric_itself() -> None:
    assert Limits(max_drop=0.01).allowed_losses(None, True) == [0.01]
    both = Limits(max_drop=0.01, accuracy_limit=0.75)
    assert both.allowed_losses(None, True) == [0.01]
    assert both.allowed_losses(0.8, True) == pytest.approx([0.01, 0.05])
    assert Limits(accuracy_limit=0.5).allowed_losses(0.4, False) == pytest.approx([0.1])
    assert (Limits(max_drop=0.01).needs_reference, both.needs_reference) == (False, True)


def test_a_rate_bounds_the_latency_and_the_narrower_of_both_counts() -> None:
    given = Limits(latency_budget_ms=2.0, rate_budget_ms=2.5)
    assert given.most("latency_ms") == 2.0
    assert given.early(0.0) == {"latency_ms": 2.0}
    assert Limits(latency_budget_ms=3.0, rate_budget_ms=2.5).early(0.0) == {"latency_ms": 2.5}
    (limit, bound), *_ = Limits(rate_budget_ms=2.5).rows()
    assert limit.text(bound, MetricScale("top1")) == "latency ≤ 2.5 ms"
    assert limit.kind.read(limit.kind.write(2.5), "--min-fps") == 2.5


@pytest.mark.parametrize(
    ("metric", "bound", "refused"),
    [
        (MetricScale("sqnr", "dB", relative=True), Amount(0.01), True),
        (MetricScale("sqnr", "dB", relative=True), Amount(0.01, unit="dB"), False),
        (MetricScale("sqnr", "dB", relative=True), Amount(3.0), False),
        (MetricScale("mse", relative=True), Amount(0.01), False),
        (MetricScale("agreement", "share", ratio=True, relative=True), Amount(0.01), False),
        (MetricScale("m.py:f", "px"), Amount(0.05), False),
    ],
)
def test_a_number_that_may_mean_a_share_is_refused_where_the_metric_has_none(
    metric: MetricScale, bound: Amount, refused: bool
) -> None:
    if refused:
        with pytest.raises(ConfigError, match=r"may mean a share; use --accuracy-limit 30dB or write 0\.01dB"):
            resolve_limits({"max_drop": bound}, metric, 1)
    else:
        assert resolve_limits({"max_drop": bound}, metric, 1) == Limits(max_drop=bound.value)


@pytest.mark.parametrize(("fp32", "allowed"), [(31.2, 1.56), (-0.4, 0.02)])
def test_a_percentage_of_what_is_no_share_is_one_of_fp32_once_that_is_known(fp32: float, allowed: float) -> None:
    metric = MetricScale("m.py:psnr", "dB")
    given = resolve_limits({"max_drop": Amount(0.05, percent=True)}, metric, 1)
    assert (given.bound_accuracy, given.needs_reference, given.rows(), given.early(0.1)) == (True, True, [], {})
    assert (given.allowed_losses(None, True), given.most("loss"), given.to_json()["max_drop"]) == ([], None, None)
    assert (given.share_text(metric), given.share_problem()) == ("", "")
    known = given.with_fp32(fp32)
    assert known.needs_reference is False
    assert known.early(0.1) == pytest.approx({"drop": allowed})
    assert known.to_json()["max_drop"] == known.most("loss") == known.widen("latency_ms", 2)["max_drop"]
    assert known.share_text(metric) == f"--max-drop 5% of FP32's {fp32} dB allows a loss of {allowed} dB"
    assert known.with_fp32(2 * fp32).most("loss") == pytest.approx(2 * allowed)


def test_nothing_keeps_a_percentage_of_what_is_not_known() -> None:
    given, rows = Limits(max_drop=Amount(0.05, percent=True)), {"latency_ms": [1.0, 1.0], "loss": [0.0, 0.2]}
    assert keeps_limits(rows, given, higher_is_better=True).tolist() == [False, False]
    assert keeps_limits(rows, given.with_fp32(2.0), higher_is_better=True).tolist() == [True, False]


def test_a_percentage_of_zero_allows_nothing_and_zero_percent_needs_no_fp32() -> None:
    plain = MetricScale("m.py:f")
    with pytest.raises(ConfigError, match=r"--max-drop 5%: it is a percentage of FP32's own value .*, which is 0\."):
        Limits(max_drop=Amount(0.05, percent=True)).with_fp32(-0.0).share_text(plain)
    none = resolve_limits({"max_drop": Amount(0.0, percent=True)}, plain, 1).with_fp32(0.0)
    assert (none, none.share_problem()) == (Limits(max_drop=0.0), "")


def test_a_rate_is_of_samples_not_of_batches() -> None:
    given = read_config({"model": "m.onnx", "data": "d.npz", "min-fps": "20000"}).limits
    assert resolve_limits(given, TOP1, 1) == Limits(rate_budget_ms=0.05)
    assert resolve_limits(given, TOP1, 8) == Limits(rate_budget_ms=0.4)  # 0.096 ms of a batch keep it


def test_the_size_of_the_engine_is_a_limit_and_then_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = {row["mix"]: row for row in json.loads(ok("front", "small", "--json"))["rows"]}
    bound = rows["all fp32"]["size_bytes"]
    assert rows["all int8"]["size_bytes"] > bound, "scales take more than these few weights"
    bounded = {row["mix"]: row for row in json.loads(ok("front", "small", "--json", "--max-size", f"{bound}B"))["rows"]}
    assert (bounded["all int8"]["feasible"], bounded["all fp32"]["feasible"]) == (False, True)
    header, *_ = ok("front", "small", "--max-size", f"{bound}B").splitlines()
    assert "size" in header.split()
    assert "size" not in ok("front", "small").splitlines()[0].split()
