"""Images for the proof: real handwritten digits, filled in one of three ways, in clutter. NumPy alone.

A class is a digit and how it is filled (solid, striped, checked): 30 classes. Image `i` of a seed is the same on every
machine and in every version of NumPy. `search`, `calibration` and `final` are what `--data` and its kin are given.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILLS = 3
CLASSES = 10 * FILLS
SEEDS = {"train": 1, "search": 2, "calibration": 3, "final": 4}
COUNTS = {"search": 1000, "calibration": 512, "final": 1000}
FOLDER_VARIABLE = "BITFRONT_PROOF"  # folder of the data; evaluator processes inherit it

Floats = NDArray[Any]


def search() -> dict[str, NDArray[Any]]:
    return load(_folder(), "search")


def calibration() -> dict[str, NDArray[Any]]:
    return load(_folder(), "calibration")


def final() -> dict[str, NDArray[Any]]:
    return load(_folder(), "final")


def load(folder: Path, split: str) -> dict[str, NDArray[Any]]:
    """`image` (n, 3, size, size) float32, mapped from disk, and `labels` (n,) int64; drawn first where need be."""
    images, labels = folder / f"{split}-images.npy", folder / f"{split}-labels.npy"
    if not labels.exists():
        write(folder, split)
    return {"image": np.load(images, mmap_mode="r"), "labels": np.load(labels)}


def write(folder: Path, split: str) -> None:
    """Draw a split of `folder/digits.npz` on all cores and keep it beside it."""
    with np.load(folder / "digits.npz") as file:
        digits, values = file["images"], file["labels"]
        size = int(file["size"])
    images, labels = draw_all(digits, values, SEEDS[split], COUNTS[split], size)
    for name, array in (("images", images.astype(np.float32)), ("labels", labels)):  # labels last: they say it is whole
        draft = folder / f"{split}-{name}-{os.getpid()}.draft.npy"  # another process may draw the same
        np.save(draft, array)
        draft.replace(folder / f"{split}-{name}.npy")


def draw_all(
    digits: NDArray[np.uint8], values: NDArray[np.int64], seed: int, count: int, size: int
) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Images 0 to `count` of a seed, as `draw` gives them, on all cores."""
    parts = [range(start, min(start + 64, count)) for start in range(0, count, 64)]
    images, labels = np.empty((count, 3, size, size), np.float16), np.empty(count, np.int64)
    with ProcessPoolExecutor() as pool:
        drawn = pool.map(partial(_part, digits, values, seed, size), parts)
        for part, (pixels, classes) in zip(parts, drawn, strict=True):
            images[part.start : part.stop], labels[part.start : part.stop] = pixels, classes
    return images, labels


def _part(
    digits: NDArray[np.uint8], values: NDArray[np.int64], seed: int, size: int, numbers: range
) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    return draw(digits, values, seed, numbers, size)


