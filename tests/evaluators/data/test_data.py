from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluators.data import arrays, batches, split
from evaluators.data.opening import open_data
from evaluators.data.reading import stored_arrays
from evaluators.data.reading.stored_arrays import file_name
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import absolute_reference, import_function

IMAGE = (TensorSpec("image", "float32", (4, 2, 3)),)
PAIR = (TensorSpec("ids", "int64", (1, 5)), TensorSpec("mask", "float32", (1, 5)))
DIGEST = "0123456789abcdef" * 4


def images(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 2, 3)).astype(np.float32)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh current folder; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write_module(folder: Path, name: str, body: str) -> None:
    (folder / f"{name}.py").write_text("import numpy as np\n" + body)


def image_folder(folder: Path, names: list[str]) -> str:
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes([index] * 6))
    return str(folder)


READ_BYTES = "def read(path):\n    return np.frombuffer(path.read_bytes(), np.uint8).astype(np.float32).reshape(2, 3)\n"


class TestNpz:
    def test_rows_come_in_the_order_asked_for(self, tmp_path: Path) -> None:
        x, labels = images(6), np.arange(6) * 10
        opened = open_data(save(tmp_path / "d.npz", image=x, labels=labels), IMAGE, labels_required=True)
        assert len(opened) == 6
        assert opened.has_labels
        rows, got = opened.batch(np.array([4, 0, 4]))
        np.testing.assert_array_equal(rows["image"], x[[4, 0, 4]])
        assert got is not None
        assert got.tolist() == [40, 0, 40]

    def test_labels_are_optional_and_of_any_shape(self, tmp_path: Path) -> None:
        assert not open_data(save(tmp_path / "a.npz", image=images(2)), IMAGE).has_labels
        opened = open_data(save(tmp_path / "b.npz", image=images(3), labels=np.ones((3, 8, 8), np.uint8)), IMAGE)
        labels = opened.batch(np.array([1]))[1]
        assert labels is not None
        assert labels.shape == (1, 8, 8)

    def test_an_input_may_be_called_labels(self, tmp_path: Path) -> None:
        opened = open_data(
            save(tmp_path / "d.npz", labels=np.ones((2, 1), np.int64)), [TensorSpec("labels", "int64", (1, 1))]
        )
        assert not opened.has_labels
        assert opened.batch(np.array([0]))[0]["labels"].shape == (1, 1)

    def test_several_inputs(self, tmp_path: Path) -> None:
        source = save(tmp_path / "d.npz", ids=np.ones((3, 5), np.int64), mask=np.ones((3, 5), np.float32))
        rows, labels = open_data(source, PAIR).batch(np.array([2]))
        assert {name: (array.dtype.name, array.shape) for name, array in rows.items()} == {
            "ids": ("int64", (1, 5)),
            "mask": ("float32", (1, 5)),
        }
        assert labels is None

    def test_foreign_byte_order_is_read(self, tmp_path: Path) -> None:
        source = save(tmp_path / "d.npz", image=images(2).astype(">f4"))
        rows, _ = open_data(source, IMAGE).batch(np.array([0, 1]))
        assert rows["image"].dtype == np.float32
        np.testing.assert_array_equal(rows["image"], images(2))


