"""Engines and scores of the comparison in a work folder, and what is published of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Arrays
from benchmarks.peers.scores import Scored, loss_of, score
from benchmarks.trust.scores import Loss

FLOAT = "fp32"


@dataclass
class CaseWork:
    """One network's engines by method, and their scores on the same samples.

    Attributes:
        folder: of all that is made; `METHOD.onnx` is an engine, `METHOD.npy` its scores.
    """

    case: Case
    folder: Path
    _known: dict[str, Scored] = field(default_factory=dict)

    @cached_property
    def evaluation(self) -> Arrays:
        return self.case.evaluation_samples()

    @property
    def calibration_file(self) -> Path:
        return self.case.calibration_file(self.folder)

    def engine(self, method: str) -> Path:
        return self.case.model if method == FLOAT else self.folder / f"{method}.onnx"

    def scored(self, method: str) -> Scored:
        """Scores of a method's engine; taken from the folder where they are newer than the engine."""
        engine, path = self.engine(method), self.folder / f"{self.case.name}-{method}.npy"
        if not path.exists() or path.stat().st_mtime < engine.stat().st_mtime:
            draft = path.with_suffix(".draft.npy")
            np.save(draft, score(engine, self.evaluation, self.case.metric).astype(np.float32))
            draft.replace(path)
            self._known.pop(method, None)
        if method not in self._known:
            self._known[method] = Scored(self.case.metric, np.load(path).astype(np.float64))
        return self._known[method]

    def value(self, method: str) -> float:
        return self.scored(method).value()

    def loss(self, method: str, against: str = FLOAT) -> Loss:
        """What a method's engine loses against another's, on the same samples."""
        return loss_of(self.scored(against), self.scored(method))


@dataclass(frozen=True)
class Results:
    """The published figures: one JSON file, complete at any time."""

    path: Path

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {"networks": {}, "runs": {}}

    def add(self, part: str, name: str, figures: dict[str, Any]) -> None:
        """Put figures under a name, in place of what stood there."""
        results = self.read()
        results.setdefault(part, {})[name] = figures
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        draft.replace(self.path)
