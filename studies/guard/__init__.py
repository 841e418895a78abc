"""Guarding an engine in service: comparing it with a safe one, and falling back to that when it goes wrong.

A small library for the serving process. It searches nothing, opens no database and imports neither SQLAlchemy, Optuna
nor Plotly.
"""

from __future__ import annotations

from studies.guard.guard import Guard
from studies.guard.options import GuardError, GuardOptions
from studies.guard.samples.reservoir import Reservoir
from studies.guard.state import BreakerState, GuardState

__all__ = ["BreakerState", "Guard", "GuardError", "GuardOptions", "GuardState", "Reservoir"]
