"""TensorRT's calibration cache: what is written is read, what is damaged is refused, and a search can start from it."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.calibration import cache as calibration_cache
from evaluators.calibration.cache import read, read_file, take, write
from search.errors import ConfigError
from search.values import Ranges, TensorRange
from tests.support.command_line import DATABASE, invoke, ok, write_inputs

# The example of NVIDIA's sampleINT8, and what its lines mean.
SAMPLE = "TRT-7000-EntropyCalibration2\ndata: 3c008912\nconv1: 3c88edfc\nip2: 3e691968\n"

NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n"), min_size=1)
VALUES = st.floats(-3e38, 3e38, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-30)


def ranges(bounds: dict[str, tuple[float, float]]) -> Ranges:
    tensors = {name: TensorRange(*sorted(pair)) for name, pair in bounds.items()}
    return Ranges("minmax", tensors, tensors, 8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_published_example() -> None:
    found = read(SAMPLE)
    assert list(found) == ["data", "conv1", "ip2"]
    assert found["data"] == pytest.approx(127 * 0.00784518, rel=1e-5)
    assert found["ip2"] == pytest.approx(127 * 0.22763, rel=1e-4)


@pytest.mark.slow
@given(st.dictionaries(NAMES, st.tuples(VALUES, VALUES), min_size=1))
def test_what_is_written_is_read(bounds: dict[str, tuple[float, float]]) -> None:
    written = ranges(bounds)
    text = write(written)
    found = read(text)
    assert found.keys() == bounds.keys()
    for name, range_ in written.tensors.items():
        assert found[name] == pytest.approx(range_.magnitude or 1.0, rel=2**-23)
    # From the second time on nothing is rounded: float32 times 127 is exact in float64.
    again = Ranges("minmax", {name: TensorRange(-m, m) for name, m in found.items()}, {}, 0)
    assert write(again) == text or any(m == 0 for m in found.values())


@pytest.mark.parametrize(
    ("version", "digits"),
    [("8.6.0", "8600"), ("8.6.1", "8601"), ("10.9.0", "100900"), ("10.16.1.11", "101601"), ("11.4.0.106", "110400")],
)
def test_the_first_line_has_the_version_as_tensorrt_writes_it(version: str, digits: str) -> None:
    assert write(ranges({"x": (-1, 1)}), version).splitlines()[0] == f"TRT-{digits}-EntropyCalibration2"


def test_names_with_colons_and_short_scales() -> None:
    assert read("TRT-8600-MinMaxCalibration\r\na:0: b: 3c010a14\r\nzero: 0\r\n") == {
        "a:0: b": 127 * struct.unpack(">f", bytes.fromhex("3c010a14"))[0],
        "zero": 0.0,
    }


def test_a_name_with_a_line_break_is_left_out() -> None:
    assert "evil" not in write(ranges({"x": (-1, 1), "evil\ny: 3c010a14": (-2, 2)}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1"),
        ("data: 3c008912\n", "a first line like TRT-8600-EntropyCalibration2"),
        ("TRT-8600-EntropyCalibration2\n", "at least one tensor"),
        ("TRT-8600-EntropyCalibration2\ndata 3c008912\n", "line 2: expected `tensor: scale`"),
        ("TRT-8600-EntropyCalibration2\nx: 3c008912\ny: 3c0089123\n", "line 3"),
        ("TRT-8600-EntropyCalibration2\nx: 0x3c0089\n", "line 2"),
        ("TRT-8600-EntropyCalibration2\nx: 7f800000\n", "a finite scale"),
        ("TRT-8600-EntropyCalibration2\nx: 7fc00000\n", "a finite scale"),
        ("TRT-8600-EntropyCalibration2\nx: bc008912\n", "not negative"),
        ("TRT-8600-EntropyCalibration2\nx: 3c008912\nx: 3c008913\n", "one scale for 'x'"),
    ],
)
def test_what_is_no_cache_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.one_of(st.binary(), st.binary().map(lambda junk: SAMPLE.encode() + junk)))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.cache"
    path.write_bytes(content)
    try:
        found = read_file(path)
    except ConfigError:
        return
    assert found
    assert all(math.isfinite(magnitude) and magnitude >= 0 for magnitude in found.values())


@given(st.integers(0, len(SAMPLE) - 1), st.characters(blacklist_categories=("Cs",)))
def test_one_changed_character_never_breaks_the_reader(place: int, character: str) -> None:
    try:
        found = read(SAMPLE[:place] + character + SAMPLE[place + 1 :])
    except ConfigError:
        return
    assert all(math.isfinite(magnitude) and magnitude >= 0 for magnitude in found.values())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "none.cache")


def test_taken_ranges_say_what_they_are() -> None:
    calibrated = ranges({"x": (0, 6), "y": (-1, 2)})
    taken = take({"x": 3.0, "other": 1.0}, ["x", "y"], calibrated)
    assert taken.ranges.method == calibration_cache.METHOD
    assert taken.ranges.tensors == {"x": TensorRange(-3, 3), "y": TensorRange(-1, 2)}
    assert taken.ranges.observed == taken.ranges.tensors
    assert taken.ranges.samples == 8
    assert (taken.missing, taken.unknown) == (("y",), ("other",))
    assert "ranges of 1 tensors come" in taken.note()
    missing, unknown = taken.mismatches()
    assert "lacks 1 tensor (y)" in missing
    assert "has 1 tensor (other)" in unknown
    assert take({"x": 3.0, "y": 2.0}, ["x", "y"], None).mismatches() == []


@pytest.mark.slow
def test_a_search_starts_from_a_cache_and_resumes_without_it(here: Path) -> None:
    write_inputs(here / "in")
    files = [here / "in/model.onnx", "--data", here / "in/data.npz", "--trials", 2]
    ok("search", *files, "--study", "first", "--keep-engines", "all")
    stored = stored_ranges("first")
    names = [name for name in stored["tensors"] if name != "logits"]
    half = Ranges("x", {name: TensorRange(0, stored["tensors"][name][1] / 2) for name in names}, {}, 0)
    cache = here / "half.cache"
    cache.write_text(write(half) + "elsewhere: 3c010a14\n")

    said = invoke("search", *files, "--study", "second", "--calibration-cache", cache)
    assert said.exit_code == 0, said.output
    assert "the calibration cache lacks 1 tensor (logits) of the model" in said.output
    assert "the calibration cache has 1 tensor (elsewhere) that the model does not have" in said.output
    taken = stored_ranges("second")
    assert taken["method"] == "calibration-cache"
    assert taken["tensors"]["logits"] == stored["tensors"]["logits"]
    for name in names:
        low, high = taken["tensors"][name]
        assert high == -low == pytest.approx(stored["tensors"][name][1] / 2, rel=1e-6)
    assert digests("first").isdisjoint(digests("second"))

    cache.unlink()
    assert "3 evaluations are done" in ok("resume", "second", "--trials", 3)
    write_changed = write(Ranges("x", {name: TensorRange(0, 1) for name in names}, {}, 0))
    cache.write_text(write_changed)
    ok("search", *files, "--study", "third", "--calibration-cache", cache)
    assert stored_ranges("third")["tensors"] != taken["tensors"]


def test_an_unreadable_cache_is_refused_before_anything_is_made(here: Path) -> None:
    write_inputs(here / "in")
    (here / "bad.cache").write_text("not a cache\n")
    before = sorted(here.iterdir())
    refused = invoke("search", "in/model.onnx", "--data", "in/data.npz", "--calibration-cache", "bad.cache")
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 2  # what is being checked, and the one message
    assert "--calibration-cache bad.cache: line 1" in refused.stderr
    assert sorted(here.iterdir()) == before


def stored_ranges(study: str) -> dict[str, Any]:
    digest = column(f"select ranges_digest from bf_study_target t join bf_study s on s.id = t.study_id "
                    f"where s.name = '{study}'").pop()  # fmt: skip
    found: dict[str, Any] = json.loads((Path(f"{DATABASE}.artifacts") / digest).read_bytes())
    return found


def digests(study: str) -> set[str]:
    return column(
        "select e.digest from bf_evaluation e join bf_study_target t on t.id = e.study_target_id "
        f"join bf_study s on s.id = t.study_id where s.name = '{study}'"
    )


def column(query: str) -> set[str]:
    import sqlite3

    connection = sqlite3.connect(DATABASE)
    try:
        return {row[0] for row in connection.execute(query)}
    finally:
        connection.close()
