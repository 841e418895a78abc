"""The networks of the comparison: how each is scored, on how many samples, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers import samples
from benchmarks.peers.samples import Arrays
from benchmarks.trust.studies import EXAMPLE

DATA = Path(__file__).resolve().parent / "data"
CALIBRATION = 500  # samples that every method is given


@dataclass(frozen=True)
class Case:
    """One network.

    Attributes:
        kind: for the table.
        file: of the float model; in `DATA` where none is given.
        evaluation: samples that the loss is taken on, enough for an interval of about 0.3 points on both sides.
    """

    name: str
    kind: str
    metric: str
    evaluation: int = 10_000
    file: Path | None = None

    @property
    def model(self) -> Path:
        return self.file or DATA / f"{self.name}.onnx"

    def calibration(self) -> Arrays:
        return samples.draw(self.name, "calibration", CALIBRATION)

    def evaluation_samples(self) -> Arrays:
        return samples.draw(self.name, "evaluation", self.evaluation)

    def calibration_file(self, folder: Path) -> Path:
        """The calibration samples as .npz, with labels; written where they are not there yet."""
        path = folder / f"{self.name}-calibration.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft.npz")
            np.savez(draft, **self.calibration())  # type: ignore[arg-type]
            draft.replace(path)
        return path


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("residual", "residual CNN, ReLU", "top1"),
        Case("mobile", "MobileNetV3-like, h-swish, squeeze-and-excitation", "top1"),
        Case("detector", "two-headed detector, SiLU", "map", evaluation=6000),
        Case("segmenter", "U-Net, h-swish", "miou", evaluation=4000),
        Case("encoder", "transformer encoder, GELU", "top1"),
        Case("digits", "inverted residuals, ReLU6, rescaled after training", "top1", file=EXAMPLE / "digits.onnx"),
    )
}
