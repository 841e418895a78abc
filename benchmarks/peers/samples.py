"""Samples for the five networks that are hard by nature, drawn from a seed: as many as are wanted. NumPy alone.

Images are linear light, as a sensor gives it: the same scene is bright or dark by a factor (its exposure), and glossy
objects have highlights far brighter than all else. Signals are of sensors with different units and far-off values.
Every purpose (`train`, `calibration`, `evaluation`) has samples of its own. Block `b` of a purpose is always the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust import digits
from benchmarks.trust.samples import Specks, bright_pixels, shape_masks, slow_light

BLOCK = 250  # samples that are drawn together
PURPOSES = {"train": 0, "calibration": 1, "evaluation": 2}
SHAPES, COLOURS = 6, 5
DETECTED = 4  # shapes that scenes have
MOST_OBJECTS = 4  # in a scene
ANGLES, WAVES = 4, 3
MOTIFS, STEPS, SENSORS, LENGTH = 10, 32, 16, 5

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Generator = np.random.Generator


def draw(network: str, purpose: str, samples: int) -> Arrays:
    """The first `samples` of a purpose: the network's input by its name, and `labels`."""
    parts = list(blocks(network, purpose, -(-samples // BLOCK)))
    return {name: np.concatenate([part[name] for part in parts])[:samples] for name in parts[0]}


def blocks(network: str, purpose: str, count: int) -> Iterator[Arrays]:
    """Blocks 0 to `count` of a purpose, `BLOCK` samples each."""
    for number in range(count):
        yield draw_block(network, purpose, number)


def draw_block(network: str, purpose: str, number: int, **options: Any) -> Arrays:
    """One block, always the same; `options` are those of the network's function, as `size`."""
    seed = [zlib.crc32(f"peers/{network}".encode()), PURPOSES[purpose], number]
    return DRAWS[network](np.random.default_rng(seed), BLOCK, **options)


def draw_gratings(rng: Generator, count: int) -> Arrays:
    """`image` (count, 1, 32, 32): a grating in noise; 12 classes, its angle and how fine it is.

    Contrast is low or high, and one image in ten has hot pixels.
    """
    size = 32
    angle, wave = rng.integers(ANGLES, size=count), rng.integers(WAVES, size=count)
    y, x = np.mgrid[0:size, 0:size].astype(np.float64)
    image = rng.normal(0, 1, (count, size, size)) * rng.uniform(0.5, 0.9, (count, 1, 1))
    for share, own in ((0.45, False), (1.0, True)):
        theta = np.pi * (angle if own else rng.integers(ANGLES, size=count)) / ANGLES
        pitch = 0.09 * 1.5 ** (wave if own else rng.integers(WAVES, size=count))
        theta, pitch = theta + rng.normal(0, 0.12, count), pitch * np.exp(rng.normal(0, 0.08, count))
        along = np.cos(theta)[:, None, None] * x + np.sin(theta)[:, None, None] * y
        centre, width = rng.uniform(8, 24, (2, count, 1, 1)), rng.uniform(4, 9, (count, 1, 1))
        window = np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * width**2))
        phase = 2 * np.pi * pitch[:, None, None] * along + rng.uniform(0, 6.3, (count, 1, 1))
        image += share * rng.uniform(0.7, 2.0, (count, 1, 1)) * window * np.cos(phase)
    hot = bright_pixels(rng, count, 1, size, Specks(250.0), share=0.1)
    image = _gain(rng, count, 3.0)[:, :, 0] * image
    return {"image": (image[:, None] + hot).astype(np.float32), "labels": angle * WAVES + wave}


def draw_objects(rng: Generator, count: int, size: int = 32) -> Arrays:
    """`image` (count, 3, size, size): one glossy object in some light; 30 classes, its shape and colour."""
    scale = size / 32
    shape, colour = rng.integers(SHAPES, size=count), rng.integers(COLOURS, size=count)
    radius, centre = scale * rng.uniform(6, 11, count), scale * rng.uniform(11, 21, (2, count))
    turn = rng.uniform(0, 2 * np.pi, count)
    covered = shape_masks(shape, radius, centre, turn, size)[:, None]
    hue = 2 * np.pi * (colour + rng.normal(0, 0.13, count)) / COLOURS
    ink = 0.45 + 0.4 * np.cos(hue[:, None] - 2 * np.pi * np.arange(3) / 3) * rng.uniform(0.5, 1.0, (count, 1))
    image = np.where(covered, ink[:, :, None, None], _ground(rng, count, size))
    image += covered * _highlights(rng, centre, radius, size, scale)
    image = _noisy(rng, image, 0.02, 0.09) * _gain(rng, count, 3.5)
    return {"image": image.astype(np.float32), "labels": shape * COLOURS + colour}


def draw_boxes(rng: Generator, count: int, size: int = 48) -> Arrays:
    """`image` (count, 3, size, size): up to four glossy objects of four shapes.

    `labels` (count, 4, 5): the box of each, from its left, top, right and bottom edge in pixels, and its shape; rows
    without an object are -1.
    """
    image, covered, shapes = _scene(rng, count, size, 2.5)
    return {"image": image, "labels": _boxes(covered, shapes)}


def draw_masks(rng: Generator, count: int, size: int = 48) -> Arrays:
    """`image` (count, 3, size, size): up to four glossy objects.

    `labels` (count, size, size): 0 is the ground, k a shape of 4.
    """
    image, covered, shapes = _scene(rng, count, size, 3.0)
    labels = np.zeros((count, size, size), np.int64)
    for number in range(MOST_OBJECTS):
        labels = np.where(covered[:, number], shapes[:, number, None, None] + 1, labels)
    return {"image": image, "labels": labels}


def draw_signals(rng: Generator, count: int) -> Arrays:
    """`signal` (count, 32, 16): steps of 16 sensors, each in its own unit; the motif of 10 that occurs twice.

    Two other motifs occur once each. Sensors drift, their noise has heavy tails, and now and then a value is far off.
    """
    fixed = np.random.default_rng(1)
    motifs, units = fixed.normal(0, 1, (MOTIFS, LENGTH, SENSORS)), 2.0 ** fixed.uniform(-2, 2, SENSORS)
    order = rng.permuted(np.tile(np.arange(MOTIFS), (count, 1)), axis=1)
    chosen = order[:, [0, 0, 1, 2]]
    signal = 0.5 * rng.standard_t(4, (count, STEPS, SENSORS))
    signal += np.cumsum(rng.normal(0, 0.05, signal.shape), axis=1)
    starts = rng.permuted(np.tile(np.arange(4), (count, 1)), axis=1) * 8 + rng.integers(0, 4, (count, 4))
    rows = np.arange(count)[:, None]
    for place in range(4):
        strength = rng.uniform(0.3, 0.8, (count, 1, 1))
        signal[rows, starts[:, [place]] + np.arange(LENGTH)] += strength * motifs[chosen[:, place]]
    far = rng.random(signal.shape) < 0.0005
    signal += far * rng.choice([-1.0, 1.0], far.shape) * np.minimum(60.0, 6 * (1 + rng.pareto(1.5, far.shape)))
    return {"signal": (units * signal).astype(np.float32), "labels": order[:, 0]}


def _scene(rng: Generator, count: int, size: int, stops: float) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any]]:
    """Images, which pixels each object covers (count, objects, size, size), and shapes (count, objects)."""
    image, scale = _ground(rng, count, size), size / 48
    shapes = rng.integers(DETECTED, size=(count, MOST_OBJECTS))
    covered = np.zeros((count, MOST_OBJECTS, size, size), bool)
    for number in range(MOST_OBJECTS):
        there = rng.random(count) < (1.0, 0.7, 0.5, 0.3)[number]
        radius, centre = scale * rng.uniform(4.5, 13, count), scale * rng.uniform(5, 43, (2, count))
        mask = shape_masks(shapes[:, number], radius, centre, rng.uniform(0, 2 * np.pi, count), size)
        mask &= there[:, None, None]
        covered[:, :number] &= ~mask[:, None]
        covered[:, number] = mask
        ink = rng.uniform(0.05, 0.9, (count, 3, 1, 1)) + _highlights(rng, centre, radius, size, scale)
        image = np.where(mask[:, None], ink, image)
    image = _noisy(rng, image, 0.01, 0.06) * _gain(rng, count, stops)
    return image.astype(np.float32), covered, shapes


