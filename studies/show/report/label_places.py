"""Placing the labels of a figure so that none covers a marker or another label at any width of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WIDTHS, _HEIGHT = (330.0, 600.0, 950.0), 360.0  # of the plot in pixels, on a telephone and on screens
_MARKER, _LETTER, _LINE = 11.0, 10.0, 20.0  # half a marker, a letter's width, a line's height
_REACHES = (24.0, 40.0, 58.0)
_SIDES = ((0, -1), (1, 0), (0, 1), (-1, 0), (0.8, -0.8), (0.8, 0.8), (-0.8, -0.8), (-0.8, 0.8))
Box = tuple[float, float, float, float]
Offset = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A marker that has a label; `x` and `y` are shares of the plot's width and height, from its upper left."""

    text: str
    x: float
    y: float


def place_labels(marks: Sequence[Mark]) -> list[Offset]:
    """The middle of each label, in pixels from its marker; the nearest place that is free, else the first."""
    offsets: list[Offset] = []
    for number, mark in enumerate(marks):
        places = list(_candidates(mark))
        free = (offset for offset in places if _is_free(marks, offsets, number, offset))
        offsets.append(next(free, places[0]))
    return offsets


def _candidates(mark: Mark) -> Iterator[Offset]:
    """Above, right, below, left and between, near ones first; a wide text needs more room beside its marker."""
    half = _LETTER * len(mark.text) / 2
    for reach in _REACHES:
        for x, y in _SIDES:
            yield x * (reach + max(0.0, half - _LETTER / 2)), y * reach


def _is_free(marks: Sequence[Mark], placed: Sequence[Offset], number: int, offset: Offset) -> bool:
    return all(_is_free_at(marks, placed, number, offset, width) for width in _WIDTHS)


def _is_free_at(marks: Sequence[Mark], placed: Sequence[Offset], number: int, offset: Offset, width: float) -> bool:
    box = _label(marks[number], offset, width)
    inside = box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= _HEIGHT
    others = [_label(mark, at, width) for mark, at in zip(marks, placed, strict=False)]
    return inside and not any(_overlap(box, other) for other in (*others, *(_marker(mark, width) for mark in marks)))


def _label(mark: Mark, offset: Offset, width: float) -> Box:
    x, y = mark.x * width + offset[0], mark.y * _HEIGHT + offset[1]
    half = _LETTER * len(mark.text) / 2
    return x - half, y - _LINE / 2, x + half, y + _LINE / 2


def _marker(mark: Mark, width: float) -> Box:
    x, y = mark.x * width, mark.y * _HEIGHT
    return x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
