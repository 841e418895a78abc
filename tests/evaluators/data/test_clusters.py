"""Samples that belong together: read, checked, never divided, and scored as one unit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluators.data import Splits, split
from evaluators.data.opening import open_data
from evaluators.process.score_order import order_scores
from search.errors import DataError
from search.graph.model import TensorSpec, load
from tests.support.paths import DIGITS

IMAGE = (TensorSpec("image", "float32", (4, 2)),)
READ = "import numpy as np\n\n\ndef read(path):\n    return np.zeros(2, np.float32)\n"


def pixels(count: int) -> NDArray[np.float32]:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def save(path: Path, count: int, clusters: Any, **more: Any) -> str:
    np.savez(path, image=pixels(count), clusters=clusters, **more)
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh current folder; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def image_folder(folder: Path, lines: list[str], names: tuple[str, ...] = ("a/1.png", "a/2.png", "b/1.png")) -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "clusters.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder.parent / "mine.py").write_text(READ)
    return str(folder)


class TestReading:
    @pytest.mark.parametrize("ids", [[7, 7, 3, 3], ["x", "x", "long name", "y"]])
    def test_an_array_beside_the_labels(self, tmp_path: Path, ids: list[Any]) -> None:
        opened = open_data(save(tmp_path / "d.npz", 4, np.array(ids), labels=np.arange(4)), IMAGE)
        assert opened.clusters is not None
        assert opened.clusters.tolist() == ids
        rows, labels = opened.batch(np.array([2, 0]))
        assert rows.keys() == {"image"}
        assert labels is not None
        assert labels.tolist() == [2, 0]

    def test_data_need_none(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", image=pixels(3))
        assert open_data(str(tmp_path / "d.npz"), IMAGE).clusters is None

    def test_an_input_may_be_called_clusters(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", clusters=pixels(3))
        opened = open_data(str(tmp_path / "d.npz"), [TensorSpec("clusters", "float32", (1, 2))])
        assert opened.clusters is None
        assert opened.batch(np.array([1]))[0]["clusters"].shape == (1, 2)

    def test_parts_are_joined_and_count_alike_wherever_they_are_cut(self, tmp_path: Path) -> None:
        (tmp_path / "parts").mkdir()
        ids = ["a", "bb", "bb", "a long one"]
        whole = open_data(save(tmp_path / "d.npz", 4, np.array(ids)), IMAGE)
        for number, (start, stop) in enumerate([(0, 1), (1, 4)]):
            part = np.array(ids[start:stop])
            np.savez(tmp_path / "parts" / f"{number}.npz", image=pixels(4)[start:stop], clusters=part)
        parts = open_data(str(tmp_path / "parts"), IMAGE)
        assert parts.clusters is not None
        assert parts.clusters.tolist() == ids
        assert parts.digest == whole.digest
        np.testing.assert_array_equal(parts.batch(np.array([3, 0]))[0]["image"], pixels(4)[[3, 0]])

    def test_the_digest_covers_them(self, tmp_path: Path) -> None:
        digests = {
            open_data(save(tmp_path / "d.npz", 4, np.array(ids)), IMAGE).digest
            for ids in ([0, 0, 1, 1], [0, 0, 1, 2], ["0", "0", "1", "1"])
        }
        np.savez(tmp_path / "d.npz", image=pixels(4))
        assert len(digests | {open_data(str(tmp_path / "d.npz"), IMAGE).digest}) == 4

    def test_a_function_may_return_them(self, here: Path) -> None:
        (here / "mine.py").write_text(
            "import numpy as np\n\n\ndef load():\n"
            "    for n in range(2):\n"
            "        yield {'image': np.zeros((2, 2), np.float32), 'clusters': ['v%d' % n, 'w']}\n"
        )
        opened = open_data("mine:load", IMAGE)
        assert opened.clusters is not None
        assert opened.clusters.tolist() == ["v0", "w", "v1", "w"]

    def test_an_image_folder_has_a_file(self, here: Path) -> None:
        source = image_folder(here / "photos", ["file,cluster", "b/1.png,12", "a/1.png,7", "a/2.png,7"])
        opened = open_data(source, IMAGE, preprocess="mine:read")
        assert opened.clusters is not None
        assert opened.clusters.tolist() == [7, 7, 12]
        digest = opened.digest
        image_folder(here / "photos", ["file,cluster", "b/1.png,x", "a/1.png,7", "a/2.png,7"])
        renamed = open_data(source, IMAGE, preprocess="mine:read")
        assert renamed.clusters is not None
        assert renamed.clusters.tolist() == ["7", "7", "x"]
        assert renamed.digest != digest


class TestRefusals:
    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([0, 1, 2], r"lengths differ: image 4, clusters 3"),
            ([[0], [1], [2], [3]], r"'clusters' has to be of shape \(samples,\), got \(4, 1\)"),
            ([0.0, 1.0, float("nan"), 2.0], r"'clusters' holds NaN, first in row 2"),
            ([0.5, 1.0, 2.0, 3.0], r"integers .* or texts, got float64"),
            ([True, False, True, False], r"integers .* or texts, got bool"),
            (np.array([0, 1, 2, 2**64 - 1], np.uint64), r"integers .* or texts, got uint64"),
            (3, r"'clusters' has to be of shape \(samples,\), got \(\)"),
        ],
    )
    def test_arrays(self, tmp_path: Path, ids: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            open_data(save(tmp_path / "d.npz", 4, np.array(ids)), IMAGE)

    def test_integers_in_one_part_and_texts_in_another(self, tmp_path: Path) -> None:
        save(tmp_path / "0.npz", 2, np.array([0, 1]))
        save(tmp_path / "1.npz", 2, np.array(["0", "1"]))
        with pytest.raises(DataError, match=r"1\.npz: 'clusters' has texts, the parts before it have integers"):
            open_data(str(tmp_path), IMAGE)

    def test_a_part_without_them(self, tmp_path: Path) -> None:
        save(tmp_path / "0.npz", 2, np.array([0, 1]))
        np.savez(tmp_path / "1.npz", image=pixels(2))
        with pytest.raises(DataError, match=r"1\.npz has arrays \['image'\]"):
            open_data(str(tmp_path), IMAGE)

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (["a/1.png,1", "a/2.png,1", "b/1.png,2"], r"expected the first line 'file,cluster', got 'a/1\.png,1'"),
            (["file,cluster", "a/1.png,1"], r"has no line for the image 'a/2\.png' \(and 1 more\)"),
            (["file,cluster", "a/1.png,1", "a/2.png,1", "b/1.png,2", "c.png,2"], r"names 'c\.png', which is no image"),
            (["file,cluster", "a/1.png,1", "a/2.png,", "b/1.png,2"], r"row 3: expected a file and its cluster"),
            (["file,cluster", "a/1.png,1", "a/1.png,2", "b/1.png,2"], r"row 3: 'a/1\.png' is named twice"),
        ],
    )
    def test_files_of_image_folders(self, here: Path, lines: list[str], message: str) -> None:
        with pytest.raises(DataError, match=message):
            open_data(image_folder(here / "photos", lines), IMAGE, preprocess="mine:read")

    def test_a_file_beside_arrays_is_not_passed_over(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "0.npz", image=pixels(2))
        (tmp_path / "clusters.csv").write_text("file,cluster\n0.npz,1\n")
        with pytest.raises(DataError, match=r"clusters\.csv, which is for image folders"):
            open_data(str(tmp_path), IMAGE)

    def test_what_a_preprocess_function_gives_is_not_passed_over(self, here: Path) -> None:
        image_folder(here / "photos", ["file,cluster", "a/1.png,1", "a/2.png,1", "b/1.png,2"])
        (here / "mine.py").write_text(
            "import numpy as np\n\n\ndef read(path):\n    return {'image': np.zeros(2, np.float32), 'clusters': 3}\n"
        )
        with pytest.raises(DataError, match=r"of images they stand in a file clusters\.csv"):
            open_data(str(here / "photos"), IMAGE, preprocess="mine:read")


DIGESTS = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
# Of each cluster its size; none above a third of all, which fits into every part but a small one.
SIZES = st.lists(st.integers(1, 40), min_size=8, max_size=60).filter(lambda sizes: 3 * max(sizes) <= sum(sizes))


def shuffled(sizes: list[int], seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def cluster_sets(splits: Splits, ids: NDArray[Any]) -> list[set[Any]]:
    return [set(ids[part].tolist()) for part in (splits.calibration, splits.search, splits.final)]


class TestSplits:
    @given(DIGESTS, SIZES, st.integers(0, 2**32 - 1))
    def test_no_cluster_is_ever_divided(self, digest: str, sizes: list[int], seed: int) -> None:
        ids = shuffled(sizes)
        splits = split(digest, len(ids), seed=seed, clusters=ids)
        calibration, search, final = cluster_sets(splits, ids)
        assert not calibration & search
        assert not calibration & final
        assert not search & final
        everything = np.concatenate([splits.calibration, splits.search, splits.final])
        np.testing.assert_array_equal(np.sort(everything), np.arange(len(ids)))
        assert len(calibration) >= 1
        assert len(search) >= 2
        assert len(final) >= 2

    @given(DIGESTS, SIZES, st.integers(0, 1000))
    def test_shares_come_as_near_as_one_cluster(self, digest: str, sizes: list[int], seed: int) -> None:
        ids = shuffled(sizes)
        n, splits = len(ids), split(digest, len(ids), seed=seed, clusters=ids)
        assert abs(len(splits.calibration) - 0.2 * n) <= max(sizes) + 1
        assert abs(len(splits.search) - 0.5 * n) <= max(sizes) + 1
        assert abs(len(splits.final) - 0.3 * n) <= max(sizes) + 1

    @given(DIGESTS, st.integers(20, 300))
    def test_clusters_of_one_sample_give_the_shares_of_none(self, digest: str, samples: int) -> None:
        plain = split(digest, samples)
        splits = split(digest, samples, clusters=np.arange(samples))
        for name in ("calibration", "search", "final"):
            assert len(getattr(splits, name)) == len(getattr(plain, name))

    @settings(max_examples=30)
    @given(DIGESTS, SIZES)
    def test_parts_given_apart_get_nothing(self, digest: str, sizes: list[int]) -> None:
        ids = shuffled(sizes)
        splits = split(digest, len(ids), clusters=ids, final_apart=True)
        assert not len(splits.final)
        assert len(splits.calibration) + len(splits.search) == len(ids)
        alone = split(digest, len(ids), clusters=ids, final_apart=True, calibration_apart=True)
        assert len(alone.search) == len(ids)

    def test_the_seed_is_part_of_the_rule(self) -> None:
        digest, ids = "ab" * 32, shuffled([6] * 100)
        for clusters in (None, ids):
            first, again, other = (split(digest, 600, seed=seed, clusters=clusters) for seed in (1, 1, 2))
            np.testing.assert_array_equal(first.final, again.final)
            assert first.final.tolist() != other.final.tolist()
            assert first.final.tolist() != split(digest, 600, clusters=clusters).final.tolist()

    def test_seed_0_without_clusters_is_the_rule_that_there_always_was(self) -> None:
        splits = split("0123456789abcdef" * 4, 10)
        order = np.random.RandomState(np.frombuffer(bytes.fromhex("0123456789abcdef" * 4), "<u4")).permutation(10)
        assert splits.calibration.tolist() == sorted(order[:2])
        assert splits.final.tolist() == sorted(order[7:])

    def test_of_large_clusters_512_samples_calibrate(self) -> None:
        ids = np.repeat(np.arange(10), 1000)
        splits = split("ab" * 32, len(ids), clusters=ids)
        assert len(splits.calibration) == 512
        assert len(cluster_sets(splits, ids)[0]) == 1
        assert not cluster_sets(splits, ids)[0] & (cluster_sets(splits, ids)[1] | cluster_sets(splits, ids)[2])

    def test_a_cluster_that_is_too_large_is_named_with_the_limit(self) -> None:
        ids = np.array(["big"] * 61 + [f"s{n}" for n in range(39)])
        with pytest.raises(DataError, match=r"cluster 'big' has 61 of 100 samples.*takes 50"):
            split("ab" * 32, 100, clusters=ids)

    def test_too_few_clusters(self) -> None:
        with pytest.raises(DataError, match=r"at least 5 clusters are needed.*the data have 4"):
            split("ab" * 32, 100, clusters=np.arange(100) % 4)


class Numbers:
    """A dataset of which only the clusters matter."""

    digest, has_labels, forms = "ab" * 32, False, None

    def __init__(self, clusters: NDArray[Any] | None) -> None:
        self.clusters = clusters

    def __len__(self) -> int:
        return 0 if self.clusters is None else len(self.clusters)

    def batch(self, indices: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], None]:
        return {"x": indices}, None

    def labels(self, indices: NDArray[np.int64]) -> None:
        return None


class TestScoreOrder:
    def test_a_metric_of_samples_keeps_the_order(self) -> None:
        indices = np.array([5, 0, 3])
        order = order_scores(Numbers(np.array(list("aabbcc"))), indices, 4, accumulating=False)
        assert order.indices is indices
        assert order.clusters is not None
        assert order.clusters.tolist() == [2, 0, 1]

    def test_without_clusters_nothing_changes(self) -> None:
        order = order_scores(Numbers(None), np.array([2, 1, 0]), 2, accumulating=True)
        assert order.clusters is None
        assert [batch.count for batch in order.batches(2)] == [2, 1]

    @given(st.lists(st.integers(1, 12), min_size=2, max_size=20), st.integers(1, 9), st.integers(0, 100))
    def test_batches_of_an_accumulating_metric_divide_no_cluster(self, sizes: list[int], batch: int, seed: int) -> None:
        ids = shuffled(sizes, seed)
        indices = np.random.default_rng(seed).permutation(len(ids))
        order = order_scores(Numbers(ids), indices, batch, accumulating=True)
        assert order.clusters is not None
        assert sorted(order.indices.tolist()) == list(range(len(ids)))
        seen: dict[int, set[int]] = {}
        start = 0
        for block, made in zip(order.clusters.tolist(), order.batches(batch), strict=True):
            assert len(made.inputs["x"]) == batch
            here = made.inputs["x"][: made.count]
            np.testing.assert_array_equal(here, order.indices[start : start + made.count])
            start += made.count
            seen.setdefault(block, set()).update(ids[here].tolist())
        assert start == len(ids)
        assert sum(map(len, seen.values())) == len(sizes), "no cluster is in two blocks"


def test_scenes_of_digits_belong_to_the_originals_they_were_made_of() -> None:
    opened = open_data(str(DIGITS / "digits.npz"), load(DIGITS / "digits.onnx", batch=16).inputs)
    assert opened.clusters is not None
    labels = opened.labels(np.arange(len(opened)))
    assert labels is not None
    known, first, counts = np.unique(opened.clusters, return_index=True, return_counts=True)
    assert len(known) == 797
    assert set(counts.tolist()) == {6, 7}
    np.testing.assert_array_equal(labels, labels[first][opened.clusters])
