"""Scenes of six kinds of objects for the unseen networks, drawn with PyTorch where the networks are trained.

Every image has one to six objects of a few pixels up to a third of its side, in low contrast on uneven ground, with
noise. One image in twenty has some specks that are much brighter than white, as sunlight on chrome or a cosmic ray is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

CLASSES = 6  # disc, square, ring, cross, triangle, striped disc
MOST = 6  # objects of an image
FINE, COARSE = 8, 16  # pixels of a cell's side
SMALL = 0.35  # objects of up to this share of the largest radius belong to the fine grid
RADII = (0.03, 0.17)  # as a share of the image's side
SPECKLED = 0.05  # share of images with specks
BRIGHTEST = 40.0  # of a speck, in units of white


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes.

    Attributes:
        image: (n, 3, size, size) float32; black is about -2, white 2.
        mask: (n, size, size) uint8, 0 the ground, k the class k - 1.
        cells: (n, cells) uint8: 0 nothing, k an object of class k - 1 whose centre lies in the cell; small objects in
            the fine grid of size/8 × size/8, which comes first, large ones in the coarse grid of size/16 × size/16.
    """

    image: torch.Tensor
    mask: torch.Tensor
    cells: torch.Tensor


def draw(count: int, size: int, generator: torch.Generator) -> Scenes:
    """The next `count` scenes of the generator, on its device."""
    device = generator.device

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return torch.rand(count, *shape, generator=generator, device=device) * (high - low) + low

    image = uniform(0.15, 0.55, 3, 1, 1) + _smooth(uniform(-0.2, 0.2, 3, 6, 6), size)
    mask = torch.zeros(count, size, size, dtype=torch.uint8, device=device)
    fine = torch.zeros(count, (size // FINE) ** 2, dtype=torch.uint8, device=device)
    coarse = torch.zeros(count, (size // COARSE) ** 2, dtype=torch.uint8, device=device)
    objects = torch.randint(1, MOST + 1, (count,), generator=generator, device=device)
    axis = torch.arange(size, device=device, dtype=torch.float32)
    for number in range(MOST):
        there = number < objects
        kind = torch.randint(CLASSES, (count,), generator=generator, device=device)
        share, turn, centre = uniform(0, 1), uniform(0, 2 * math.pi), uniform(0.06, 0.94, 2) * size
        radius = RADII[0] * size * (RADII[1] / RADII[0]) ** share
        shape, dark = _shape(kind, axis, centre, radius, turn)
        shape &= there[:, None, None]
        ink = image.mean((2, 3)) + uniform(0.1, 0.45, 3) * (
            torch.randint(2, (count, 1), generator=generator, device=device) * 2 - 1
        )
        colour = torch.where(dark[:, None], image, ink[:, :, None, None])
        image = torch.where(shape[:, None], colour, image)
        mask = torch.where(shape, (kind + 1).to(torch.uint8)[:, None, None], mask)
        _enter(fine, kind, centre, size, FINE, there & (share <= SMALL))
        _enter(coarse, kind, centre, size, COARSE, there & (share > SMALL))
    noise = torch.randn(image.shape, generator=generator, device=device) * uniform(0.02, 0.14, 1, 1, 1)
    image = (image + noise).clamp(0, 1) + _specks(count, size, generator)[:, None]
    return Scenes((image - 0.5) * 4, mask, torch.cat([fine, coarse], 1))


def _smooth(knots: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.interpolate(knots, size=(size, size), mode="bilinear", align_corners=True)


def _shape(
    kind: torch.Tensor, axis: torch.Tensor, centre: torch.Tensor, radius: torch.Tensor, turn: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, size, size) bool: what each object covers, and where stripes let the ground through."""
    y = ((axis - centre[:, :1]) / radius[:, None])[:, :, None]
    x = ((axis - centre[:, 1:]) / radius[:, None])[:, None, :]
    cos, sin = turn.cos()[:, None, None], turn.sin()[:, None, None]
    u, v = cos * x + sin * y, cos * y - sin * x
    disc = u**2 + v**2 < 1
    shapes = [
        disc,
        torch.maximum(u.abs(), v.abs()) < 0.85,
        disc & (u**2 + v**2 > 0.4),
        (torch.minimum(u.abs(), v.abs()) < 0.3) & (torch.maximum(u.abs(), v.abs()) < 1),
        (u.abs() < 0.6 * (1 - v)) & (v > -0.7),
        disc,
    ]
    chosen = torch.stack(shapes).gather(0, kind[None, :, None, None].expand(1, *disc.shape))[0]
    return chosen, (kind == CLASSES - 1)[:, None, None] & ((7 * u).sin() > 0)


def _enter(
    grid: torch.Tensor, kind: torch.Tensor, centre: torch.Tensor, size: int, cell: int, which: torch.Tensor
) -> None:
    """Write the classes of the objects of `which` into the cells of their centres."""
    row, column = (centre / cell).long().clamp(0, size // cell - 1).unbind(1)
    place, rows = row * (size // cell) + column, torch.arange(len(grid), device=grid.device)
    grid[rows, place] = torch.where(which, (kind + 1).to(torch.uint8), grid[rows, place])


def _specks(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """(n, size, size) the light of the specks; nothing in most images."""
    device = generator.device

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(count, *shape, generator=generator, device=device)

    axis = torch.arange(size, device=device, dtype=torch.float32)
    speckled, light = uniform() < SPECKLED, torch.zeros(count, size, size, device=device)
    for _ in range(3):
        centre, width = uniform(2) * size, 0.5 + 1.5 * uniform(1)
        rows = torch.exp(-(((axis - centre[:, :1]) / width) ** 2))
        columns = torch.exp(-(((axis - centre[:, 1:]) / width) ** 2))
        strength = BRIGHTEST * (0.1 + 0.9 * uniform()) * speckled
        light += strength[:, None, None] * rows[:, :, None] * columns[:, None, :]
    return light
