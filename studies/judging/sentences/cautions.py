"""Warnings that accompany numbers which nobody measured."""

from __future__ import annotations

from evaluators.backends.registry import BACKENDS, kind_named
from search.values import Target


def caution_text(target: Target) -> str:
    """The caution of a target's backend; empty if its numbers were measured, or where it is not known here."""
    return kind_named(target.backend).caution if target.backend in BACKENDS.shipped else ""