def _boxes(covered: NDArray[np.bool_], shapes: NDArray[Any]) -> NDArray[np.float32]:
    """Boxes of what can be seen of each object; of a two-hundredth of the image or less there is none."""
    columns, rows = (np.asarray(covered.any(axis)) for axis in (2, 3))
    size = covered.shape[-1]
    left, right = columns.argmax(2), size - columns[:, :, ::-1].argmax(2)
    top, bottom = rows.argmax(2), size - rows[:, :, ::-1].argmax(2)
    boxes = np.stack([left, top, right, bottom, shapes], axis=2).astype(np.float32)
    return np.where((covered.sum((2, 3)) > size * size / 200)[:, :, None], boxes, np.float32(-1))


def _ground(rng: Generator, count: int, size: int) -> Floats:
    return np.clip(rng.uniform(0.1, 0.7, (count, 3, 1, 1)) + slow_light(rng, count, 3, size) / 3, 0.02, None)


def _highlights(rng: Generator, centre: Floats, radius: Floats, size: int, scale: float) -> Floats:
    """(count, 1, size, size): where an object mirrors the light. Few are much brighter than white paper."""
    count = len(radius)
    y, x = np.mgrid[0:size, 0:size].astype(np.float64)
    places = centre + rng.uniform(-0.5, 0.5, (2, count)) * radius
    peak, width = np.minimum(30.0, 0.5 * (1 + rng.pareto(1.2, count))), scale * rng.uniform(0.6, 1.6, count)
    far = (y - places[0][:, None, None]) ** 2 + (x - places[1][:, None, None]) ** 2
    return (peak[:, None, None] * np.exp(-far / (2 * width[:, None, None] ** 2)))[:, None]


def _noisy(rng: Generator, image: Floats, least: float, most: float) -> Floats:
    """Shot noise: brighter pixels have more of it."""
    amount = rng.uniform(least, most, (len(image), 1, 1, 1))
    return np.maximum(image + amount * np.sqrt(image + 0.1) * rng.normal(0, 1, image.shape), 0)


def _gain(rng: Generator, count: int, stops: float) -> Floats:
    """(count, 1, 1, 1) exposure of each image: from 1 down to half as much for every stop."""
    return 2.0 ** -rng.uniform(0, stops, (count, 1, 1, 1))


DRAWS: dict[str, Callable[..., Arrays]] = {
    "residual": draw_gratings,
    "mobile": draw_objects,
    "detector": draw_boxes,
    "segmenter": draw_masks,
    "encoder": draw_signals,
    "digits": digits.draw,
}
