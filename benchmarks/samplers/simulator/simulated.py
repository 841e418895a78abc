"""Simulated networks with their best-known fronts, kept as JSON: what was learned of the rows, and the front."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import RESULTS
from benchmarks.samplers.simulator import best_front, engine_rows, problem, simulator
from benchmarks.samplers.simulator.best_front import Front
from benchmarks.samplers.simulator.engine_rows import Rows, RowsError
from benchmarks.samplers.simulator.problem import Problem
from benchmarks.samplers.simulator.simulator import Simulator


@dataclass(frozen=True)
class Network:
    """A network to search, with what is known of it."""

    simulator: Simulator
    problem: Problem
    front: Front

    @property
    def volume(self) -> float:
        return self.front.volume(self.problem.reference)


def network(rows: Rows, folder: Path = RESULTS) -> Network:
    """What is kept of these rows, the front measured anew; raises RowsError where other rows were learned from."""
    file = folder / f"replay_{rows.name}.json"
    kept = json.loads(file.read_text())
    if kept["digest"] != simulator.digest_of_rows(rows):
        raise RowsError(f"simulating {rows.name}: {file} was learned from other rows than those of benchmarks/data")
    made = simulator.make(rows, kept["simulator"])
    of = problem.make(made)
    front = best_front.measured(of, np.array([[*map(int, row)] for row in kept["front"]["codes"]], dtype=np.int64))
    return Network(made, of, Front(front.codes, front.ms, front.loss, kept["front"]["tried"]))


def by_name(name: str, folder: Path = RESULTS) -> Network:
    return network(engine_rows.read(name), folder)