class TestNpy:
    def test_one_file_holds_the_only_input(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", images(5))
        opened = open_data(str(tmp_path / "x.npy"), IMAGE)
        assert opened.digest == open_data(save(tmp_path / "d.npz", image=images(5)), IMAGE).digest
        with pytest.raises(DataError, match=r"ids, mask, and a \.npy file holds one\. Give an \.npz"):
            open_data(str(tmp_path / "x.npy"), PAIR)

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_a_folder_has_a_file_for_each_array(
        self, tmp_path: Path, order: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Read by the row as by the whole, and as from one .npz file: content, order of bytes and of axes alike."""
        x, labels, name = images(6), np.arange(6), "in/put:0"
        (tmp_path / "arrays").mkdir()
        np.save(tmp_path / "arrays" / file_name(name), np.asarray(x, ">f4", order=order))
        np.save(tmp_path / "arrays" / "labels.npy", labels)
        spec = [TensorSpec(name, "float32", (4, 2, 3))]
        whole = open_data(save(tmp_path / "d.npz", **{name: x, "labels": labels}), spec)
        monkeypatch.setattr(arrays, "WHOLE_BYTES", 0)
        opened = open_data(str(tmp_path / "arrays"), spec)
        assert opened.digest == whole.digest
        rows, got = opened.batch(np.array([5, 0, 0]))
        np.testing.assert_array_equal(rows[name], x[[5, 0, 0]])
        assert rows[name].dtype == np.float32
        assert got is not None
        assert got.tolist() == [5, 0, 0]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda path: path.write_bytes(b"text"), "expected an array that numpy.save wrote"),
            (lambda path: path.write_bytes(path.read_bytes()[:-1]), "was not written to its end"),
            (lambda path: np.save(path, np.array([None, None])), "Python objects"),
            (lambda path: np.save(path, np.float32(1)), "a single value"),
        ],
    )
    def test_refuses_what_is_no_array(self, tmp_path: Path, change: Callable[[Path], Any], message: str) -> None:
        np.save(tmp_path / "x.npy", images(2))
        change(tmp_path / "x.npy")
        with pytest.raises(DataError, match=message):
            open_data(str(tmp_path / "x.npy"), IMAGE)


class TestByTheRow:
    @pytest.fixture(autouse=True)
    def large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(arrays, "WHOLE_BYTES", 0)

    def test_a_large_npz_is_read_where_it_lies(self, tmp_path: Path) -> None:
        x, labels = images(7), np.arange(7)
        opened = open_data(save(tmp_path / "d.npz", labels=labels, image=x), IMAGE)
        np.savez_compressed(tmp_path / "c.npz", labels=labels, image=x)
        assert open_data(str(tmp_path / "c.npz"), IMAGE).digest == opened.digest
        np.testing.assert_array_equal(opened.batch(np.array([6, 1]))[0]["image"], x[[6, 1]])
        (tmp_path / "d.npz").unlink()
        with pytest.raises(DataError, match=r"d\.npz: expected the file as it was when the run began"):
            opened.batch(np.array([0]))

    def test_a_damaged_one_is_refused(self, tmp_path: Path) -> None:
        source = Path(save(tmp_path / "d.npz", image=images(50)))
        content = bytearray(source.read_bytes())
        content[500] ^= 1
        source.write_bytes(content)
        with pytest.raises(DataError, match=r"not a readable \.npz archive.*CRC"):
            open_data(str(source), IMAGE)

    def test_a_sample_that_is_not_finite_is_named_in_any_block(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored_arrays, "BLOCK_BYTES", 2 * images(1).nbytes)
        x = images(7)
        x[5, 0, 0] = np.nan
        with pytest.raises(DataError, match="first in sample 5"):
            open_data(save(tmp_path / "d.npz", image=x), IMAGE)


class TestShards:
    def test_rows_across_shards(self, tmp_path: Path) -> None:
        x = images(10)
        for number, (start, stop) in enumerate([(0, 3), (3, 4), (4, 10)]):
            save(tmp_path / f"part{number}.npz", image=x[start:stop], labels=np.arange(start, stop))
        opened = open_data(str(tmp_path), IMAGE)
        order = np.array([9, 0, 3, 2, 4, 3])
        rows, labels = opened.batch(order)
        np.testing.assert_array_equal(rows["image"], x[order])
        assert labels is not None
        assert labels.tolist() == order.tolist()

    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_each_is_read_once_however_samples_are_drawn(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Any]
    ) -> None:
        """Though memory has room for two of six: the rest is read by the row, from files of its own if compressed."""
        monkeypatch.setattr(arrays, "CACHE_BYTES", images(2).nbytes)
        monkeypatch.setattr(arrays, "WHOLE_BYTES", images(2).nbytes)
        reads = []
        read = arrays._read_npz
        monkeypatch.setattr(arrays, "_read_npz", lambda path: (reads.append(path.name), read(path))[1])
        (tmp_path / "data").mkdir()
        x = images(12)
        for number in range(6):
            part = slice(2 * number, 2 * number + 2)
            write(tmp_path / "data" / f"{number}.npz", image=x[part], labels=np.arange(12)[part])
        opened = open_data(str(tmp_path / "data"), IMAGE, folder=tmp_path / "kept")
        for seed in range(20):
            order = np.random.default_rng(seed).permutation(12)
            rows, labels = opened.batch(order)
            np.testing.assert_array_equal(rows["image"], x[order])
            assert labels is not None
            assert labels.tolist() == order.tolist()
        assert len(reads) == 6

    def test_parts_that_were_not_kept_are_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where there is no folder for them, or no room on its disk."""
        monkeypatch.setattr(arrays, "CACHE_BYTES", images(2).nbytes)
        (tmp_path / "data").mkdir()
        for number in range(3):
            np.savez_compressed(tmp_path / "data" / f"{number}.npz", image=images(2, number))
        alone = open_data(str(tmp_path / "data"), IMAGE)
        (tmp_path / "file").touch()
        full = open_data(str(tmp_path / "data"), IMAGE, folder=tmp_path / "file" / "kept")
        np.testing.assert_array_equal(full.batch(np.array([0]))[0]["image"], images(2, 0)[:1])
        (tmp_path / "data" / "0.npz").unlink()
        assert alone.batch(np.array([4, 5]))[0]["image"].shape == (2, 2, 3)
        with pytest.raises(DataError, match=r"0\.npz.*not a readable"):
            alone.batch(np.array([0]))

    def test_parts_have_to_agree(self, tmp_path: Path) -> None:
        save(tmp_path / "a.npz", image=images(2), labels=np.arange(2))
        save(tmp_path / "b.npz", image=images(2))
        with pytest.raises(DataError, match=r"b\.npz has arrays \['image'\], the parts before it have"):
            open_data(str(tmp_path), IMAGE)

    def test_labels_of_parts_have_to_agree(self, tmp_path: Path) -> None:
        save(tmp_path / "a.npz", image=images(2), labels=np.arange(2))
        save(tmp_path / "b.npz", image=images(2), labels=np.ones(2))
        with pytest.raises(DataError, match=r"b\.npz: 'labels' has rows of"):
            open_data(str(tmp_path), IMAGE)


class TestDigest:
    def test_is_of_the_content_and_not_of_its_storage(self, here: Path) -> None:
        x = images(700)
        plain = save(here / "d.npz", image=x)
        np.savez_compressed(here / "packed.npz", image=x)
        (here / "parts").mkdir()
        save(here / "parts" / "0.npz", image=x[:333])
        save(here / "parts" / "1.npz", image=np.asfortranarray(x[333:]))
        write_module(here, "source_a", "def load():\n    yield dict(np.load('d.npz'))\n")
        sources = [plain, str(here / "packed.npz"), str(here / "parts"), "source_a:load"]
        digests = {open_data(source, IMAGE).digest for source in sources}
        assert len(digests) == 1
        assert len(digests.pop()) == 64

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: {"image": x, "labels": np.arange(4)},
            lambda x: {"image": x[::-1]},
            lambda x: {"image": x[:3]},
            lambda x: {"image": np.nextafter(x, 9, dtype=np.float32)},
        ],
    )
    def test_changes_with_the_content(self, tmp_path: Path, change: Callable[[Any], dict[str, Any]]) -> None:
        before = open_data(save(tmp_path / "a.npz", image=images(4)), IMAGE).digest
        assert open_data(save(tmp_path / "b.npz", **change(images(4))), IMAGE).digest != before

    def test_dtype_and_shape_count(self, tmp_path: Path) -> None:
        zeros = [np.zeros((4, 2), np.float32), np.zeros((4, 1, 2), np.float32), np.zeros((4, 2), np.int32)]
        digests = set()
        for index, array in enumerate(zeros):
            spec = TensorSpec("x", array.dtype.name, array.shape)
            digests.add(open_data(save(tmp_path / f"{index}.npz", x=array), [spec]).digest)
        assert len(digests) == 3