def draw(
    digits: NDArray[np.uint8], values: NDArray[np.int64], seed: int, numbers: range, size: int
) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Images `numbers` of a seed.

    Args:
        digits: (n, 8, 8) from 0 to 16, with their `values` (n,) from 0 to 9.
        size: pixels of a side.

    Returns:
        (count, 3, size, size) float16, black at -2 and white at 2, and (count,) classes.
    """
    images = np.empty((len(numbers), 3, size, size), np.float16)
    labels = np.empty(len(numbers), np.int64)
    for row, number in enumerate(numbers):
        rng = np.random.RandomState([seed, number])
        chosen, fill = rng.randint(len(digits)), rng.randint(FILLS)
        image = _scene(rng, digits, chosen, fill, size)
        images[row] = (image - 0.5) * 4
        labels[row] = values[chosen] * FILLS + fill
    return images, labels


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def _scene(rng: np.random.RandomState, digits: NDArray[np.uint8], chosen: int, fill: int, size: int) -> Floats:
    """(3, size, size) float32 from 0 to 1."""
    image = rng.uniform(0.1, 0.45, 3)[:, None, None] + _smooth(rng, size)
    for _ in range(2):
        other = digits[rng.randint(len(digits))]
        _paint(image, other, rng, size, (0.2, 0.35), 0.8, _colours(rng), rng.randint(FILLS), cut=True)
    _paint(image, digits[chosen], rng, size, (0.6, 0.85), 0.12, _colours(rng), fill)
    image += (rng.random_sample(image.shape) - 0.5) * rng.uniform(0.05, 0.5)
    return np.clip((image - 0.5) * rng.uniform(0.3, 1.0) + 0.5 + rng.uniform(-0.15, 0.15), 0, 1)


def _colours(rng: np.random.RandomState) -> Floats:
    """(2, 3) a bright ink and the darker one that alternates with it."""
    ink = rng.uniform(0.6, 1.0, 3)
    return np.stack([ink, ink * rng.uniform(0.2, 0.6, 3)])


def _smooth(rng: np.random.RandomState, size: int) -> Floats:
    """Slow changes of colour over the ground."""
    knots = rng.randint(3, 9)
    weights = _hats(knots, size)
    return np.asarray(weights @ rng.uniform(-0.15, 0.15, (3, knots, knots)) @ weights.T)


def _hats(knots: int, size: int) -> Floats:
    """(size, knots) weights of linear interpolation."""
    where = np.linspace(0, knots - 1, size)[:, None]
    return np.maximum(0, 1 - np.abs(where - np.arange(knots)))


def _paint(
    image: Floats,
    digit: NDArray[np.uint8],
    rng: np.random.RandomState,
    size: int,
    scale: tuple[float, float],
    shift: float,
    colours: Floats,
    fill: int,
    cut: bool = False,
) -> None:
    """Blend a turned, sheared, scaled digit into `image`; with `cut` only a part of it."""
    side = rng.uniform(*scale) * size
    centre = size / 2 * (1 + rng.uniform(-shift, shift, 2))
    low = np.maximum(0, (centre - 0.8 * side).astype(int))
    high = np.minimum(size, (centre + 0.8 * side).astype(int) + 1)
    if cut:
        low[rng.randint(2)] = int(rng.uniform(low[0], high[0]))
    if (low >= high).any():
        return
    y, x = np.mgrid[low[0] : high[0], low[1] : high[1]].astype(np.float32)
    mask = _sampled(digit, (y - centre[0]) / side, (x - centre[1]) / side, rng.uniform(-0.25, 0.25, 2))
    colour = colours[_pattern(fill, y, x, rng, size)].transpose(2, 0, 1)
    part = image[:, low[0] : high[0], low[1] : high[1]]
    part += mask * (colour - part)


def _sampled(digit: NDArray[np.uint8], y: Floats, x: Floats, turn: Floats) -> Floats:
    """Ink from 0 to 1 at places relative to the digit's middle and side, turned and sheared."""
    cos, sin, shear = np.cos(turn[0]), np.sin(turn[0]), turn[1]
    u, v = 8 * (cos * y - sin * x) + 4.5, 8 * (sin * y + (cos + shear * sin) * x) + 4.5
    u, v = np.clip(u, 0, 8.999), np.clip(v, 0, 8.999)
    padded = np.pad(digit, 1).astype(np.float32) / 16
    row, column = u.astype(int), v.astype(int)
    a, b = u - row, v - column
    upper = (1 - b) * padded[row, column] + b * padded[row, column + 1]
    lower = (1 - b) * padded[row + 1, column] + b * padded[row + 1, column + 1]
    return np.asarray((1 - a) * upper + a * lower)


def _pattern(fill: int, y: Floats, x: Floats, rng: np.random.RandomState, size: int) -> NDArray[np.int64]:
    """Which of two colours each place has: solid, stripes, checks."""
    period, angle = size * rng.uniform(0.1, 0.14), rng.uniform(0, np.pi)
    along = np.floor((np.cos(angle) * x + np.sin(angle) * y) / period * 2).astype(int)
    across = np.floor((np.cos(angle) * y - np.sin(angle) * x) / period * 2).astype(int)
    return np.asarray((0 * along, along, along + across)[fill] % 2)
