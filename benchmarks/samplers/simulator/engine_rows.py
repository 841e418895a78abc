"""Rows of real engines, read for a simulator.

NETWORK.json has every evaluation of the searches of a trained network on an H200: what was asked and what ran, a letter
a group (f, h, i; ? where it cannot be told), latency, loss with its interval, and what the sampler was told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.samplers.simulator import MEASURED, PRECISIONS, noise
from benchmarks.samplers.simulator.noise import Noise
from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import Layout, make_layout
from search.values import LayerTime, Precision

DATA = ROOT / "benchmarks" / "data"
LETTERS = {"f": Precision.FP32, "h": Precision.FP16, "i": Precision.INT8}
_Z95 = 1.96
_ENOUGH = 5  # mixes that two studies share, to compare them
# Trained twice by one recipe and left as it was: an engine's time does not depend on the weights, and INT8 loses
# nothing of either. (The convolution networks were made harder to quantize after their first run.)
_ALSO = {"vit_small": ("h200_vit_small_even",)}

Floats = NDArray[np.float64]


class RowsError(ValueError):
    """Rows from which nothing can be simulated."""


@dataclass(frozen=True)
class Rows:
    """Engines of one network that were built as asked and measured.

    Attributes:
        layout: one decision a group, among the precisions that some row has there.
        precisions: (n, groups) int8.
        latency_ms: (n,).
        loss: (n,) as a share of one.
        loss_sd: (n,) its standard deviation of sampling.
        whole: (n,) whether the loss is that of all images; of others it was enough to see that they lose too much.
        baselines: label → place of the uniform row.
        profiles: layers of the uniform engines, in the order they ran; empty where none was profiled.
        alone: (groups, `PRECISIONS`) output error of each group alone, NaN where not measured; None where none was.
        noise: of measurements.
        left_out: rows that failed or ran otherwise than asked.
        digest: of the file.
    """

    name: str
    layout: Layout
    precisions: NDArray[np.int8]
    latency_ms: Floats
    loss: Floats
    loss_sd: Floats
    whole: NDArray[np.bool_]
    baselines: Mapping[str, int]
    profiles: Mapping[Precision, tuple[LayerTime, ...]]
    left_out: int
    digest: str
    alone: Floats | None = None
    noise: Noise = field(default_factory=Noise)

    def __len__(self) -> int:
        return len(self.precisions)


def names() -> list[str]:
    """Networks that there are rows of."""
    return [path.stem for path in sorted(DATA.glob("*.json")) if not path.stem.startswith("h200_")]


def read(name: str) -> Rows:
    """The rows of one of `names()`.

    Raises:
        RowsError: no such file, not of its format, or without the uniform engines.
    """
    return read_trained(DATA / f"{name}.json", [DATA / f"{more}.json" for more in _ALSO.get(name, ())])


def read_trained(path: Path, earlier: Sequence[Path] = ()) -> Rows:
    """The rows of a trained network, and those made `earlier` of the same groups; raises RowsError as `read`."""
    try:
        texts = [file.read_bytes() for file in (path, *earlier)]
        first, *others = map(json.loads, texts)
        rows, groups = _joined(first, others), _ids(len(first["groups"]))
        usable = [row for row in rows if _usable(row)]
        letters = [[MEASURED.index(LETTERS[letter]) for letter in row["a"]] for row in usable]
        precisions = np.array(letters, np.int8).reshape(-1, len(groups))
        half = np.array([(row["loss_high"] - row["loss_low"]) / 2 for row in usable])
        edges = _edges(first["edges"])
        speeds = _speeds(rows, first.get("workers", {}))
        latency_ms = np.array([row["lat"] * speeds.get(row.get("worker", row.get("source")), 1.0) for row in usable])
        latency_ms = _of_one_study(usable, latency_ms)
        alone = _alone(first.get("sensitivities", []), len(groups))
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RowsError(f"reading rows of {path}: expected groups, edges and rows of evaluations, got {what}") from None
    return Rows(
        name=path.stem,
        layout=_layout(groups, edges, precisions),
        precisions=precisions,
        latency_ms=latency_ms,
        loss=np.array([row["loss"] for row in usable]),
        loss_sd=half / _Z95,
        whole=np.array([row.get("samples") == row.get("total") for row in usable], bool),
        baselines=_baselines(path.stem, precisions),
        profiles={LETTERS[key]: _layers(layers, groups) for key, layers in first.get("profiles", {}).items()},
        left_out=len(rows) - len(usable),
        digest=hashlib.sha256(b"".join(texts)).hexdigest(),
        alone=alone,
        noise=noise.estimated(usable, latency_ms),
    )


def _joined(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All rows; each of the others is a study of its own, with uniform engines of its own."""
    rows = list(first["rows"])
    for number, other in enumerate(others):
        if other["groups"] != first["groups"]:
            raise ValueError("earlier rows of other groups")
        rows += [{**row, "source": f"earlier {number}"} for row in other["rows"]]
    return rows


