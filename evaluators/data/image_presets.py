"""Presets that turn an image file into an input of a model: resize, crop and normalize."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.errors import DataError
from search.graph.model import TensorSpec
from search.installation import install_command
from search.references import parse_arguments

if TYPE_CHECKING:
    from PIL.Image import Image

_RESIZE = 256 / 224  # of the shorter side to the crop, as most networks for ImageNet are tested


@dataclass(frozen=True)
class Preset:
    """How pixels become numbers, with what arguments may change.

    Attributes:
        resize: the shorter side is brought to so many pixels before the middle is cropped; None for 256/224 of the
            shorter side of the crop; 0 brings the whole image to the crop's size, whatever its proportions.
        mean, std: of each channel, of values from 0 to 1.
        order: of the channels: `rgb` or `bgr`.
        interpolation: `bilinear`, `bicubic`, `lanczos` or `nearest`.
        layout: `nchw`, `nhwc`, or `auto` to read it from the model's input.
    """

    resize: int | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    order: str = "rgb"
    interpolation: str = "bilinear"
    layout: str = "auto"


PRESETS: Mapping[str, Preset] = {
    "imagenet": Preset(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "unit": Preset(),
    "symmetric": Preset(mean=(0.5,), std=(0.5,)),
}
_CHOICES = {
    "order": ("rgb", "bgr"),
    "interpolation": ("bilinear", "bicubic", "lanczos", "nearest"),
    "layout": ("auto", "nchw", "nhwc"),
}


def make_preset(text: str, inputs: Sequence[TensorSpec]) -> Callable[[Path], NDArray[Any]] | None:
    """A function that reads an image file by a preset; None for a function.

    Args:
        text: a function of the user's, or the name of a preset, with arguments or without:
            `imagenet?resize=232&interpolation=bicubic`.
        inputs: the model's.

    Raises:
        DataError: there is no such preset, an argument is none or has a value that it cannot have, the model takes no
            images, or Pillow is not installed.
    """
    name, _, arguments = text.partition("?")
    if ":" in name:
        return None
    if name not in PRESETS:
        raise DataError(
            f"--preprocess {text}: there is no preset {name!r}; there are {', '.join(PRESETS)}. Name one, or a "
            "function of your own: --preprocess file.py:function"
        )
    preset = _change(PRESETS[name], arguments, f"--preprocess {text}")
    return _Reader(preset, _find_form(inputs, preset.layout, f"--preprocess {text}"), f"--preprocess {text}")


def _change(preset: Preset, arguments: str, doing: str) -> Preset:
    changes: dict[str, Any] = {}
    for name, value in parse_arguments(arguments, doing).items():
        changes[name] = _READ.get(name, _refuse)(name, value, doing)
    return replace(preset, **changes)


def _refuse(name: str, value: Any, doing: str) -> Any:
    raise DataError(f"{doing}: there is no argument {name!r}; there are {', '.join(_READ)}")


def _read_choice(name: str, value: Any, doing: str) -> str:
    if value not in _CHOICES[name]:
        raise DataError(f"{doing}: expected {name} to be one of {', '.join(_CHOICES[name])}, got {value!r}")
    return str(value)


def _read_numbers(name: str, value: Any, doing: str) -> tuple[float, ...]:
    texts = str(value).split(",")
    number = r"[+-]?(\d+(\.\d*)?|\.\d+)"
    if len(texts) not in (1, 3) or not all(re.fullmatch(number, text) for text in texts):
        raise DataError(f"{doing}: expected {name} to be one number or three with commas between them, got {value!r}")
    numbers = tuple(map(float, texts))
    if name == "std" and min(numbers) <= 0:
        raise DataError(f"{doing}: expected std to be above 0, got {value!r}")
    return numbers


def _read_size(name: str, value: Any, doing: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 16384:
        raise DataError(f"{doing}: expected {name} to be a number of pixels, or 0 for no crop, got {value!r}")
    return value


_READ: Mapping[str, Callable[[str, Any, str], Any]] = {
    "resize": _read_size,
    "mean": _read_numbers,
    "std": _read_numbers,
    "order": _read_choice,
    "interpolation": _read_choice,
    "layout": _read_choice,
}


@dataclass(frozen=True)
class _Form:
    """What the model takes: pixels high and wide, channels, whether these come first, and the dtype."""

    height: int
    width: int
    channels: int
    first: bool
    dtype: str


def _find_form(inputs: Sequence[TensorSpec], layout: str, doing: str) -> _Form:
    shape = inputs[0].shape[1:] if len(inputs) == 1 else ()
    first = layout == "nchw" or (layout == "auto" and len(shape) == 3 and shape[0] in (1, 3))
    height, width, channels = (*shape[1:], shape[0]) if len(shape) == 3 and first else (*shape, 0, 0, 0)[:3]
    if len(shape) != 3 or channels not in (1, 3) or inputs[0].dtype not in ("float32", "uint8"):
        shown = ", ".join(f"{spec.name}: {spec.dtype} {spec.shape}" for spec in inputs)
        raise DataError(
            f"{doing}: expected a model with one input of images, float32 or uint8, with 1 or 3 channels before or "
            f"behind height and width, got {shown}. Write a function of your own: --preprocess file.py:function"
        )
    return _Form(height, width, channels, first, inputs[0].dtype)


class _Reader:
    """Reads image files; `doing` begins messages."""

    def __init__(self, preset: Preset, form: _Form, doing: str) -> None:
        self._preset = preset
        self._form = form
        try:
            from PIL import Image
        except ImportError as error:
            raise DataError(
                f"{doing}: reading images needs Pillow, which is not installed. Install it: "
                f"{install_command('images')}; or write a function of your own: --preprocess file.py:function"
            ) from error
        self._images = Image

    def __call__(self, path: Path) -> NDArray[Any]:
        """One sample without the batch axis: of float32, normalized, or of uint8 as it is in the file."""
        form, preset = self._form, self._preset
        with self._images.open(path) as image:
            if image.mode == "F" or image.mode.startswith("I"):
                raise DataError(
                    f"reading {path}: expected an image of 8 bits, got one of mode {image.mode}, whose numbers a "
                    "preset would cut off; write a function of your own: --preprocess file.py:function"
                )
            cropped = self._crop(image.convert("RGB" if form.channels == 3 else "L"))
        pixels = np.asarray(cropped).reshape(form.height, form.width, form.channels)
        if preset.order == "bgr":
            pixels = pixels[:, :, ::-1]
        if form.dtype == "float32":
            mean, std = (np.array(values, np.float32) for values in (preset.mean, preset.std))
            if form.channels == 1:
                mean, std = mean.mean(), std.mean()
            pixels = ((pixels / np.float32(255) - mean) / std).astype(np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if form.first else pixels)

    def _crop(self, image: Image) -> Image:
        """The middle of the image, once its shorter side has the asked-for length."""
        height, width = self._form.height, self._form.width
        way = self._images.Resampling[self._preset.interpolation.upper()]
        if self._preset.resize == 0:
            return image.resize((width, height), way)
        shorter = self._preset.resize or round(min(height, width) * _RESIZE)
        # A crop that is larger than the resized image would be filled up with black.
        scale = max(shorter / min(image.size), height / image.height, width / image.width)
        size = (round(image.width * scale), round(image.height * scale))
        if scale == shorter / min(image.size):  # as torchvision rounds it
            longer = int(shorter * max(image.size) / min(image.size))
            size = (shorter, longer) if image.width <= image.height else (longer, shorter)
        resized = image.resize(size, way)
        left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
        return resized.crop((left, top, left + width, top + height))
