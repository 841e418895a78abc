"""What an evaluator process can be asked to open: a small network, its data and its ranges, in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from evaluators.process.job import Job
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges
from tests.support.networks import images, observed, plain_session, residual_cnn, save

SAMPLES = 240


@dataclass(frozen=True)
class Case:
    """A job in a folder of its own, with ranges unless they were left out."""

    folder: Path
    job: Job
    model: Model

    @property
    def out(self) -> Path:
        return self.folder / "candidate.engine"

    def uniform(self, precision: Precision) -> Assignment:
        return Assignment({group.id: precision for group in self.model.groups})

    def engines(self) -> list[str]:
        """Names of what candidates have left in the folder."""
        return sorted(path.name for path in self.folder.glob("*.engine*"))


def case(folder: Path, network: onnx.ModelProto | None = None, **changes: Any) -> Case:
    """A residual CNN, 240 images and, of classes, as labels what the float model says of them: FP32's top1 is 1."""
    network = network or residual_cnn(channels=8)
    path = save(network, folder / "model.onnx")
    model = load(path)
    shape = model.inputs[0].shape[1:]
    inputs = images(SAMPLES, shape=shape)
    arrays = {"image": inputs}
    if len(model.outputs[0].shape) == 2:
        arrays["labels"] = float_labels(network, model, inputs)
    np.savez(folder / "data.npz", allow_pickle=False, **arrays)
    job = Job(model=str(path), data=str(folder / "data.npz"), folder=str(folder / "work"))
    if "ranges" not in changes:
        changes["ranges"] = write_ranges(folder / "ranges.json", observed(model))
    return Case(folder, replace(job, **changes), model)


def float_labels(network: onnx.ModelProto, model: Model, inputs: NDArray[Any]) -> NDArray[Any]:
    session, step = plain_session(network), model.batch
    rows = [session.run(None, {"image": inputs[i : i + step]})[0] for i in range(0, len(inputs), step)]
    return np.asarray(np.concatenate(rows).argmax(axis=1))


def write_ranges(path: Path, ranges: Ranges | Mapping[str, Any]) -> str:
    path.write_text(json.dumps(ranges.to_json() if isinstance(ranges, Ranges) else ranges), encoding="utf-8")
    return str(path)
