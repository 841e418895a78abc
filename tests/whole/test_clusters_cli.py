"""Clusters and the seed of the splits from the command line: a whole study, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitfront import verbs
from evaluators.measure.intervals import paired_interval
from studies.store.store import Store
from tests.support.command_line import DATABASE, invoke, ok, tree, write_inputs

pytestmark = pytest.mark.slow

SAMPLES = 120


def write_clustered(folder: Path, clusters: Any, samples: int = SAMPLES) -> None:
    """`model.onnx`, and `data.npz` with clusters; None for data without."""
    write_inputs(folder, samples=samples)
    with np.load(folder / "data.npz") as stored:
        arrays = dict(stored)
    if clusters is not None:
        np.savez(folder / "data.npz", **arrays, clusters=clusters)


def search(folder: Path, *more: Any) -> tuple[Any, ...]:
    return ("search", folder / "model.onnx", "--data", folder / "data.npz", "--trials", 3, "--quiet",
            "--sensitivity-time", "1s", *more)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def scores_of(storage: str) -> tuple[NDArray[np.float64], NDArray[np.float64], Mapping[str, Any]]:
    """FP32's scores and those of the uniform INT8 assignment on the search split, and the latter's numbers."""
    fp32, int8 = (verbs.show("model", trial, storage=storage).record for trial in (0, 1))
    assert (fp32.role, int8.role) == ("baseline:fp32", "baseline:int8")
    assert fp32.evaluation.accuracy is not None
    assert int8.evaluation.accuracy is not None
    return fp32.evaluation.accuracy.scores, int8.evaluation.accuracy.scores, vars(int8.evaluation.accuracy)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study on 30 clusters of four samples; not to be written to."""
    folder = tmp_path_factory.mktemp("clustered")
    write_clustered(folder, np.arange(SAMPLES) // 4)
    ok(*search(folder, "--storage", f"sqlite:///{folder / DATABASE}"))
    return folder


def test_intervals_can_be_computed_again_from_what_is_stored(clustered: Path) -> None:
    with Store.open(f"sqlite:///{clustered / DATABASE}", write=False) as store:
        study = store.studies.load("model")
        codes = store.studies.score_clusters(study.id)["search"]
    fp32, int8, told = scores_of(f"sqlite:///{clustered / DATABASE}")
    assert len(codes) == len(fp32) == len(int8) == study.data["search"]
    assert len(set(codes.tolist())) == study.data["clusters"]["search"]
    assert not np.array_equal(np.sort(codes), codes), "the scores are in shuffled order, and so are the codes"
    expected = paired_interval(fp32 - int8, ratio=True, clusters=codes)
    assert (told["loss_low"], told["loss_high"]) == pytest.approx(expected)
    assert paired_interval(fp32 - int8, ratio=True) != pytest.approx(expected)


def test_numbers_of_clusters_are_told(clustered: Path) -> None:
    storage = ("--storage", f"sqlite:///{clustered / DATABASE}")
    shown = json.loads(ok("show", "model", 0, "--json", *storage))
    assert shown["accuracy"]["clusters"] == 15
    assert shown["accuracy"]["total"] == 60
    assert "on 60 of 60 samples (15 clusters)" in ok("show", "model", 0, *storage)
    assert json.loads(ok("status", "model", "--json", *storage))["clusters"] == {
        "calibration": 6, "search": 15, "final": 9,
    }  # fmt: skip
    ok("report", "model", "--out", clustered / "report.html", *storage)
    page = (clustered / "report.html").read_text(encoding="utf-8")
    assert "24 calibrate (6 clusters), 60 to search on (15 clusters), 36 final (9 clusters)" in page


def test_data_without_clusters_have_none_to_tell(here: Path, tmp_path: Path) -> None:
    write_clustered(tmp_path, None, samples=20)
    ok(*search(tmp_path))
    shown = json.loads(ok("show", "model", 0, "--json"))
    assert shown["accuracy"]["clusters"] is None
    assert "cluster" not in ok("show", "model", 0)
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        assert store.studies.score_clusters(store.studies.load("model").id) == {}


def test_a_metric_that_accumulates_is_resampled_by_blocks(here: Path, tmp_path: Path) -> None:
    (here / "mine.py").write_text(
        "class Share:\n"
        "    ratio = True\n\n"
        "    def __init__(self):\n"
        "        self.right, self.seen = 0, 0\n\n"
        "    def update(self, outputs, labels):\n"
        "        found = outputs['logits'].argmax(axis=1)\n"
        "        self.right += int((found == labels).sum())\n"
        "        self.seen += len(labels)\n\n"
        "    def compute(self):\n"
        "        return self.right / self.seen\n"
    )
    write_clustered(tmp_path, np.arange(SAMPLES) // 6)
    ok(*search(tmp_path, "--metric", "mine:Share"))
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        codes = store.studies.score_clusters(store.studies.load("model").id)["search"]
    fp32, _, told = scores_of(f"sqlite:///{DATABASE}")
    # A batch has 4 rows, so a cluster of 6 takes a full one and one of 2.
    assert codes.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert len(fp32) == 20
    assert told["samples"] == 60


BAD = {
    "length": (np.arange(SAMPLES - 1) // 4, r"lengths differ"),
    "rank": (np.zeros((SAMPLES, 1), np.int64), r"shape (samples,)"),
    "nan": (np.where(np.arange(SAMPLES) == 5, np.nan, 1.0), r"holds NaN, first in row 5"),
    "float": (np.arange(SAMPLES) / 4, r"integers"),
    "one": (np.full(SAMPLES, 3), r"all 120 samples are of one cluster (3)"),
    "large": (np.maximum(np.arange(SAMPLES) - 60, 0), r"cluster 0 has 61 of 120 samples"),
    "few": (np.arange(SAMPLES) % 3, r"at least 5 clusters are needed"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_clusters_are_refused_before_anything_is_made(here: Path, tmp_path: Path, bad: str) -> None:
    clusters, message = BAD[bad]
    write_clustered(tmp_path, clusters)
    result = invoke(*search(tmp_path))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert result.stderr.count("error:") == 1
    assert tree(here) == {}


@pytest.mark.parametrize("option", ["--final-data", "--calibration-data"])
def test_no_cluster_may_be_in_two_data_sets(here: Path, tmp_path: Path, option: str) -> None:
    write_clustered(tmp_path, np.arange(SAMPLES) // 4)
    write_clustered(tmp_path / "other", np.array([f"{n}" for n in np.arange(40) // 4 + 29]), samples=40)
    result = invoke(*search(tmp_path, option, tmp_path / "other/data.npz"))
    assert result.exit_code == 2, result.output
    told = " ".join(result.stderr.split())
    assert f"--data and {option} both have samples of cluster '29'" in told
    assert tree(here) == {}
    write_clustered(tmp_path / "other", np.arange(40) // 4 + 30, samples=40)
    ok(*search(tmp_path, option, tmp_path / "other/data.npz"))


def test_final_data_of_one_cluster_are_refused(here: Path, tmp_path: Path) -> None:
    write_clustered(tmp_path, np.arange(SAMPLES) // 4)
    write_clustered(tmp_path / "other", np.full(40, 99), samples=40)
    result = invoke(*search(tmp_path, "--final-data", tmp_path / "other/data.npz"))
    assert result.exit_code == 2
    assert "all 40 samples are of one cluster (99)" in " ".join(result.stderr.split())


class TestSplitSeed:
    def test_another_seed_scores_other_samples(self, here: Path, tmp_path: Path) -> None:
        write_clustered(tmp_path, np.arange(SAMPLES) // 4)
        data = {}
        for seed in (None, 0, 1):
            given = () if seed is None else ("--split-seed", seed)
            ok(*search(tmp_path, "--study", f"s{seed}", *given))
            with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
                study = store.studies.load(f"s{seed}")
                assert study.config["split_seed"] == (seed or 0)
                data[seed] = store.studies.score_clusters(study.id)["search"].tolist()
        assert data[None] == data[0]
        assert data[0] != data[1]

    def test_it_is_read_from_a_file_too(self, here: Path, tmp_path: Path) -> None:
        write_clustered(tmp_path, None, samples=20)
        (here / "study.toml").write_text("split-seed = 7\n")
        ok(*search(tmp_path, "--config", here / "study.toml"))
        with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
            assert store.studies.load("model").config["split_seed"] == 7

    @pytest.mark.parametrize("value", ["-1", "x", "4294967296"])
    def test_what_is_no_seed_is_refused(self, here: Path, tmp_path: Path, value: str) -> None:
        write_clustered(tmp_path, None, samples=20)
        result = invoke(*search(tmp_path, "--split-seed", value))
        assert result.exit_code == 2
        assert "--split-seed" in result.stderr
        assert tree(here) == {}

    def test_resume_keeps_it_and_refuses_another(self, here: Path, tmp_path: Path) -> None:
        write_clustered(tmp_path, None, samples=20)
        ok(*search(tmp_path, "--split-seed", 5))
        result = invoke("resume", "model", "--trials", 5, "--split-seed", 6)
        assert result.exit_code == 2
        assert "--split-seed 6: expected 5" in " ".join(result.stderr.split())
        ok("resume", "model", "--trials", 4, "--split-seed", 5, "--quiet")
        ok("resume", "model", "--trials", 5, "--quiet")
        with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
            assert store.studies.load("model").config["split_seed"] == 5
