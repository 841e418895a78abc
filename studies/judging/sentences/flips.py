"""Sentences about the samples whose class a lower precision changes."""

from __future__ import annotations

from search.values import FlippedSamples, Flips
from studies.options.quantities import format_percent


def flip_texts(flips: Flips) -> list[str]:
    """One sentence that counts them, and one for each kind that there is, with the first indices."""
    share = format_percent(flips.count / flips.samples) if flips.samples else "none"
    told = [f"{flips.count} of {flips.samples} samples ({share}) have another class than in FP32"]
    if flips.right is None:
        return told + _flip_lines("whose class differs and for which the data have no label", flips.moved)
    wrong = flips.samples - flips.right
    told += _flip_lines(f"of the {flips.right} that FP32 had right are wrong now", flips.lost)
    told += _flip_lines(f"of the {wrong} that FP32 had wrong are right now", flips.gained)
    return told + _flip_lines(f"of the {wrong} that FP32 had wrong are wrong in another way", flips.moved)


def _flip_lines(what: str, those: FlippedSamples) -> list[str]:
    if not those.count:
        return []
    more = ", …" if those.count > len(those.first) else ""
    return [f"{those.count} {what}: {', '.join(map(str, those.first))}{more}"]
