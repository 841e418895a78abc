"""Draw the data of the example: frames of a camera's raw sensor, every scene at four exposures. Needs NumPy alone.

    python samples.py --out exposures.npz                       # the data of the demo, always the same: a few seconds
    python samples.py --out fresh.npz --scenes 2500 --seed 2    # other scenes

A scene is one glossy object of six shapes and five colours on uneven ground. It is photographed four times by hand,
each time with a quarter of the light of the time before, as exposure bracketing does it. The array `clusters` has the
number of the scene, as its four frames belong together.

A frame is what the sensor gives: 32x32 pixels behind a colour mosaic, one number of 12 bits each, in which twice the
light is twice the number. Light comes as electrons, so bright pixels have more noise than dark ones, but less in
proportion; what is brighter than the sensor can count is cut off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SHAPES = ("disc", "square", "ring", "cross", "triangle", "half disc")
COLOURS = 5  # hues, evenly spaced on the circle
FRAMES = 4  # of every scene
LIGHT = 0.25 ** np.arange(FRAMES)  # of each frame, as a share of that of the first
SIDE = 32  # pixels of the sensor
FULL_WELL = 6000  # electrons that a pixel holds: that of a small sensor
READ_NOISE = 2.0  # electrons
LARGEST = 4095  # the largest number of 12 bits
SCENES = 2000  # of the demo's data
DEMO_SEED, TRAINING_SEED, FRESH_SEED = 0, 1, 2  # of scenes that never meet
BLOCK = 250  # scenes that are drawn together

Arrays = dict[str, np.ndarray]


def write(path: Path, scenes: int = SCENES, seed: int = DEMO_SEED) -> None:
    """Write the frames of so many scenes as .npz: `raw`, `labels` and `clusters`; see `draw`."""
    parts = list(blocks(seed, scenes))
    with path.open("wb") as file:
        np.savez(file, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def blocks(seed: int, scenes: int) -> Iterator[Arrays]:
    """The first `scenes` scenes of a seed, `BLOCK` at a time; clusters are numbered through."""
    for number, first in enumerate(range(0, scenes, BLOCK)):
        drawn = draw(np.random.default_rng([seed, number]), min(BLOCK, scenes - first))
        drawn["clusters"] += first
        yield drawn


def draw(rng: np.random.Generator, scenes: int) -> Arrays:
    """Four frames of each scene, a scene after the other.

    Returns:
        `raw` (4 * scenes, 4, 16, 16) float32, the mosaic's planes (red, green, green, blue) as shares of the largest
        number; `labels` (4 * scenes,) int64, 5 * shape + colour; `clusters` (4 * scenes,) int64, the scene.
    """
    shape, colour = rng.integers(len(SHAPES), size=scenes), rng.integers(COLOURS, size=scenes)
    light = _scenes(rng, shape, colour)
    electrons = light * np.tile(LIGHT, scenes)[:, None, None, None] * FULL_WELL
    electrons += np.sqrt(electrons + READ_NOISE**2) * rng.standard_normal(electrons.shape, np.float32)
    counted = np.minimum(np.round(electrons * (LARGEST / FULL_WELL)), LARGEST)
    clusters = np.repeat(np.arange(scenes), FRAMES)
    labels = (shape * COLOURS + colour)[clusters]
    return {"raw": (counted / LARGEST).astype(np.float32), "labels": labels, "clusters": clusters}


def _scenes(rng: np.random.Generator, shape: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """(4 * scenes, 4, 16, 16) float32 light at each pixel of each frame in the longest exposure; 1 fills a pixel.

    The camera is held by hand: from frame to frame the object moves and turns a little.
    """
    scenes = len(shape)
    radius, place = rng.uniform(6, 11, scenes), rng.uniform(11, 21, (scenes, 2))
    turn, bright = rng.uniform(0, 2 * np.pi, scenes), rng.uniform(0.5, 1.0, scenes)
    ground, slopes = rng.uniform(0.1, 0.7, (scenes, 3)), rng.normal(0, 0.15, (scenes, 2)) / SIDE
    hue = 2 * np.pi * (colour + rng.normal(0, 0.1, scenes)) / COLOURS
    ink = 0.45 + 0.4 * np.cos(hue[:, None] - 2 * np.pi * np.arange(3) / 3) * rng.uniform(0.5, 1.0, (scenes, 1))
    gloss = 0.5 * (1 + rng.pareto(1.2, scenes))  # brightness of the highlight: few are far brighter than white paper
    gloss_place, gloss_width = (
        place + rng.uniform(-0.5, 0.5, (scenes, 2)) * radius[:, None],
        rng.uniform(0.6, 1.6, scenes),
    )

    def frames(values: np.ndarray) -> np.ndarray:
        """One value for every frame, to be multiplied with pixels (4, 16, 16)."""
        repeated = np.repeat(values, FRAMES, axis=0).astype(np.float32)
        return repeated.reshape((*repeated.shape, 1, 1, 1))

    moved = rng.normal(0, 0.7, (2, scenes * FRAMES, 1, 1, 1)).astype(np.float32)
    turned = rng.normal(0, 0.03, (scenes * FRAMES, 1, 1, 1)).astype(np.float32)
    y, x = _pixels()
    down, right = y[None] - moved[0], x[None] - moved[1]
    v, u = ((axis - frames(place[:, i])) / frames(radius) for i, axis in enumerate((down, right)))
    inside = _covered(shape.repeat(FRAMES), u, v, frames(turn) + turned)
    of_plane = [0, 1, 1, 2]  # which of red, green and blue the planes see
    uneven = frames(slopes[:, 0]) * (down - SIDE / 2) + frames(slopes[:, 1]) * (right - SIDE / 2)
    behind = np.maximum(frames(ground)[:, of_plane, 0] + uneven, 0.02)
    far = (down - frames(gloss_place[:, 0])) ** 2 + (right - frames(gloss_place[:, 1])) ** 2
    shine = frames(gloss) * np.exp(-far / (2 * frames(gloss_width) ** 2))
    return frames(bright) * np.where(inside, frames(ink)[:, of_plane, 0] + shine, behind)


def _pixels() -> tuple[np.ndarray, np.ndarray]:
    """(4, 16, 16) row and column on the sensor of each pixel of each plane."""
    half = np.arange(0, SIDE, 2, dtype=np.float32)
    rows, columns = np.array([0, 0, 1, 1], np.float32), np.array([0, 1, 0, 1], np.float32)
    y = rows[:, None, None] + half[None, :, None] + 0 * half
    x = columns[:, None, None] + half + 0 * half[None, :, None]
    return y, x


def _covered(shape: np.ndarray, u: np.ndarray, v: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Which pixels an object covers; u and v are their places as shares of its radius."""
    u, v = np.cos(turn) * u + np.sin(turn) * v, np.cos(turn) * v - np.sin(turn) * u
    far, narrow, wide = u**2 + v**2, np.minimum(abs(u), abs(v)), np.maximum(abs(u), abs(v))
    disc = far < 0.9
    triangle = (abs(u) < 0.62 * (1 - v)) & (v > -0.6)
    every = [disc, wide < 0.82, disc & (far > 0.3), (narrow < 0.32) & (wide < 1), triangle, disc & (v > -0.15)]
    return np.choose(shape[:, None, None, None], every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("exposures.npz"))
    parser.add_argument("--scenes", type=int, default=SCENES, help=f"four frames each; default {SCENES}")
    parser.add_argument(
        "--seed", type=int, default=DEMO_SEED, help="0: the demo's scenes; 1: those trained on; 2: fresh"
    )
    arguments = parser.parse_args()
    write(arguments.out, arguments.scenes, arguments.seed)


if __name__ == "__main__":
    main()
