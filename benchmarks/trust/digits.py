"""Fresh scenes for digits: what examples/digits/train.py draws with PyTorch, drawn here by NumPy.

The scenes of `digits.npz` are of 797 digits that were held out from training, which `data/digits_held_out.npz` has.
Fresh scenes are of the same digits, each about equally often, with other turns, clutter, contrast and noise. So they
are draws from what the shipped scenes were drawn from, but not of digits that nobody has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORIGINALS = Path(__file__).resolve().parent / "data" / "digits_held_out.npz"
SIZE, LEVELS = 32, 7

Floats = NDArray[np.float64]


def held_out() -> tuple[Floats, NDArray[np.int64]]:
    """(797, 8, 8) images from 0 to 1, and (797,) labels."""
    with np.load(ORIGINALS) as file:
        return file["images"] / 16, file["labels"].astype(np.int64)


def draw(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    """`image` (count, 1, 32, 32) float32 and `labels` (count,)."""
    images, labels = held_out()
    order = np.concatenate([rng.permutation(len(images)) for _ in range(-(-count // len(images)))])[:count]
    return {"image": scenes(images[order], images, rng)[:, None].astype(np.float32), "labels": labels[order]}


def scenes(images: Floats, clutter: Floats, rng: np.random.Generator) -> Floats:
    """One scene (32, 32) per image: the digit, scraps of others of `clutter`, low contrast, noise."""
    count = len(images)
    canvas = _placed(images, (0.5, 0.85), 0.3, rng)
    for _ in range(4):
        others = clutter[rng.integers(len(clutter), size=count)]
        canvas = np.maximum(canvas, _placed(others, (0.6, 0.9), 0.6, rng) * _windows(count, rng))
    contrast, light = rng.uniform(0.3, 1.0, (count, 1, 1)), rng.uniform(0.0, 0.2, (count, 1, 1))
    noise = rng.normal(0, 0.1, canvas.shape)
    return np.round(np.clip(canvas * contrast + light + noise, 0, 1) * LEVELS) / LEVELS


def _placed(images: Floats, size: tuple[float, float], shift: float, rng: np.random.Generator) -> Floats:
    count = len(images)
    angle, scale = rng.uniform(-0.6, 0.6, count), 1 / rng.uniform(*size, count)
    shear, x, y = rng.uniform(-0.3, 0.3, count), *rng.uniform(-shift, shift, (2, count))
    return place(images, angle, scale, shear, x, y)


def place(images: Floats, angle: Floats, scale: Floats, shear: Floats, x: Floats, y: Floats) -> Floats:
    """(n, 32, 32): each (8, 8) image turned, sheared, scaled and moved, read between its pixels, 0 outside."""
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    across, down = np.array([cos, shear * cos - sin]), np.array([sin, shear * sin + cos])
    axis = (2 * np.arange(SIZE) + 1) / SIZE - 1  # middles of the pixels, from -1 to 1
    u, v = axis[None, None, :] - x[:, None, None], axis[None, :, None] - y[:, None, None]
    columns = across[0][:, None, None] * u + across[1][:, None, None] * v
    rows = down[0][:, None, None] * u + down[1][:, None, None] * v
    return _read(images, *(((where + 1) * images.shape[1] - 1) / 2 for where in (rows, columns)))


def _read(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Linear between the four nearest pixels; those outside the image are 0."""
    padded, side = np.pad(images, ((0, 0), (1, 1), (1, 1))), images.shape[1]
    rows, columns = np.clip(rows + 1, 0, side + 1), np.clip(columns + 1, 0, side + 1)
    top, left = np.minimum(rows.astype(int), side), np.minimum(columns.astype(int), side)
    a, b, which = rows - top, columns - left, np.arange(len(images))[:, None, None]
    upper = (1 - b) * padded[which, top, left] + b * padded[which, top, left + 1]
    lower = (1 - b) * padded[which, top + 1, left] + b * padded[which, top + 1, left + 1]
    values: Floats = (1 - a) * upper + a * lower
    return values


def _windows(count: int, rng: np.random.Generator) -> Floats:
    """(n, 32, 32) masks that are 1 in one small random rectangle each."""
    axis, spans = np.arange(SIZE), []
    for _ in range(2):
        start, length = rng.uniform(-4, SIZE, (count, 1)), rng.uniform(5, 10, (count, 1))
        spans.append((axis >= start) & (axis < start + length))
    return (spans[0][:, :, None] & spans[1][:, None, :]).astype(float)