class TestImages:
    def test_sub_folders_give_labels(self, here: Path) -> None:
        write_module(here, "prep_a", READ_BYTES)
        names = ["owl/1.png", "ant/2.JPG", "owl/deep/3.webp", "bee/4.bmp"]
        source = image_folder(here / "set", names)
        (here / "set" / "cat").mkdir()
        (here / "set" / "owl" / "notes.txt").write_text("no image")
        (here / "set" / "owl" / ".hidden.png").write_text("no image")
        opened = open_data(source, IMAGE, preprocess="prep_a:read")
        rows, labels = opened.batch(np.arange(4))
        # By path: ant/2, bee/4, owl/1, owl/deep/3; the empty class cat keeps its number.
        assert labels is not None
        assert labels.tolist() == [0, 1, 3, 3]
        assert rows["image"][:, 0, 0].tolist() == [1, 3, 0, 2]
        assert rows["image"].dtype == np.float32

    def test_each_is_preprocessed_once(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though memory has room for one of them."""
        monkeypatch.setattr(arrays, "CACHE_BYTES", images(1).nbytes)
        noted = READ_BYTES.replace("def read(path):", "seen = []\n\ndef read(path):\n    seen.append(path.name)")
        write_module(here, "prep_once", noted)
        source = image_folder(here / "set", [f"{name}.png" for name in "abcde"])
        opened = open_data(source, IMAGE, preprocess="prep_once:read", folder=here / "kept")
        for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [0, 1, 2, 3, 4]):
            assert opened.batch(np.array(order))[0]["image"][:, 0, 0].tolist() == order
        assert sorted(sys.modules["prep_once"].seen) == [f"{name}.png" for name in "abcde"]

    def test_a_flat_folder_has_no_labels(self, here: Path) -> None:
        write_module(here, "prep_b", READ_BYTES)
        opened = open_data(image_folder(here / "set", ["b.png", "a.png"]), IMAGE, preprocess="prep_b:read")
        assert not opened.has_labels
        assert opened.batch(np.array([0]))[0]["image"][0, 0, 0] == 1

    def test_a_dict_for_several_inputs(self, here: Path) -> None:
        write_module(
            here, "prep_c", "def read(path):\n    return {'ids': np.arange(5), 'mask': np.ones(5, np.float32)}\n"
        )
        source = image_folder(here / "set", ["a.png", "b.png"])
        rows, _ = open_data(source, PAIR, preprocess="prep_c:read").batch(np.arange(2))
        assert rows["ids"].shape == (2, 5)

    def test_digest_is_of_paths_bytes_and_preprocessing(self, here: Path) -> None:
        write_module(here, "prep_d", READ_BYTES + "other = read\n")
        first = image_folder(here / "a", ["x/1.png", "y/2.png"])
        same = image_folder(here / "b", ["x/1.png", "y/2.png"])
        renamed = image_folder(here / "c", ["x/1.png", "y/3.png"])
        changed = image_folder(here / "d", ["y/2.png", "x/1.png"])
        digest = open_data(first, IMAGE, preprocess="prep_d:read").digest
        assert open_data(same, IMAGE, preprocess="prep_d:read").digest == digest
        others = [open_data(folder, IMAGE, preprocess="prep_d:read").digest for folder in (renamed, changed)]
        others.append(open_data(first, IMAGE, preprocess="prep_d:other").digest)
        assert digest not in others
        write_module(here, "prep_d2", READ_BYTES)
        digests = {open_data(first, IMAGE, preprocess=f"{at}prep_d2.py:read").digest for at in ("", f"{here}/", "./")}
        assert len(digests) == 1, "a study keeps the whole path"

    def test_needs_preprocess(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"holds images: --preprocess is needed.*; give a preset, imagenet"):
            open_data(image_folder(tmp_path, ["a.png", "b.png"]), IMAGE)

    def test_refuses_images_beside_classes(self, here: Path) -> None:
        write_module(here, "prep_e", READ_BYTES)
        source = image_folder(here / "set", ["a.png", "x/b.png"])
        with pytest.raises(DataError, match="both beside and inside sub-folders"):
            open_data(source, IMAGE, preprocess="prep_e:read")

    def test_refuses_images_beside_npz(self, tmp_path: Path) -> None:
        image_folder(tmp_path, ["a.png"])
        save(tmp_path / "a.npz", image=images(2))
        with pytest.raises(DataError, match="holds both"):
            open_data(str(tmp_path), IMAGE)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("return 1 / 0", r"failed on .*0\.png with ZeroDivisionError"),
            ("return 'text'", "expected an array, without the batch axis; got str"),
            ("return np.ones((2, 4), np.float32)", r"has to be of shape \(samples, 2, 3\), got \(1, 2, 4\)"),
            ("return np.ones((2, 3))", r"has to be float32, got float64.*astype\('float32'\)"),
            ("return {'image': [[1], [1, 2]]}", r"0\.png: 'image' cannot be read as an array"),
            ("return {'img': np.ones((2, 3), np.float32)}", "lacks the model's input 'image'"),
            ("return np.full((2, 3), np.nan, np.float32)", "holds NaN or Inf, first in sample 0"),
        ],
    )
    def test_refuses_what_preprocess_gives(self, here: Path, body: str, message: str) -> None:
        write_module(here, "prep_bad", f"def read(path):\n    {body}\n")
        with pytest.raises(DataError, match=message):
            open_data(image_folder(here / "set", ["0.png", "1.png"]), IMAGE, preprocess="prep_bad:read")

    def test_refuses_an_array_for_several_inputs(self, here: Path) -> None:
        write_module(here, "prep_f", READ_BYTES)
        with pytest.raises(DataError, match=r"expected a dict with \['ids', 'mask'\]"):
            open_data(image_folder(here / "set", ["0.png", "1.png"]), PAIR, preprocess="prep_f:read")

    def test_a_later_image_may_still_be_wrong(self, here: Path) -> None:
        write_module(here, "prep_g", READ_BYTES)
        opened = open_data(image_folder(here / "set", ["0.png", "1.png"]), IMAGE, preprocess="prep_g:read")
        (here / "set" / "1.png").write_bytes(b"short")
        with pytest.raises(DataError, match=r"failed on .*1\.png with ValueError"):
            opened.batch(np.array([1]))


class TestFunctions:
    @pytest.mark.parametrize(
        "body",
        [
            "return {'image': X, 'labels': np.arange(5)}",
            "return [{'image': X[:2], 'labels': np.arange(2)}, {'image': X[2:], 'labels': np.arange(2, 5)}]",
            "return ({'image': X[i:i+1], 'labels': [i]} for i in range(5))",
        ],
    )
    def test_a_dict_or_batches_of_it(self, here: Path, body: str) -> None:
        np.save(here / "x.npy", images(5))
        write_module(here, "loader_a", f"X = np.load('x.npy')\ndef load():\n    {body}\n")
        opened = open_data("loader_a:load", IMAGE, labels_required=True)
        rows, labels = opened.batch(np.array([4, 1]))
        np.testing.assert_array_equal(rows["image"], images(5)[[4, 1]])
        assert labels is not None
        assert labels.tolist() == [4, 1]

    def test_packages_and_imports_of_their_own(self, here: Path) -> None:
        (here / "pack_a").mkdir()
        write_module(here, "beside_a", "VALUE = 3\n")
        write_module(here / "pack_a", "inner", "def f():\n    from beside_a import VALUE\n    return VALUE\n")
        assert import_function("pack_a.inner:f", "data")() == 3

    def test_the_current_folder_shadows_nothing_afterwards(self, here: Path) -> None:
        write_module(here, "loader_b", "def f():\n    pass\n")
        write_module(here, "colorsys", "")
        import_function("loader_b:f", "data")
        assert sys.path.index(str(here)) == len(sys.path) - 1

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("raise OSError('disk gone')", "the function failed with OSError: disk gone"),
            ("return 3", "reading data 'loader_bad:load': expected .* an iterable of batches, got int"),
            ("return [np.ones(3)]", r"batch 0: input 'image' has to be of shape \(samples, 2, 3\), got \(3,\)"),
            ("return []", "gave no batch"),
            ("return {'image': np.array([None, None])}", "expected an array with one row per sample"),
            ("return {'image': [[1], [1, 2]]}", "'image' has rows of different lengths"),
        ],
    )
    def test_refuses_what_it_gives(self, here: Path, body: str, message: str) -> None:
        write_module(here, "loader_bad", f"def load():\n    {body}\n")
        with pytest.raises(DataError, match=message):
            open_data("loader_bad:load", IMAGE)

    def test_a_function_of_a_file_takes_arguments(self, here: Path) -> None:
        body = "def load(split, count=2, scale=1.0, flip=False):\n"
        body += "    return {'image': np.full((count, 2, 3), scale, np.float32), 'labels': np.array([split] * count)}\n"
        write_module(here, "loader_d", body)
        opened = open_data("loader_d.py:load?split=train+val%261&count=3&scale=.5&flip=true", IMAGE)
        rows, labels = opened.batch(np.arange(3))
        assert rows["image"].max() == 0.5
        assert labels is not None
        assert labels.tolist() == ["train+val&1"] * 3

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("loader_e.py:load?n", "expected arguments as name=value.*got 'n'"),
            ("loader_e.py:load?n=1&n=2", "each name once.*got 'n=2'"),
            ("loader_e.py:load?m=1", r"can be called as load\(m=1\), but .*'m'"),
            ("sub/loader_e.py:load", "no such file 'sub/loader_e.py'"),
        ],
    )
    def test_refuses_arguments_that_do_not_fit(self, here: Path, source: str, message: str) -> None:
        write_module(here, "loader_e", "def load(n=1):\n    return {}\n")
        with pytest.raises(DataError, match=message):
            open_data(source, IMAGE)

    def test_a_file_hides_no_other_module(self, here: Path) -> None:
        """One that is called as a module of Python's, and two of one name, are each themselves."""
        for folder in ("one", "two"):
            (here / folder).mkdir()
            write_module(here / folder, "colorsys", f"from beside_{folder} import NAME\ndef f():\n    return NAME\n")
            write_module(here / folder, f"beside_{folder}", f"NAME = {folder!r}\n")
        assert [import_function(f"{folder}/colorsys.py:f", "data")() for folder in ("one", "two")] == ["one", "two"]
        assert "yiq_to_rgb" in dir(__import__("colorsys"))

    def test_a_file_is_a_module_that_other_processes_find(self, here: Path) -> None:
        (here / "deep").mkdir()
        write_module(here / "deep", "loader_f", "def f():\n    pass\n")
        assert import_function("deep/loader_f.py:f", "data").__module__ == "loader_f"
        assert absolute_reference("deep/loader_f.py:f?a=1") == f"{here}/deep/loader_f.py:f?a=1"
        assert absolute_reference("loader_f:f") == "loader_f:f"

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("no_such_module_here:load", "ModuleNotFoundError.*run from the folder that holds it"),
            ("broken_a:load", "NameError: name 'oops' is not defined"),
            ("loader_c:missing", "module loader_c has no function missing"),
            ("loader_c:np.load", "is not of the form"),
            ("loader_c", "is not of the form"),
            ("no_such_file.py:load", "FileNotFoundError: no such file"),
            ("loader_c.py:missing", "file loader_c.py has no function missing"),
            ("loader_c.py:load?a=1", "is not of the form"),
        ],
    )
    def test_refuses_what_cannot_be_imported(self, here: Path, reference: str, message: str) -> None:
        write_module(here, "broken_a", "oops\n")
        write_module(here, "loader_c", "")
        with pytest.raises(DataError, match=message):
            import_function(reference, "--preprocess")

    @pytest.mark.parametrize("reference", ["loader_g.py:load", "loader_g:load"])
    def test_a_package_that_a_loader_lacks_is_to_be_installed_where_bitfront_runs(
        self, here: Path, reference: str
    ) -> None:
        write_module(here, "loader_g", "import no_such_package.deep\n")
        says = r"imports no_such_package, which is not installed in the environment .*; install no_such_package there"
        with pytest.raises(DataError, match=says + r", or write the samples into an \.npz file"):
            import_function(reference, "data")
        with pytest.raises(DataError, match=says + "$"):
            import_function(reference, "--preprocess")


