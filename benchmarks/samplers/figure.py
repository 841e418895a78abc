"""Median share of the best-known hypervolume over trials as SVG, quartiles shaded."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.scores import median_curve
from benchmarks.samplers.tables import NAMES
from benchmarks.svg import document, legend_entry

COLOURS = ("#0b6e4f", "#d1495b", "#30638e", "#edae49", "#7b5ea7", "#5c5c5c", "#00a6a6", "#a44a3f", "#89a30f", "#c77dff")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _LEGEND, _ROW = 420, 300, 50, 34, 50, 280, 390
_COLUMNS = 3


def svg(results: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """One panel a network, three in a row, and a legend."""
    networks, trials = list(results["networks"]), results["about"]["trials"]
    colours = dict(zip(labels, [COLOURS[i % len(COLOURS)] for i in range(len(labels))], strict=True))
    parts, shown = [], set()
    for number, name in enumerate(networks):
        row, column = divmod(number, _COLUMNS)
        panel = [_frame(_LEFT, NAMES.get(name, name), trials)]
        for method, colour in colours.items():
            runs = results["runs"].get(f"{name}|{method}", {})
            if runs:
                shown.add(method)
                panel.append(_curves(median_curve(runs, trials), _LEFT, colour, dashed="without" in method))
        place = f"translate({column * (_WIDTH + _GAP)} {row * _ROW})"
        parts.append(f'<g transform="{place}">\n' + "\n".join(panel) + "\n</g>")
    width = _LEFT + min(len(networks), _COLUMNS) * (_WIDTH + _GAP) + _LEGEND
    for line, method in enumerate(m for m in labels if m in shown):
        parts.append(legend_entry(width - _LEGEND, _TOP + 10 + 20 * line, labels[method], colours[method]))
    height = -(-len(networks) // _COLUMNS) * _ROW
    return document(width, height, parts)


def _frame(left: int, title: str, trials: int) -> str:
    bottom = _TOP + _HEIGHT
    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        y = _y(share)
        parts.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for trial in range(0, trials + 1, max(5, trials // 5 // 5 * 5)):
        x = left + _WIDTH * trial / trials
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{trial}</text>')
    parts.append(f'<text x="{left + _WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">trials</text>')
    return "\n".join(parts)


def _curves(quartiles: NDArray[np.float64], left: int, colour: str, dashed: bool) -> str:
    low, middle, high = (_points(row, left) for row in quartiles)
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return (
        f'<polygon points="{" ".join([*low, *reversed(high)])}" fill="{colour}" opacity="0.12"/>\n'
        f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    )


def _points(shares: NDArray[np.float64], left: int) -> list[str]:
    """A point a trial; of level stretches only the ends."""
    ys = [f"{_y(share):.1f}" for share in shares]
    ends = [i for i, y in enumerate(ys) if not (0 < i < len(ys) - 1 and ys[i - 1] == y == ys[i + 1])]
    return [f"{left + _WIDTH * (i + 1) / len(ys):.1f},{ys[i]}" for i in ends]


def _y(share: float) -> float:
    return _TOP + _HEIGHT * (1 - min(max(share, 0.0), 1.02))
