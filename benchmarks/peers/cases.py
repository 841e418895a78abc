"""The networks of the comparison, and others: how each is scored, on how many samples, and where its files are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers import samples
from benchmarks.peers.samples import Arrays
from benchmarks.trust import samples as trust_samples
from benchmarks.trust.studies import EXAMPLE, model_of
from search.graph.onnx_file import read_input_shapes

DATA = Path(__file__).resolve().parent / "data"
CALIBRATION = 500  # samples that every method is given
SEARCH, FINAL = 3000, 1500  # samples by which candidates are judged, and by which bitfront alone confirms its picks


@dataclass(frozen=True)
class Case:
    """One network.

    Attributes:
        kind: for the table.
        evaluation: samples that the loss is taken on, enough for an interval of about 0.3 points on both sides.
        file: of the float model; in `DATA` where none is given.
        draw: (purpose, samples) → samples of the purpose `calibration` or `evaluation`; of `benchmarks.peers.samples`
            by the network's name where none is given.
        fitted: samples that calibrate.
    """

    name: str
    kind: str
    metric: str
    evaluation: int = 10_000
    file: Path | None = None
    draw: Callable[[str, int], Arrays] | None = None
    fitted: int = CALIBRATION

    @property
    def model(self) -> Path:
        return self.file or DATA / f"{self.name}.onnx"

    @property
    def batch(self) -> int | None:
        """The batch that the model takes; None where it takes any."""
        size = next(iter(read_input_shapes(self.model).values()))[0]
        return size if isinstance(size, int) else None

    def calibration(self) -> Arrays:
        return self._draw("calibration", self.fitted)

    def evaluation_samples(self) -> Arrays:
        return self._draw("evaluation", self.evaluation)

    def _draw(self, purpose: str, count: int) -> Arrays:
        draw = self.draw or partial(samples.draw, self.name)
        return draw(purpose, count)

    def calibration_file(self, folder: Path) -> Path:
        """The calibration samples as .npz, with labels; written where they are not there yet."""
        path = folder / f"{self.name}-calibration.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft.npz")
            np.savez(draft, **self.calibration())  # type: ignore[arg-type]
            draft.replace(path)
        return path


CASES: dict[str, Case] = {
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

_TRUST_PURPOSES = {"calibration": "study", "evaluation": "fresh"}


def _of_trust(name: str, network: str, kind: str, metric: str, evaluation: int = 10_000) -> Case:
    """A network of the trust benchmark."""

    def draw(purpose: str, count: int) -> Arrays:
        return trust_samples.draw(network, _TRUST_PURPOSES[purpose], count)

    return Case(name, kind, metric, evaluation, model_of(network), draw)


# No other quantizer is run on these.
OF_TRUST: dict[str, Case] = {
    case.name: case
    for case in (
        _of_trust("gated", "residual", "residual CNN, ReLU, squeeze-and-excitation", "top1"),
        _of_trust("heads", "heads", "inverted residuals, SiLU, two outputs", "benchmarks.trust.scores:both_tops"),
        _of_trust("unet", "segmentation", "U-Net, ReLU", "miou", 4000),
        _of_trust("wide-encoder", "encoder", "transformer encoder, GELU, wider", "top1"),
    )
}


def search_file(case: Case, folder: Path) -> Path:
    """The samples by which candidates are judged beside accuracy control, as .npz; written where they are not."""
    return _file(case, folder, "search", CALIBRATION, SEARCH)


def final_file(case: Case, folder: Path) -> Path:
    """The samples by which bitfront confirms its picks, as .npz."""
    return _file(case, folder, "final", CALIBRATION + SEARCH, FINAL)


def _file(case: Case, folder: Path, name: str, start: int, count: int) -> Path:
    path = folder / f"{case.name}-{name}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        drawn = samples.draw(case.name, "calibration", start + count)
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, **{key: array[start:] for key, array in drawn.items()})  # type: ignore[arg-type]
        draft.replace(path)
    return path