class TestErrors:
    @pytest.mark.parametrize("source", ["nowhere.npz", "no/folder", "C:\\data\\x.npz"])
    def test_no_such_file(self, source: str) -> None:
        with pytest.raises(DataError, match="no such file or folder"):
            open_data(source, IMAGE)

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is empty: found neither"):
            open_data(str(tmp_path), IMAGE)

    def test_preprocess_is_for_images_only(self, tmp_path: Path) -> None:
        source = save(tmp_path / "d.npz", image=images(2))
        for place in (source, str(tmp_path)):
            with pytest.raises(DataError, match="is for image folders"):
                open_data(place, IMAGE, preprocess="os:getcwd")

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            (
                {"picture": images(2)},
                r"lacks the model's input 'image': expected arrays \['image'\], got \['picture'\]",
            ),
            (
                {"images": images(2), "labels": np.arange(2), "clusters": np.arange(2), "labels.depth": np.arange(2)},
                r"got \['images'\]; name each array as the model names its input: rename 'images' to 'image'$",
            ),
            ({"image": images(2), "mask": images(2)}, "has 'mask', which is not an input of the model"),
            ({"image": images(2).reshape(2, 6)}, r"has to be of shape \(samples, 2, 3\), got \(2, 6\)"),
            ({"image": np.float32(1)}, r"got \(\)"),
            ({"image": images(2).astype(np.float64)}, r"has to be float32, got float64.*\.astype\('float32'\)"),
            ({"image": np.ones((2, 2, 3), np.uint8)}, "has to be float32, got uint8"),
            ({"image": images(0)}, "is empty"),
            ({"image": images(1)}, "one sample: at least two"),
            ({"image": images(3), "labels": np.arange(2)}, "lengths differ: image 3, labels 2"),
            ({"image": images(2), "labels": np.int64(3)}, "lengths differ: image 2, labels 0"),
        ],
    )
    def test_arrays_that_do_not_fit(self, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            open_data(save(tmp_path / "d.npz", **arrays), IMAGE)

    def test_inputs_of_different_length(self, tmp_path: Path) -> None:
        source = save(tmp_path / "d.npz", ids=np.ones((3, 5), np.int64), mask=np.ones((2, 5), np.float32))
        with pytest.raises(DataError, match=r"lengths differ: ids 3, mask 2\. Put .* by --input-value NAME=VALUE"):
            open_data(source, PAIR)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, tmp_path: Path, value: float) -> None:
        for number in range(2):
            x = images(300, number)
            x[270, 1, 1] = value if number else 0
            save(tmp_path / f"{number}.npz", image=x)
        with pytest.raises(DataError, match=r"1\.npz: input 'image' holds NaN or Inf, first in sample 570"):
            open_data(str(tmp_path), IMAGE)

    def test_labels_required(self, tmp_path: Path) -> None:
        source = save(tmp_path / "d.npz", image=images(2))
        with pytest.raises(DataError, match="have no labels and the metric needs them"):
            open_data(source, IMAGE, labels_required=True)

    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        inner = save(tmp_path / "object.npz", image=np.array([{}, {}], dtype=object))
        np.save(tmp_path / "bare.npy", np.array([{}], dtype=object))
        for source in (inner, str(tmp_path / "bare.npy")):
            with pytest.raises(DataError, match="pickled and object arrays are refused"):
                open_data(source, IMAGE)

    def test_files_that_are_no_npz(self, tmp_path: Path) -> None:
        good = Path(save(tmp_path / "good.npz", image=images(100)))
        damaged = bytearray(good.read_bytes())
        damaged[500] ^= 255
        contents = {
            "text.npz": b"hello",
            "empty.npz": b"",
            "cut.npz": good.read_bytes()[:-40],
            "bad.npz": bytes(damaged),
        }
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        for name in contents:
            with pytest.raises(DataError, match=r"is not a readable \.npz archive"):
                open_data(str(tmp_path / name), IMAGE)

    def test_a_zip_of_something_else(self, tmp_path: Path) -> None:
        import zipfile

        with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(DataError, match=r"\['readme\.txt'\] are not arrays"):
            open_data(str(tmp_path / "d.npz"), IMAGE)


