"""`bitfront drift`: the same kind of data raises no alarm, brightness does, too little is not judged; bad input."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitfront import verbs
from evaluators.calibration.activations import collect
from evaluators.calibration.observe_samples import (
    FEWEST_SAMPLES,
    MOST_SAMPLES,
    choose_independent,
    observe_samples,
)
from evaluators.calibration.sample_runs import SampleRuns, Steps
from evaluators.calibration.sample_statistics import read_statistics, statistics_bytes
from evaluators.data.opening import open_data
from search.errors import ArtifactError
from search.graph.model import load
from tests.support.command_line import DATABASE, invoke, ok, three_layers, tree, write_inputs
from tests.support.networks import save

pytestmark = pytest.mark.slow

SAMPLES = 600


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study and fresh data: of the same kind, twice as bright, of few samples, without labels."""
    folder = tmp_path_factory.mktemp("drift")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, samples=2 * SAMPLES)
        both = np.load("data.npz")
        images, labels = both["image"], both["labels"]
        np.savez("data.npz", image=images[:SAMPLES], labels=labels[:SAMPLES])
        fresh, known = images[SAMPLES:], labels[SAMPLES:]
        np.savez("same.npz", image=fresh, labels=known)
        np.savez("bright.npz", image=2 * fresh, labels=known)
        np.savez("few.npz", image=fresh[:5], labels=known[:5])
        np.savez("unlabelled.npz", image=fresh)
        np.savez("frames.npz", image=fresh, labels=known, clusters=np.arange(SAMPLES) // 100)
        (folder / "broken.npz").write_bytes(b"PK broken")
        np.savez("narrow.npz", image=np.zeros((4, 3, 8, 4), np.float32), labels=np.zeros(4, np.int64))
        save(three_layers(seed=3), folder / "other.onnx")
        ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 3, "--quiet")
    return folder


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched)
    return searched


