"""Simulated networks with their best-known fronts, kept as JSON so that they are fitted and searched once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.samplers.simulator import best_front, engine_rows, problem, simulator
from benchmarks.samplers.simulator.best_front import Front
from benchmarks.samplers.simulator.engine_rows import Rows
from benchmarks.samplers.simulator.problem import Problem
from benchmarks.samplers.simulator.simulator import Simulator

FOLDER = RESULTS
_CLOSE = 1e-4


@dataclass(frozen=True)
class Network:
    """A network to search, with what is known of it."""

    simulator: Simulator
    problem: Problem
    front: Front

    @property
    def volume(self) -> float:
        return self.front.volume(self.problem.reference)


def network(rows: Rows, folder: Path = FOLDER, rounds: int = best_front.ROUNDS) -> Network:
    """From the folder where it is known there, else made and kept; raises RowsError where the rows do not suffice."""
    file = folder / f"replay_{rows.name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if found.get("digest") == simulator.digest_of_rows(rows) and (known := _known(rows, found)) is not None:
        return known
    saved = simulator.to_json(simulator.make(rows))
    made = simulator.make(rows, saved)  # as it will be read back
    of = problem.make(made)
    front = best_front.find(of, rounds)
    _write(file, {"digest": made.digest, "simulator": saved, "front": _front_json(front)})
    return Network(made, of, front)


def by_name(name: str) -> Network:
    return network(engine_rows.read(name))


def _known(rows: Rows, found: Mapping[str, Any]) -> Network | None:
    """What was kept; None where this machine's arithmetic gives other answers."""
    made = simulator.make(rows, found["simulator"])
    of, kept = problem.make(made), found["front"]
    codes = np.array([[int(code) for code in row] for row in kept["codes"]], dtype=np.int64)
    ms, loss = of.measures(codes)
    same = np.allclose(ms, kept["ms"], rtol=_CLOSE, atol=0) and np.allclose(loss, kept["loss"], atol=_CLOSE)
    return Network(made, of, Front(codes, ms, loss, kept["tried"])) if same else None


def _front_json(front: Front) -> dict[str, Any]:
    return {
        "codes": ["".join(str(code) for code in row) for row in front.codes],
        "ms": [round(float(ms), 7) for ms in front.ms],
        "loss": [round(float(loss), 7) for loss in front.loss],
        "tried": front.tried,
    }


def _write(file: Path, found: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(found))
    draft.replace(file)
