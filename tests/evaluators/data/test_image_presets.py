"""Image files that become samples by a preset: sizes, order of axes and channels, and normalization."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from evaluators.data.image_presets import make_preset
from evaluators.data.opening import open_data
from search.errors import DataError
from search.graph.model import TensorSpec

NCHW = (TensorSpec("image", "float32", (4, 3, 8, 6)),)
NHWC = (TensorSpec("image", "uint8", (4, 8, 6, 3)),)
GRAY = (TensorSpec("image", "float32", (4, 1, 8, 6)),)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """16 by 32 pixels: red 255, 128 and 0 from left to right in green, blue 0."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :, 0] = 255
    pixels[:, :, 1] = np.repeat([255, 128, 128, 0], 8)
    folder = tmp_path / "photos"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        image.fromarray(pixels).save(folder / name / "a.png")
    return folder


def read(photo: Path, preset: str, inputs: tuple[TensorSpec, ...]) -> np.ndarray:
    reader = make_preset(preset, inputs)
    assert reader is not None
    return reader(photo / "cat/a.png")


def test_imagenet_crops_the_middle_and_normalizes(photo: Path) -> None:
    sample = read(photo, "imagenet", NCHW)
    assert (sample.shape, sample.dtype) == ((3, 8, 6), np.float32)
    np.testing.assert_allclose(sample[0], (1 - 0.485) / 0.229, rtol=1e-5)
    np.testing.assert_allclose(sample[2], (0 - 0.406) / 0.225, rtol=1e-5)
    np.testing.assert_allclose(sample[1, :, 2:4], (128 / 255 - 0.456) / 0.224, rtol=1e-5)


@pytest.mark.parametrize("size", [(640, 427), (427, 640), (1024, 683), (500, 375), (300, 301), (256, 256)])
def test_sizes_are_rounded_as_torchvision_rounds_them(size: tuple[int, int], tmp_path: Path) -> None:
    """`Resize(256)` and `CenterCrop(224)` of torchvision, which networks were trained and published with."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    reader = make_preset("unit", (TensorSpec("image", "uint8", (4, 224, 224, 3)),))
    assert reader is not None
    width, height = size
    new = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    resized = image.fromarray(pixels).resize(new, image.Resampling.BILINEAR)
    left, top = (int(round((side - 224) / 2.0)) for side in new)  # noqa: RUF046, as torchvision spells it
    np.testing.assert_array_equal(reader(tmp_path / "a.png"), resized.crop((left, top, left + 224, top + 224)))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_images_of_more_than_eight_bits_are_refused(dtype: type, tmp_path: Path) -> None:
    """Pillow would cut them off at 255."""
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((16, 16), 1000, dtype)).save(tmp_path / "deep.tif")
    reader = make_preset("imagenet", GRAY)
    assert reader is not None
    with pytest.raises(DataError, match="expected an image of 8 bits, got one of mode"):
        reader(tmp_path / "deep.tif")


def test_class_folders_may_be_links(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (photo / "cat/a.png").rename(tmp_path / "elsewhere/deep/a.png")
    (photo / "cat").rmdir()
    (photo / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/again").symlink_to(photo / "cat")  # which ends nowhere
    dataset = open_data(str(photo), NCHW, preprocess="imagenet")
    assert len(dataset) == 2
    assert dataset.labels(np.arange(2)).tolist() == [0, 1]  # type: ignore[union-attr]


def test_the_whole_image_without_a_crop(photo: Path) -> None:
    sample = read(photo, "unit?resize=0&interpolation=nearest", NCHW)
    assert sample[1, 0, [0, 2, 3, 5]].tolist() == pytest.approx([1, 128 / 255, 128 / 255, 0])


@pytest.mark.parametrize(("arguments", "red"), [("", 0), ("?order=bgr", 2)])
def test_pixels_as_they_are_for_a_model_of_bytes(photo: Path, arguments: str, red: int) -> None:
    sample = read(photo, f"unit{arguments}", NHWC)
    assert (sample.shape, sample.dtype) == ((8, 6, 3), np.uint8)
    assert (sample[:, :, red] == 255).all()
    assert (sample[:, :, 2 - red] == 0).all()


def test_arguments_replace_those_of_the_preset(photo: Path) -> None:
    sample = read(photo, "symmetric?mean=0,0,1&std=2&resize=64", NCHW)
    np.testing.assert_allclose(sample[0], 0.5, rtol=1e-5)
    np.testing.assert_allclose(sample[2], -0.5, rtol=1e-5)


def test_gray_images_have_one_channel(photo: Path) -> None:
    assert read(photo, "imagenet", GRAY).shape == (1, 8, 6)


def test_a_folder_is_read_by_a_preset_and_another_one_is_other_data(photo: Path) -> None:
    opened = open_data(str(photo), NCHW, preprocess="imagenet", labels_required=True)
    rows, labels = opened.batch(np.arange(2))
    assert rows["image"].shape == (2, 3, 8, 6)
    assert labels is not None
    assert labels.tolist() == [0, 1]
    assert open_data(str(photo), NCHW, preprocess="unit").digest != opened.digest


def test_a_broken_image_is_named(photo: Path) -> None:
    (photo / "cat/a.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"--preprocess imagenet failed on .*a\.png with UnidentifiedImageError"):
        open_data(str(photo), NCHW, preprocess="imagenet")


@pytest.mark.parametrize(
    ("preset", "inputs", "says"),
    [
        ("imagnet", NCHW, "there is no preset 'imagnet'; there are imagenet, unit, symmetric"),
        ("unit?size=3", NCHW, "there is no argument 'size'; there are resize, mean"),
        ("unit?mean=1,2", NCHW, "expected mean to be one number or three"),
        ("unit?std=0", NCHW, "expected std to be above 0"),
        ("unit?resize=half", NCHW, "expected resize to be a number of pixels"),
        ("unit?order=gbr", NCHW, "expected order to be one of rgb, bgr, got 'gbr'"),
        ("unit?layout=nhwc", NCHW, "expected a model with one input of images"),
        ("unit", (*NCHW, *GRAY), "expected a model with one input of images"),
        ("unit", (TensorSpec("ids", "int64", (1, 8)),), r"got ids: int64 \(1, 8\)"),
    ],
)
def test_what_cannot_be_used_is_named(preset: str, inputs: tuple[TensorSpec, ...], says: str) -> None:
    with pytest.raises(DataError, match=says):
        make_preset(preset, inputs)


def test_without_pillow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="needs Pillow, which is not installed"):
        make_preset("imagenet", NCHW)


def test_a_function_is_no_preset() -> None:
    assert make_preset("mine.py:prepare", NCHW) is None