class TestBatches:
    def test_the_last_is_padded_with_its_last_row(self, tmp_path: Path) -> None:
        x = images(7)
        opened = open_data(save(tmp_path / "d.npz", image=x, labels=np.arange(7)), IMAGE)
        got = list(batches(opened, np.array([6, 5, 4, 1, 0]), 3))
        assert [batch.count for batch in got] == [3, 2]
        np.testing.assert_array_equal(got[0].inputs["image"], x[[6, 5, 4]])
        np.testing.assert_array_equal(got[1].inputs["image"], x[[1, 0, 0]])
        assert [None if b.labels is None else b.labels.tolist() for b in got] == [[6, 5, 4], [1, 0]]

    def test_without_labels_or_samples(self, tmp_path: Path) -> None:
        opened = open_data(save(tmp_path / "d.npz", image=images(2)), IMAGE)
        assert next(batches(opened, np.array([0]), 4)).labels is None
        assert list(batches(opened, np.array([], np.int64), 4)) == []


class TestSplit:
    @given(st.integers(2, 5000), st.booleans(), st.booleans(), st.binary(min_size=32, max_size=32))
    def test_every_sample_has_its_place(self, n: int, calibration: bool, final: bool, digest: bytes) -> None:
        parts = split(digest.hex(), n, calibration_apart=calibration, final_apart=final)
        again = split(digest.hex(), n, calibration_apart=calibration, final_apart=final)
        arrays = [parts.calibration, parts.search, parts.final]
        assert all((a == b).all() for a, b in zip(arrays, [again.calibration, again.search, again.final], strict=True))
        assert all(array.dtype == np.int64 and (np.diff(array) > 0).all() for array in arrays)
        assert (len(parts.calibration) == 0) == calibration
        assert (len(parts.final) == 0) == final
        assert len(parts.search) > 0
        assert set(np.concatenate(arrays).tolist()) == set(range(n))
        assert not set(parts.final.tolist()) & set(np.concatenate(arrays[:2]).tolist())
        shared = set(parts.calibration.tolist()) & set(parts.search.tolist())
        assert len(shared) == (1 if n == 2 and not calibration and not final else 0)

    @pytest.mark.parametrize(
        ("n", "sizes"),
        [
            (2, (1, 1, 1)),
            (3, (1, 1, 1)),
            (4, (1, 2, 1)),
            (10, (2, 5, 3)),
            (1000, (200, 500, 300)),
            (9999, (512, 6488, 2999)),
        ],
    )
    def test_shares(self, n: int, sizes: tuple[int, int, int]) -> None:
        parts = split(DIGEST, n)
        assert (len(parts.calibration), len(parts.search), len(parts.final)) == sizes

    def test_the_rule_never_changes(self) -> None:
        """Studies of other versions are resumed by it: these numbers must hold for ever."""
        parts = split(DIGEST, 12)
        assert parts.calibration.tolist() == [4, 6]
        assert parts.final.tolist() == [3, 10, 11]

    def test_depends_on_the_digest(self) -> None:
        assert split(DIGEST, 100).final.tolist() != split("f" * 64, 100).final.tolist()

    def test_refuses_less_than_two(self) -> None:
        with pytest.raises(DataError, match="1 sample cannot be split"):
            split(DIGEST, 1)
