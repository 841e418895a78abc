"""The networks that are searched for real: how, on which samples, and where their files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import samples
from benchmarks.peers.cases import CASES, Case

FINAL = 500  # samples for bitfront's own final check, which is no part of the comparison
DECODERS = {"map": "yolov8"}


@dataclass(frozen=True)
class Network:
    """How one network of `benchmarks.peers` is searched; all methods alike.

    Attributes:
        recover: as `--recover` takes it.
        samples: that the losses of a search are measured on.
        fresh: other samples, that the fronts are scored on at the end.
    """

    name: str
    recover: str
    samples: int
    fresh: int
    batch: int = 16
    backend: str = "onnxruntime"

    @property
    def case(self) -> Case:
        return CASES[self.name]


NETWORKS: Mapping[str, Network] = {
    network.name: network
    for network in (
        # Recovered INT8 loses nothing on the encoder, so that all INT8 would be the whole front.
        Network("encoder", "none", samples=1500, fresh=4000),
        # Scoring boxes takes ten times as long as running the engine.
        Network("detector", "auto", samples=600, fresh=1200),
        Network("mobile", "auto", samples=1500, fresh=4000),
    )
}


@dataclass(frozen=True)
class Files:
    """The samples of a network as `.npz` files in the work folder, drawn where they are not there yet.

    Calibration samples are those of `benchmarks.peers`. The others are drawn one after another from its samples for
    evaluation, so that no sample is in two files.
    """

    network: Network
    folder: Path

    @property
    def calibration(self) -> Path:
        return self.network.case.calibration_file(self.folder)

    @property
    def search(self) -> Path:
        return self._part("search", 0, self.network.samples)

    @property
    def final(self) -> Path:
        return self._part("final", self.network.samples, FINAL)

    @property
    def fresh(self) -> Path:
        return self._part("fresh", self.network.samples + FINAL, self.network.fresh)

    def _part(self, purpose: str, start: int, count: int) -> Path:
        path = self.folder / f"{self.network.name}-{purpose}-{start}-{count}.npz"
        if not path.exists():
            drawn = samples.draw(self.network.name, "evaluation", start + count)
            arrays: dict[str, Any] = {name: values[start:] for name, values in drawn.items()}
            draft = path.with_suffix(".draft.npz")
            np.savez(draft, **arrays)
            draft.replace(path)
        return path
