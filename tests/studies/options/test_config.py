"""Options and configuration file: checked as a whole, every wrong one named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.backends.registry import kind_named
from search.errors import ConfigError
from search.space.rules import KeepRule
from search.values import Precision
from studies.options.backend_options import absolute_texts
from studies.options.config import SearchConfig, option_rows, option_table
from studies.options.limits import LIMITS, Limits, MetricScale
from studies.options.quantities import Amount, ShapeSpec
from studies.options.read_options import change_config, check_config, read_changes, read_config
from studies.options.resolve_limits import resolve_limits
from studies.options.urls import mask_password

BASE = {"model": "models/resnet.onnx", "data": "data.npz"}

EVERYTHING = {
    "latency-budget": "2.5ms",
    "max-drop": "1%",
    "accuracy-limit": "70%",
    "max-memory": "512MB",
    "min-fps": "400",
    "trials": "60",
    "time-limit": "30m",
    "patience": "20",
    "study": "mine",
    "storage": "postgresql+psycopg://me:secret@host/db",
    "backend": "onnxruntime",
    "device": "cpu",
    "batch": "32",
    "shape": ["x:32x3x224x224", "mask:32x8:32x8:32x16"],
    "metric": "top5",
    "calibration-data": "cal.npz",
    "final-data": "final.npz",
    "preprocess": "mine.images:prepare",
    "calibration": "entropy",
    "sampler": "nsga2",
    "granularity": "block",
    "keep": ["^/head/=fp16", "a=b=int8"],
    "seed": "7",
    "threads": "2",
    "keep-engines": "all",
    "evaluation-timeout": "10m",
    "evaluation-memory": "8GB",
    "quiet": True,
    "typing": "strong",
    "workspace": "2GiB",
    "optimization-level": "1",
    "final-optimization-level": "5",
    "tf32": "off",
    "sparsity": True,
    "native-instancenorm": "off",
    "plugin": ["a.so", "b.so"],
    "timing-cache": "none",
    "build-threads": "12",
}


def toml(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(options, config_file=None):
    with pytest.raises(ConfigError) as caught:
        read_config(options, config_file)
    return str(caught.value)


def test_every_option_is_read():
    found = read_config({**BASE, **EVERYTHING})
    assert found == SearchConfig(
        model="models/resnet.onnx", data="data.npz", study="mine", storage="postgresql+psycopg://me:secret@host/db",
        limits={
            "latency_budget_ms": 2.5, "max_drop": Amount(0.01, percent=True),
            "accuracy_limit": Amount(0.7, percent=True), "max_memory_bytes": 512_000_000,
            "rate_budget_ms": 2.5,
        },
        trials=60, time_limit_s=1800.0, patience=20, backend="onnxruntime", device="cpu",
        batch=32, shapes=(
            ShapeSpec("x", *[(32, 3, 224, 224)] * 3), ShapeSpec("mask", (32, 8), (32, 8), (32, 16)),
        ),
        metric="top5", calibration_data="cal.npz", final_data="final.npz", preprocess="mine.images:prepare",
        calibration="entropy", sampler="nsga2", granularity="block",
        keep=(KeepRule("^/head/", Precision.FP16), KeepRule("a=b", Precision.INT8)), seed=7, threads=2,
        keep_engines="all", evaluation_timeout_s=600.0, evaluation_memory_bytes=8_000_000_000, quiet=True,
        builder_options={
            "typing": "strong", "workspace_bytes": 2 << 30, "optimization_level": 1, "final_optimization_level": 5,
            "tf32": False, "sparsity": True, "native_instancenorm": False, "plugins": ("a.so", "b.so"),
            "timing_cache": "none", "build_threads": 12,
        },
    )  # fmt: skip


def test_options_cover_every_field_once():
    keys = [option.key for option in option_table().values()]
    fields = set(SearchConfig.__dataclass_fields__) - {"limits", "builder_options", "own_sampler", "overrides", "given"}
    of_tensorrt = [row.keyword for row in kind_named("tensorrt").options]
    assert sorted(keys) == sorted({*fields, *LIMITS, *of_tensorrt, "final_optimization_level"})


def test_paths_among_the_options_of_a_backend_hold_from_any_folder_however_they_are_spelt():
    texts = ["timing_cache=kept", "timing-cache=kept", "timing-cache=none", "workspace=2GB"]
    here = f"={Path('kept').absolute()}"
    assert absolute_texts(kind_named("tensorrt"), texts) == [f"timing_cache{here}", f"timing-cache{here}", *texts[2:]]


def test_defaults():
    found = read_config({**BASE, "latency_budget": None, "shape": [], "quiet": False})
    assert found == SearchConfig(model="models/resnet.onnx", data="data.npz", study="resnet")
    assert found.storage == "sqlite:///bitfront.db"


def test_file_and_command_line(tmp_path):
    path = toml(
        tmp_path,
        """
        model = "a.onnx"
        data = "d.npz"
        latency-budget = "2ms"
        max_drop = 0.01
        trials = 40
        keep = "x=fp32"
        shape = ["x:1x3", "y:1x3"]
        quiet = true
        """,
    )
    found = read_config({"trials": "50", "max-drop": None, "quiet": False, "shape": ["z:2x2"]}, path)
    assert (found.model, found.study, found.trials) == ("a.onnx", "a", 50)
    assert found.limits == {"latency_budget_ms": 2.0, "max_drop": Amount(0.01)}
    assert found.quiet
    assert found.keep == (KeepRule("x", Precision.FP32),)
    assert [shape.name for shape in found.shapes] == ["z"]
    assert found.overrides == ("shape", "trials")
    assert found.given == ("data", "keep", "latency-budget", "max-drop", "model", "quiet", "shape", "trials")


def test_switches(tmp_path):
    path = toml(tmp_path, "tf32 = false\nnative-instancenorm = 'on'\nsparsity = true\n")
    found = read_config(BASE, path)
    names = ("tf32", "native_instancenorm", "sparsity")
    assert [found.builder_option(name) for name in names] == [False, True, True]
    assert read_config({**BASE, "tf32": ["on"]}, path).builder_option("tf32")
    assert not read_config({**BASE, "tf32": False}).builder_option("tf32")
    assert "tf32" in read_config({**BASE, "tf32": False}).given
    assert "expected one of on, off, got 'yes'" in problems_of({**BASE, "tf32": "yes"})
    assert "'a.so' is given twice" in problems_of({**BASE, "plugin": ["a.so", "a.so"]})


def test_what_was_given_is_told_from_defaults():
    found = read_config({**BASE, "typing": "auto", "sparsity": False, "plugin": []})
    assert found.given == ("data", "model", "typing")
    assert change_config(found, {"trials": 9}).given == ("data", "model", "trials", "typing")
    assert SearchConfig.from_json(found.to_json()).given == ()


def test_every_problem_is_named_in_one_error(tmp_path):
    path = toml(
        tmp_path,
        """
        latency-budget = 2.5
        triols = 50
        trials = 5.5
        quiet = "yes"
        seed = true
        keep = ["([=fp16", "x=fp64", "nothing"]
        [space]
        depth = 1
        """,
    )
    text = problems_of({"backend": "onnxruntim", "shape": ["x:3x4", "x:3x5"], "batch": "8"}, path)
    for part in (
        "13 things are wrong",
        f"--latency-budget in {path}: expected a time with its unit, got '2.5'; write 2.5ms or 2500us",
        f"'triols' in {path}: there is no such option; did you mean trials?",
        "got '5.5'",
        f"--quiet in {path}: expected true or false, got 'yes'",
        f"--seed in {path}: expected a text or a number, got true",
        "a regular expression, got '(['",
        "precision 'fp64' is unknown; known are fp32, fp16, bf16",
        "expected REGEX=PRECISION, got 'nothing'",
        f"'space' in {path}: there is no such option",
        "--backend: expected one of auto, tensorrt, onnxruntime, openvino, fake, got 'onnxruntim'; did you mean "
        "onnxruntime?",
        "--shape: 'x' is given twice",
        "MODEL is missing",
        "--data is missing",
    ):
        assert part in text


def test_nothing_is_given_twice_silently(tmp_path):
    path = toml(tmp_path, "max-drop = '1%'\nmax_drop = '2%'\n")
    assert "--max-drop" in problems_of(BASE, path)
    assert "given twice, with - and with _" in problems_of(BASE, path)
    assert "expected one value, got '2ms', '3ms'; give it once" in problems_of(
        {**BASE, "latency-budget": ["2ms", "3ms"]}
    )
    assert "'a' is given twice" in problems_of({**BASE, "keep": ["a=fp16", "a=int8"]})
    assert read_config({**BASE, "trials": ["7"]}).trials == 7


def test_batch_and_shape_must_agree():
    assert "name different batches" in problems_of({**BASE, "batch": "4", "shape": ["x:8x3"]})
    assert read_config({**BASE, "batch": "8", "shape": ["x:8x3"]}).batch == 8


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("study", ""),
        ("study", "a\nb"),
        ("study", "x" * 201),
        ("preprocess", "mine.prepare"),
        ("metric", "mine.py:"),
        ("seed", "-1"),
        ("seed", str(2**32)),
        ("threads", "0"),
        ("patience", "0"),
        ("sampler", "annealing"),
        ("storage", "study.db"),
        ("trials", "none"),
        ("keep", "=fp16"),
        ("typing", "explicit"),
        ("workspace", "4"),
        ("optimization-level", "6"),
        ("final-optimization-level", "-1"),
        ("native-instancenorm", "1"),
        ("plugin", ""),
        ("timing-cache", ""),
    ],
)
def test_values_that_are_none(option, text):
    assert f"--{option}: expected " in problems_of({**BASE, option: text})


def test_passwords_are_in_no_message_text_or_json():
    assert "secret" not in problems_of({**BASE, "storage": "oracle://me:secret@host/db"})
    twice = ["postgresql://me:secret@h/a", "mysql://h/a?password=secret&x=1"]
    assert "secret" not in problems_of({**BASE, "storage": twice})
    found = read_config({**BASE, "storage": twice[0]})
    assert "secret" not in repr(found)
    assert "secret" not in json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me:p@ss:w/rd@host/db", "postgresql://me:***@host/db"),
        ("mysql+pymysql://:pw@host/db", "mysql+pymysql://:***@host/db"),
        ("postgresql://me@host/db?PassWord=pw&ssl=1", "postgresql://me@host/db?PassWord=***&ssl=1"),
        ("sqlite:///C:/data/study.db", "sqlite:///C:/data/study.db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
    ],
)
def test_mask_password(url, masked):
    assert mask_password(url) == masked


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"trials = ", "expected TOML"), (b"a = 1\na = 2\n", "expected TOML"), (b"\xff\xfe", "expected TOML in UTF-8")],
)
def test_files_that_are_no_toml(tmp_path, content, problem):
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    assert problem in problems_of(BASE, path)


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in problems_of(BASE, tmp_path / "none.toml")
    assert "--config" in problems_of(BASE, tmp_path)


def test_json_round_trip():
    found = read_config({**BASE, **EVERYTHING})
    stored = json.loads(json.dumps(found.to_json()))
    assert SearchConfig.from_json(stored, storage=found.storage) == found


def test_json_takes_defaults_and_refuses_what_it_does_not_know():
    least = {"model": "a.onnx", "data": "d", "study": "s"}
    assert SearchConfig.from_json(least) == SearchConfig("a.onnx", "d", "s")
    with pytest.raises(ConfigError, match="max_colour"):  # a limit that another program registered
        SearchConfig.from_json({**least, "max_colour": 3})
    with pytest.raises(ConfigError, match="stored configuration"):
        SearchConfig.from_json({"model": "a.onnx"})
    with pytest.raises(ConfigError, match="stored configuration"):
        SearchConfig.from_json({**least, "keep": [{"pattern": "x", "precision": 99}]})


def test_changes_replace_and_clear():
    found = read_config({**BASE, "max-drop": "1%", "latency-budget": "2ms"})
    changed = change_config(found, read_changes({"trials": "100", "max_drop": "none", "latency_budget": None}))
    assert (changed.trials, changed.limits) == (100, {"latency_budget_ms": 2.0})
    with pytest.raises(ConfigError, match="--max-memory"):
        read_changes({"max_memory": "1"})


def test_values_given_in_python_are_checked_as_texts_are():
    with pytest.raises(ConfigError) as caught:
        check_config(
            SearchConfig(
                "m.onnx", "d.npz", trials=0, sampler="guidde", lease_s=0.5, limits={"latency_budget_ms": -1.0},
                builder_options={"optimization_level": 9, "colour": 1},
            )
        )  # fmt: skip
    said = str(caught.value)
    for name in ("trials", "did you mean guided", "lease_s", "latency_budget_ms", "optimization_level", "colour"):
        assert name in said
    with pytest.raises(ConfigError, match="'trails': there is no such option; did you mean trials"):
        change_config(SearchConfig("m.onnx", "d.npz"), {"trails": 5})
    with pytest.raises(ConfigError, match="max_drop: expected a drop of zero or more"):
        change_config(SearchConfig("m.onnx", "d.npz"), {"max_drop": -0.5})


def test_a_configuration_made_in_python_is_the_one_that_texts_give():
    found = read_config({**BASE, **EVERYTHING})
    made = check_config(replace(found, given=()))
    assert made == found
    assert set(made.given) <= set(found.given)
    assert {"max-drop", "tf32", "shape", "keep"} <= set(made.given)


@pytest.mark.parametrize("row", list(option_rows()), ids=lambda row: row.name)
def test_every_value_that_is_written_is_read_again(row):
    values = read_config({**BASE, **EVERYTHING, "lease": "90s", "artifacts": "s3://engines/a", "gpus": "0,2"})
    of_row = {**vars(values), **values.limits, **values.builder_options}
    value = of_row.get(row.key)
    if value is None or row.flag:
        return
    for each in value if row.many else [value]:
        if row.key not in ("max_drop", "accuracy_limit"):
            assert row.kind.read(row.text_of(each), row.shown) == each


RATIO = MetricScale("top1", ratio=True)
SQNR = MetricScale("sqnr", "dB", relative=True)
MSE = MetricScale("mse", higher_is_better=False, relative=True)
PRICE = MetricScale("mae", "EUR", higher_is_better=False)
PLAIN = MetricScale("mae", higher_is_better=False)


def limits(metric, **options):
    return resolve_limits(read_config({**BASE, **options}).limits, metric, 1)


def test_limits_of_a_ratio():
    found = limits(RATIO, max_drop="1%", accuracy_limit="75%", latency_budget="2ms", max_memory="1MB")
    assert found == Limits(latency_budget_ms=2.0, max_drop=0.01, accuracy_limit=0.75, max_memory_bytes=1_000_000)
    assert limits(RATIO) == Limits()
    assert limits(RATIO, max_drop="0.02") == {"max_drop": 0.02}


def test_limits_in_decibels_and_plain_numbers():
    assert limits(SQNR, accuracy_limit="30dB") == Limits(accuracy_limit=30.0)
    assert limits(SQNR, accuracy_limit="-3", max_drop="0.5dB") == Limits(accuracy_limit=-3.0, max_drop=0.5)
    assert limits(MSE, accuracy_limit="0.001") == Limits(accuracy_limit=0.001)
    assert limits(PRICE, max_drop="0.3EUR", accuracy_limit="15 EUR") == Limits(max_drop=0.3, accuracy_limit=15.0)


@pytest.mark.parametrize(
    ("metric", "options", "advice"),
    [
        (PRICE, {"max_drop": "0.3USD"}, "--max-drop 0.3USD for the metric mae: its values are in EUR, not in USD"),
        (PRICE, {"accuracy_limit": "3dB"}, "its values are in EUR, not in dB; write it in EUR"),
        (PRICE, {"accuracy_limit": "1%"}, "for values in EUR; write --accuracy-limit VALUE with the value in EUR"),
        (PLAIN, {"accuracy_limit": "1%"}, "write --accuracy-limit VALUE with the value as a plain number"),
        (SQNR, {"max_drop": "1%"}, "use --accuracy-limit 30dB"),
        (MSE, {"max_drop": "1%"}, "use --accuracy-limit 0.5"),
        (MSE, {"accuracy_limit": "1%"}, "use --accuracy-limit"),
        (MSE, {"max_drop": "1dB"}, "leave the unit out"),
        (RATIO, {"max_drop": "0.5dB"}, "leave the unit out"),
        (RATIO, {"max_drop": "1"}, "write 1%"),
        (RATIO, {"max_drop": "150%"}, "give less"),
        (RATIO, {"accuracy_limit": "76"}, "for example 76%"),
        (RATIO, {"accuracy_limit": "-0.1"}, "from 0 to 1"),
    ],
)
def test_limits_that_mean_nothing(metric, options, advice):
    with pytest.raises(ConfigError, match=metric.name) as caught:
        limits(metric, **options)
    assert advice in str(caught.value)


def test_both_wrong_limits_are_named():
    with pytest.raises(ConfigError, match="2 things are wrong"):
        limits(SQNR, max_drop="1%", accuracy_limit="75%")


TEXTS = st.text(max_size=20)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(sorted(option_table())), st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.booleans())
    )
)
def test_any_options_give_a_configuration_or_a_refusal(options):
    try:
        found = read_config(options)
    except ConfigError:
        return
    assert SearchConfig.from_json(json.loads(json.dumps(found.to_json())), storage=found.storage) == found
