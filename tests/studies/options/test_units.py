"""Reading and writing quantities: what is accepted, what is refused and how the refusal helps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import ConfigError
from studies.options import quantities as units
from studies.options.quantities import Amount, ShapeSpec

PARSERS = [
    units.parse_latency_ms,
    units.parse_duration_s,
    units.parse_size_bytes,
    units.parse_amount,
    units.parse_drop,
    units.parse_shape,
]


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        ("2.5ms", 2.5),
        ("800us", 0.8),
        ("800 µs", 0.8),
        ("1.2s", 1200.0),
        (" .5MS ", 0.5),
        ("2e3us", 2.0),
        ("50ns", 5e-5),
    ],
)
def test_latency(text, value_ms):
    assert units.parse_latency_ms(text) == pytest.approx(value_ms, rel=1e-12)


def test_a_bare_latency_is_refused_with_the_two_spellings():
    with pytest.raises(ConfigError, match=r"--latency-budget: expected a time with its unit, got '2\.5'; "):
        units.parse_latency_ms("2.5")
    with pytest.raises(ConfigError, match=r"write 2\.5ms or 2500us$"):
        units.parse_latency_ms("2.5")


def test_minutes_are_no_latency():
    with pytest.raises(ConfigError, match=r"for milliseconds write 2\.5ms"):
        units.parse_latency_ms("2.5m")


@pytest.mark.parametrize(
    "text", ["0", "-1", "0ms", "-2ms", "nan", "nanms", "inf", "1e400ms", "fast", "", "2,5ms", "1ms2us", "٣ms"]
)
def test_latencies_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--budget: expected .*, got .*; "):
        units.parse_latency_ms(text, "--budget")


@pytest.mark.parametrize(
    ("text", "value_s"),
    [
        ("30m", 1800),
        ("30min", 1800),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("90s", 90),
        ("1.5h", 5400),
        ("1d", 86400),
        ("250ms", 0.25),
    ],
)
def test_duration(text, value_s):
    assert units.parse_duration_s(text) == pytest.approx(value_s)


def test_a_bare_duration_is_refused_with_two_spellings():
    with pytest.raises(ConfigError, match=r"write 30s or 30m$"):
        units.parse_duration_s("30")


@pytest.mark.parametrize(
    "text", ["-5m", "0s", "30m1h", "1h1h", "1m1min", "5x", "nan", "", "h", "1e999s", "1h-5m", "1e1" * 40]
)
def test_durations_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--time-limit: expected .*, got .*; "):
        units.parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512_000_000), ("2GiB", 2**31), ("1.5 kB", 1500), ("64kib", 65536), ("7B", 7), ("1TB", 10**12)],
)
def test_size(text, size):
    assert units.parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["512", "0MB", "-1MB", "1G", "nanMB", "lots", "0.1B", "1e999GB", ""])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--max-memory: expected .*, got .*; "):
        units.parse_size_bytes(text)


def test_a_bare_size_is_refused_with_two_spellings():
    with pytest.raises(ConfigError, match=r"write 512MB or 512MiB$"):
        units.parse_size_bytes("512")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1%", Amount(0.01, percent=True)),
        ("0.5 %", Amount(0.005, percent=True)),
        ("0.01", Amount(0.01)),
        ("0", Amount(0.0)),
        ("0.5dB", Amount(0.5, unit="dB")),
        ("0.5db", Amount(0.5, unit="dB")),
        ("0.3EUR", Amount(0.3, unit="EUR")),
        ("3e1 m/s", Amount(30.0, unit="m/s")),
        ("2€", Amount(2.0, unit="€")),
    ],
)
def test_drop(text, amount):
    assert units.parse_drop(text) == amount


@pytest.mark.parametrize("text", ["-1%", "nan", "inf", "1,5", "1.2.3", "1-2", "5_px", "1e400", "%", "1%%", "1%x", ""])
def test_drops_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--max-drop: expected .*, got .*; "):
        units.parse_drop(text)


def test_an_amount_may_be_negative_and_is_shown_as_written():
    assert units.parse_amount("-3dB") == Amount(-3.0, unit="dB")
    assert [str(units.parse_amount(text)) for text in ("1%", "0.25", "30dB")] == ["1%", "0.25", "30.0dB"]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("x:32x3x224x224", ShapeSpec("x", *[(32, 3, 224, 224)] * 3)),
        ("input:0:1x3", ShapeSpec("input:0", *[(1, 3)] * 3)),
        ("input:1:1x3", ShapeSpec("input:1", *[(1, 3)] * 3)),
        ("x:1x3:8x3:16x3", ShapeSpec("x", (1, 3), (8, 3), (16, 3))),
        ("a:1:8:16", ShapeSpec("a", (1,), (8,), (16,))),
        ("in:1:1x3:2x3:4x3", ShapeSpec("in:1", (1, 3), (2, 3), (4, 3))),
    ],
)
def test_shape(text, shape):
    assert units.parse_shape(text) == shape
    assert shape.is_fixed == (shape.minimum == shape.maximum)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("32x3", "an input name"),
        (":3x4", "an input name"),
        ("x:", "an input name"),
        ("x:0x3", "sizes from 1 up"),
        ("x:-1x3", "sizes from 1 up"),
        ("x:Nx3", "sizes from 1 up"),
        ("x:1x3:2x3", "one shape, or three"),
        ("x:1x3:2x3:4", "the same number of sizes"),
        ("x:4x3:2x3:1x3", "MIN ≤ OPT ≤ MAX"),
    ],
)
def test_shapes_that_are_none(text, problem):
    with pytest.raises(ConfigError, match=problem):
        units.parse_shape(text)


def test_count():
    assert units.parse_count("60", "--trials") == 60
    for text in ("0", "-1", "1.5", "1e3", "many", "", "9" * 30, "٣"):
        with pytest.raises(ConfigError, match=r"^--trials: expected a whole number"):
            units.parse_count(text, "--trials")


@pytest.mark.slow
@given(
    st.sampled_from(PARSERS),
    st.one_of(st.text(max_size=30), st.from_regex(r"[-+0-9.eE:x%hmsBGi ]{0,20}", fullmatch=True)),
)
def test_any_text_is_a_value_or_a_refusal(parse, text):
    try:
        value = parse(text, "--option")
    except ConfigError as error:
        value = error
    if isinstance(value, ConfigError):
        assert str(value).startswith("--option: expected ")
    elif not isinstance(value, ShapeSpec):
        assert math.isfinite(value.value if isinstance(value, Amount) else value)


@given(st.floats(1e-6, 1e6))
def test_written_latencies_can_be_read(value_ms):
    assert units.parse_latency_ms(units.format_ms(value_ms)) == pytest.approx(value_ms, rel=1e-3)


@given(st.integers(1, 10**14))
def test_written_sizes_can_be_read(size):
    assert units.parse_size_bytes(units.format_bytes(size)) == pytest.approx(size, rel=1e-2)


@given(st.floats(0.001, 1e7))
def test_written_durations_can_be_read(value_s):
    tolerance = 0.5 if value_s > 59 else 0.01 * value_s
    assert units.parse_duration_s(units.format_duration_s(value_s)) == pytest.approx(value_s, abs=tolerance + 1e-9)


@given(st.tuples(st.text("abc/.:_", min_size=1), st.lists(st.integers(1, 999), min_size=1, max_size=5)))
def test_shapes_are_read_whatever_the_name(item):
    name, sizes = item
    if name.strip(":") == name:
        spec = units.parse_shape(f"{name}:{'x'.join(map(str, sizes))}")
        assert (spec.name, spec.optimum) == (name, tuple(sizes))


def test_formats():
    assert [units.format_ms(x) for x in (0.32431, 12.3456, 2.5, 1234.4, 0)] == [
        "0.3243 ms", "12.35 ms", "2.5 ms", "1234 ms", "0 ms",
    ]  # fmt: skip
    assert [units.format_bytes(x) for x in (5, 999.7, 512e6, 2**31)] == ["5 B", "1 kB", "512 MB", "2.15 GB"]
    assert [units.format_elapsed_s(x) for x in (0.00811, 0.25, 0.9999, 4.45)] == ["8.1 ms", "250 ms", "1s", "4.45s"]
    assert [units.format_duration_s(x) for x in (0.25, 59.9, 5400, 172805)] == ["0.25s", "1m", "1h30m", "2d5s"]
    assert units.format_percent(0.00421) == "0.421 %"
    assert units.format_metric(0.76312, "", ratio=True) == "76.31 %"
    assert units.format_metric(31.2, "dB", ratio=False) == "31.2 dB"
    assert units.format_metric(-0.0, "", ratio=False) == "0"


@pytest.mark.parametrize(("text", "value_ms"), [("400", 2.5), ("400fps", 2.5), ("0.5 fps", 2000.0), ("1e3", 1.0)])
def test_a_rate_is_the_time_of_one_inference(text: str, value_ms: float) -> None:
    assert units.parse_rate_ms(text) == pytest.approx(value_ms, rel=1e-12)


@pytest.mark.parametrize("text", ["0", "-5", "fast", "30ms", "inf", ""])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--min-fps"):
        units.parse_rate_ms(text)