@pytest.fixture
def copied(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change."""
    monkeypatch.chdir(shutil.copytree(searched, tmp_path / "copy"))
    return tmp_path / "copy"


def drift(data: str, *more: Any, code: int) -> Any:
    found = invoke("drift", "s", "--data", data, "--json", *more)
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


def test_the_same_kind_of_data_raises_no_alarm(here: Path) -> None:
    before = tree(here)
    found = drift("same.npz", code=0)
    assert found["verdict"] == "no drift"
    assert found["samples"] == {"before": 120, "now": MOST_SAMPLES}
    assert found["loss"]["samples"] == SAMPLES
    assert not any(shift["drifted"] for shift in found["shifts"])
    assert {shift["tensor"] for shift in found["shifts"]} >= {"image", "logits"}
    assert tree(here) == before


def test_brightness_twice_as_large_is_drift(here: Path) -> None:
    found = drift("bright.npz", code=1)
    assert found["verdict"] == "drift"
    image = {shift["statistic"]: shift for shift in found["shifts"] if shift["tensor"] == "image"}
    assert image["high"]["drifted"]
    assert image["high"]["now"] == pytest.approx(2 * image["high"]["before"], rel=0.3)
    assert image["clipped"]["now"] > 0.01 > image["clipped"]["before"]


def test_what_is_printed_names_tensors_and_says_how_sure_it_is(here: Path) -> None:
    found = invoke("drift", "s", "--data", "bright.npz")
    assert found.exit_code == 1
    assert found.stdout.splitlines()[0].split()[:2] == ["tensor", "statistic"]
    assert "tensors differ beyond chance (256 fresh samples against 120 calibration samples" in found.stdout
    assert "with a chance of at most 0.1% for any false alarm" in found.stdout
    assert "on the study's final split" in found.stdout


def test_few_samples_are_not_judged(here: Path) -> None:
    assert drift("few.npz", code=3)["verdict"] == "not judged"


def test_data_without_labels_are_compared_all_the_same(here: Path) -> None:
    found = drift("unlabelled.npz", code=0)
    assert found["loss"] is None
    assert "top1 needs labels, and the fresh data have none" in found["notes"][0]


def test_of_a_slow_model_a_few_samples_are_looked_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(Path("model.onnx"), batch=4)
    data = open_data("same.npz", model.inputs)
    chosen = choose_independent(data, np.arange(SAMPLES))
    assert sorted(chosen) != list(chosen), "data are often sorted"
    run = SampleRuns(model, data, chosen, 1, Steps(None, 64))
    monkeypatch.setattr("evaluators.calibration.observe_samples._MOST_S", -1.0)
    ranges = collect(model, data, chosen, "minmax")
    assert observe_samples(run, ranges).samples == FEWEST_SAMPLES


def test_of_each_cluster_one_sample_counts(here: Path) -> None:
    found = drift("frames.npz", code=3)
    assert found["samples"]["now"] == 6
    assert found["clusters"]


def test_an_engine_that_was_not_kept_is_built_again(copied: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        for (digest,) in connection.execute("select digest from bf_artifact where kind = 'engine'").fetchall():
            (Path(f"{DATABASE}.artifacts") / digest).unlink(missing_ok=True)
    found = drift("same.npz", code=0)
    assert "was not kept and was built again" in found["notes"][0]
    assert found["loss"]["samples"] == SAMPLES


def test_the_function_of_the_verb_gives_the_same(here: Path) -> None:
    found = verbs.drift("s", "bright.npz")
    assert found.verdict.value == "drift"
    assert found.rows()[0].drifted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s"], "Add --data DATA"),
        (["s", "--data", "nowhere.npz"], "nowhere.npz"),
        (["s", "--data", "broken.npz"], "not a readable .npz archive"),
        (["s", "--data", "narrow.npz"], "has to be of shape"),
        (["no-such-study", "--data", "same.npz"], "There is no study 'no-such-study'"),
        (["s", "--data", "same.npz", "--model", "other.onnx"], "has other content than that of the study"),
        (["s", "--data", "same.npz", "--target", "7"], "7"),
    ],
)
def test_bad_input_is_refused_in_one_message(here: Path, words: list[str], said: str) -> None:
    found = invoke("drift", *words)
    assert found.exit_code == 2, found.output
    assert found.stderr.count("error:") == 1
    assert said in found.stderr


def test_statistics_that_are_gone_or_damaged_are_told(copied: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        ((digest,),) = connection.execute("select statistics_digest from bf_study_target").fetchall()
    (Path(f"{DATABASE}.artifacts") / digest).write_bytes(b"damaged")
    found = invoke("drift", "s", "--data", "same.npz")
    assert found.exit_code == 1
    assert found.stderr.count("error:") == 1
    with pytest.raises(ArtifactError, match="statistics of the calibration samples"):
        read_statistics(b"damaged")


def test_stored_statistics_are_those_of_the_calibration_samples(here: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        query = "select statistics_digest, ranges_digest from bf_study_target"
        (digests,) = connection.execute(query).fetchall()
    data, ranges = ((Path(f"{DATABASE}.artifacts") / digest).read_bytes() for digest in digests)
    found = read_statistics(data)
    assert statistics_bytes(found) == data
    images = np.load("data.npz")["image"].reshape(SAMPLES, -1)
    at = found.tensors.index("image")
    least, largest, _, clipped = found.values[at]
    assert np.isin(largest, images.max(axis=1)).all()
    assert np.isin(least, images.min(axis=1)).all()
    assert found.histograms[at].sum() == 120 * images.shape[1]
    # Calibration stops when more samples hardly change the ranges; the statistics are of all that it may read.
    low, high = found.ranges[at]
    inside = (least >= np.float32(low)) & (largest <= np.float32(high))
    assert 64 <= json.loads(ranges)["samples"] <= inside.sum()
    assert (largest[inside].max(), least[inside].min()) == pytest.approx((high, low), rel=1e-6)
    assert np.array_equal(clipped == 0, inside)


def test_deleting_the_study_removes_its_statistics(copied: Path) -> None:
    ok("delete", "s", "--yes")
    assert [
        path for path in Path(f"{DATABASE}.artifacts").rglob("*") if path.is_file() and path.suffix != ".lock"
    ] == []