def _usable(row: Mapping[str, Any]) -> bool:
    as_asked = all(got in ("?", letter) for got, letter in zip(row.get("got", row["a"]), row["a"], strict=True))
    return "lat" in row and "loss" in row and as_asked


def _speeds(rows: Sequence[Mapping[str, Any]], workers: Mapping[str, Mapping[str, float]]) -> dict[str | None, float]:
    """Worker or study → factor that makes its latencies those of the GPU that measured the first study's baselines."""
    uniform: dict[str | None, dict[str, float]] = {name: dict(ms) for name, ms in workers.items()}
    for row in rows:
        if "lat" in row and row.get("role", "").startswith("baseline:"):
            uniform.setdefault(row.get("source"), {})[row["role"].removeprefix("baseline:")] = row["lat"]
    study, factors = uniform.get("study", uniform.get(None, {})), {}
    for name, each in uniform.items():
        ratios = [study[label] / ms for label, ms in each.items() if label in study]
        factors[name] = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
    return factors


def _of_one_study(rows: Sequence[Mapping[str, Any]], latency_ms: Floats) -> Floats:
    """Mixes of other studies as fast as in the first.

    A study keeps a builder's timings, and with them its choices: two studies whose uniform engines agreed within 0.4 %
    had all their mixes 3 % apart.
    """
    mixed = [len(set(row["a"])) > 1 for row in rows]
    first = {
        row["a"]: ms for row, ms, mix in zip(rows, latency_ms, mixed, strict=True) if mix and _study(row) == "study"
    }
    latencies = latency_ms.copy()
    for study in {_study(row) for row in rows} - {"study"}:
        own = np.array([mix and _study(row) == study for row, mix in zip(rows, mixed, strict=True)])
        ratios = [first[rows[i]["a"]] / latency_ms[i] for i in np.flatnonzero(own).tolist() if rows[i]["a"] in first]
        if len(ratios) >= _ENOUGH:
            latencies[own] *= np.median(ratios)
    return latencies


def _study(row: Mapping[str, Any]) -> str:
    return str(row.get("source", "study"))


def _alone(rows: Sequence[Sequence[Any]], groups: int) -> Floats | None:
    """From [place of the group, letter, error or None where outputs were not finite]."""
    if not rows:
        return None
    errors = np.full((groups, PRECISIONS), np.nan)
    errors[:, MEASURED.index(Precision.FP32)] = 0.0
    worst = 10 * max([0.1, *(error for *_, error in rows if error is not None)])  # as studies/run/guidance/guidance.py
    for place, letter, error in rows:
        errors[place, MEASURED.index(LETTERS[letter])] = worst if error is None else error
    return errors


def _ids(count: int) -> tuple[str, ...]:
    return tuple(f"g{i:03d}" for i in range(count))


def _edges(triples: Sequence[Sequence[int]]) -> list[Edge]:
    def end(place: int) -> str | None:
        return None if place < 0 else f"g{place:03d}"

    return [Edge(end(s), end(t) or "", f"t{i}", size) for i, (s, t, size) in enumerate(triples)]


def _layout(groups: Sequence[str], edges: Sequence[Edge], precisions: NDArray[np.int8]) -> Layout:
    choices, variables = {}, []
    for group, seen in zip(groups, precisions.T, strict=True):
        offered = tuple(MEASURED[p] for p in np.unique(seen))
        choices[group] = tuple(Choice(p, p in offered, "" if p in offered else "no row has it") for p in MEASURED)
        if len(offered) > 1:
            variables.append(Variable(group, (group,), offered))
    return make_layout(groups, edges, Space(choices, tuple(variables)))


def _layers(layers: Sequence[Sequence[Any]], groups: Sequence[str]) -> tuple[LayerTime, ...]:
    """From [name, kind, place of its group or None, whether it only moves, ms]."""
    return tuple(LayerTime(n, kind, None if g is None else groups[g], moves, ms) for n, kind, g, moves, ms in layers)


def _baselines(name: str, precisions: NDArray[np.int8]) -> dict[str, int]:
    """The uniform rows: everywhere a precision, or where no row has it the next higher one."""
    baselines = {}
    for place, precision in enumerate(MEASURED):
        wanted = [max((p for p in np.unique(column) if p <= place), default=-1) for column in precisions.T]
        places = np.flatnonzero((precisions == np.array(wanted)).all(axis=1))
        if not len(places):
            raise RowsError(f"rows of {name}: there is none with every group in {precision.label}")
        baselines[precision.label] = int(places[0])
    return baselines
