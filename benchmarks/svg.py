"""What the pictures of docs/ share: the document, and an entry of a legend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def document(width: float, height: float, parts: Sequence[str]) -> str:
    """An SVG file on white ground."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = ' font-family="sans-serif" font-size="12">'
    return f'{head}{style}\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"


def legend_entry(x: float, y: float, label: str, colour: str) -> str:
    line = f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
    return f'{line}<text x="{x + 24}" y="{y + 4}">{escape(label)}</text>'
