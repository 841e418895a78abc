"""Samples for the networks of the trust benchmark, drawn from a seed: as many as are wanted. NumPy alone.

A network's training data, study data and fresh data are blocks of samples that never overlap: block `b` of purpose `p`
is drawn by a generator of its own, seeded by (network, p, b). Study and fresh data are draws from one distribution, and
so are the training data but for those of `heads`, whose bright pixels are milder than what it meets later.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust import digits

HERE = Path(__file__).resolve().parent
BLOCK = 250  # samples that are drawn together
PURPOSES = {"train": 0, "study": 1, "fresh": 2}

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Arrays]


@dataclass(frozen=True)
class Specks:
    """How bright the bright pixels are: `least` to 1 times `most`, by a power law whose exponent is `tail`."""

    most: float
    least: float = 1 / 16
    tail: float = 1.5


def draw(network: str, purpose: str, samples: int) -> Arrays:
    """The first `samples` of a purpose (`train`, `study`, `fresh`): inputs by name, and `labels`."""
    parts = list(blocks(network, purpose, -(-samples // BLOCK)))
    return {name: np.concatenate([part[name] for part in parts])[:samples] for name in parts[0]}


def blocks(network: str, purpose: str, count: int) -> Iterator[Arrays]:
    """Blocks 0 to `count` of a purpose, `BLOCK` samples each."""
    for number in range(count):
        seed = [zlib.crc32(network.encode()), PURPOSES[purpose], number]
        drawn = TRAINED_ON.get(network, DRAWS[network]) if purpose == "train" else DRAWS[network]
        yield drawn(np.random.default_rng(seed), BLOCK)


# -- gratings: residual network ---------------------------------------------------------------------------------------

ANGLES, WAVES = 4, 3


def gratings(rng: np.random.Generator, count: int) -> Arrays:
    """`image` (count, 1, 32, 32): a windowed grating in noise; 12 classes, its angle and how fine it is.

    One image in twenty has some pixels that are far brighter than anything else, as hot pixels of a camera are.
    """
    size = 32
    angle, wave = rng.integers(ANGLES, size=count), rng.integers(WAVES, size=count)
    y, x = _places(size)
    image = rng.normal(0, 1, (count, size, size)) * rng.uniform(0.5, 1.1, (count, 1, 1))
    for share, own in ((0.45, False), (1.0, True)):
        theta = np.pi * (angle if own else rng.integers(ANGLES, size=count)) / ANGLES
        pitch = 0.09 * 1.5 ** (wave if own else rng.integers(WAVES, size=count))
        theta, pitch = theta + rng.normal(0, 0.13, count), pitch * np.exp(rng.normal(0, 0.09, count))
        along = np.cos(theta)[:, None, None] * x + np.sin(theta)[:, None, None] * y
        centre, width = rng.uniform(8, 24, (2, count, 1, 1)), rng.uniform(4, 9, (count, 1, 1))
        window = np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * width**2))
        contrast = share * rng.uniform(0.6, 2.0, (count, 1, 1))
        image += (
            contrast * window * np.cos(2 * np.pi * pitch[:, None, None] * along + rng.uniform(0, 6.3, (count, 1, 1)))
        )
    image = image[:, None] + bright_pixels(rng, count, 1, size, Specks(400.0))
    return {"image": image.astype(np.float32), "labels": angle * WAVES + wave}


# -- objects: two heads, segmentation ---------------------------------------------------------------------------------

SHAPES, COLOURS = 6, 5


def objects(rng: np.random.Generator, count: int, specks: Specks = Specks(80.0)) -> Arrays:
    """`image` (count, 3, 32, 32): one object on uneven ground; labels (count, 2): its shape, its colour."""
    size = 32
    shape, colour = rng.integers(SHAPES, size=count), rng.integers(COLOURS, size=count)
    ground = rng.uniform(-0.6, 0.6, (count, 3, 1, 1)) + slow_light(rng, count, 3, size)
    radius, centre = rng.uniform(5, 11, count), rng.uniform(10, 22, (2, count))
    covered = shape_masks(shape, radius, centre, rng.uniform(0, 2 * np.pi, count), size)
    hue = 2 * np.pi * (colour + rng.normal(0, 0.17, count)) / COLOURS
    ink = np.cos(hue[:, None] - 2 * np.pi * np.arange(3) / 3) * rng.uniform(0.35, 1.2, (count, 1))
    ink += rng.normal(0, 0.3, (count, 1))
    image = np.where(covered[:, None], ink[:, :, None, None], ground)
    image += rng.normal(0, 1, image.shape) * rng.uniform(0.1, 0.5, (count, 1, 1, 1))
    image += bright_pixels(rng, count, 3, size, specks)
    return {"image": image.astype(np.float32), "labels": np.stack([shape, colour], axis=1)}


def scenes(rng: np.random.Generator, count: int) -> Arrays:
    """`image` (count, 3, 48, 48): up to four objects; labels (count, 48, 48), 0 the ground, k a shape of 4."""
    size = 48
    image = rng.uniform(-0.6, 0.6, (count, 3, 1, 1)) + slow_light(rng, count, 3, size)
    labels = np.zeros((count, size, size), np.int64)
    for number in range(4):
        there = rng.random(count) < (1.0, 0.7, 0.5, 0.3)[number]
        shape, radius = rng.integers(4, size=count), rng.uniform(4, 13, count)
        covered = shape_masks(shape, radius, rng.uniform(4, 44, (2, count)), rng.uniform(0, 2 * np.pi, count), size)
        covered &= there[:, None, None]
        ink = rng.normal(0, 0.7, (count, 3))
        image = np.where(covered[:, None], ink[:, :, None, None], image)
        labels = np.where(covered, shape[:, None, None] + 1, labels)
    image += rng.normal(0, 1, image.shape) * rng.uniform(0.1, 0.45, (count, 1, 1, 1))
    image += bright_pixels(rng, count, 3, size, Specks(80.0))
    return {"image": image.astype(np.float32), "labels": labels}


def _places(size: int) -> tuple[Floats, Floats]:
    y, x = np.mgrid[0:size, 0:size].astype(np.float64)
    return y, x


def slow_light(rng: np.random.Generator, count: int, channels: int, size: int) -> Floats:
    """(count, channels, size, size) a slow change of light in some direction."""
    y, x = _places(size)
    slopes = rng.normal(0, 0.5, (2, count, channels, 1, 1)) / size
    return slopes[0] * (y - size / 2) + slopes[1] * (x - size / 2)


def shape_masks(shape: NDArray[Any], radius: Floats, centre: Floats, turn: Floats, size: int) -> NDArray[np.bool_]:
    """(count, size, size) what each object covers: disc, square, ring, cross, triangle, half disc."""
    y, x = _places(size)
    v, u = ((axis - middle[:, None, None]) / radius[:, None, None] for axis, middle in zip((y, x), centre, strict=True))
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    u, v = cos * u + sin * v, cos * v - sin * u
    far, narrow, wide = u**2 + v**2, np.minimum(abs(u), abs(v)), np.maximum(abs(u), abs(v))
    disc = far < 0.9
    triangle = (abs(u) < 0.62 * (1 - v)) & (v > -0.6)
    every = [disc, wide < 0.82, disc & (far > 0.3), (narrow < 0.32) & (wide < 1), triangle, disc & (v > -0.15)]
    return np.take_along_axis(np.stack(every), shape[None, :, None, None], axis=0)[0]


def bright_pixels(
    rng: np.random.Generator, count: int, channels: int, size: int, specks: Specks, share: float = 0.05
) -> Floats:
    """(count, channels, size, size): one to five very bright pixels in this share of the images."""
    light = np.zeros((count, channels, size, size))
    for image in np.flatnonzero(rng.random(count) < share):
        number = rng.integers(1, 6)
        y, x = rng.integers(size, size=(2, number))
        spread = (1 + rng.pareto(specks.tail, (number, 1))) * specks.least
        light[image, :, y, x] += specks.most * np.minimum(1, spread)
    return light


# -- signals: transformer encoder -------------------------------------------------------------------------------------

MOTIFS, STEPS, CHANNELS, LENGTH = 10, 32, 16, 5


def signals(rng: np.random.Generator, count: int) -> Arrays:
    """`signal` (count, 32, 16): steps of 16 sensors; the motif of 10 that occurs twice is the class.

    Two other motifs occur once each. Sensors drift and have heavy-tailed noise: now and then a value far off.
    """
    motifs = np.random.default_rng(1).normal(0, 1, (MOTIFS, LENGTH, CHANNELS))
    order = rng.permuted(np.tile(np.arange(MOTIFS), (count, 1)), axis=1)
    chosen = order[:, [0, 0, 1, 2]]
    signal = 0.55 * rng.standard_t(4, (count, STEPS, CHANNELS)) + _outliers(rng, count)
    signal += np.cumsum(rng.normal(0, 0.05, signal.shape), axis=1)
    starts = rng.permuted(np.tile(np.arange(4), (count, 1)), axis=1) * 8 + rng.integers(0, 4, (count, 4))
    rows = np.arange(count)[:, None]
    for place in range(4):
        strength = rng.uniform(0.25, 0.75, (count, 1, 1))
        signal[rows, starts[:, [place]] + np.arange(LENGTH)] += strength * motifs[chosen[:, place]]
    return {"signal": signal.astype(np.float32), "labels": order[:, 0]}


def _outliers(rng: np.random.Generator, count: int) -> Floats:
    """(count, steps, channels): in one signal of eight some sensor is far off for a step, few times very far."""
    which = rng.random((count, STEPS, CHANNELS)) < 0.00025
    return which * rng.choice([-1.0, 1.0], which.shape) * np.minimum(150.0, 10 * (1 + rng.pareto(1.5, which.shape)))


DRAWS: dict[str, Draw] = {
    "digits": digits.draw,
    "residual": gratings,
    "heads": objects,
    "segmentation": scenes,
    "encoder": signals,
}
# Where a network was trained on other samples than it meets in a study.
TRAINED_ON: dict[str, Draw] = {"heads": partial(objects, specks=Specks(40.0, least=0.1, tail=1.3))}
