"""bitfront's side of the comparison: a search by the command line, its pick, and any mix with the recovery of a study.

A study is made anew where it is there, so that what is told of it is of one search.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import bitfront
from benchmarks.peers.cases import Case, final_file, search_file
from bitfront import verbs
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from search.graph import onnx_file
from search.graph.model import load
from search.space.choices import make_space
from search.values import Precision, Ranges
from studies.inspect.mix.read_mix import read_mix

BATCH = 16
_STUDY = "control"
_DECODERS = {"map": "yolov8"}


@dataclass(frozen=True)
class Study:
    """One search of a network.

    Attributes:
        folder: of its database and its export; `engine/model.onnx` is the pick.
        drop: most loss, a share of one.
    """

    case: Case
    folder: Path
    drop: float

    @property
    def pick(self) -> Path:
        return self.folder / "engine" / "model.onnx"

    @property
    def _storage(self) -> str:
        return f"sqlite:///{(self.folder / 'study.db').absolute()}"

    def search(self, data: Path, trials: int, time_limit: str = "none") -> dict[str, Any]:
        """Search and export `best`; what is told of them.

        Args:
            data: folder of the labelled samples.
            time_limit: as `--time-limit` takes it.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        case, start = self.case, time.perf_counter()
        decode = ("--decode", _DECODERS[case.metric]) if case.metric in _DECODERS else ()
        said = bitfront(
            *("search", str(case.model), "--data", str(search_file(case, data))),
            *("--calibration-data", str(case.calibration_file(data))),
            *("--final-data", str(final_file(case, data)), "--metric", case.metric, *decode),
            *("--study", _STUDY, "--storage", self._storage, "--backend", "onnxruntime", "--recover", "auto"),
            *("--batch", str(case.batch or BATCH), "--max-drop", f"{self.drop:g}", "--trials", str(trials)),
            *("--time-limit", time_limit),
        )
        (self.folder / "search.txt").write_text(said)
        seconds = time.perf_counter() - start
        where = ("--storage", self._storage)
        bitfront("export", _STUDY, "--out", str(self.folder / "engine"), *where, "--latency-tolerance", "100%")
        return {"seconds": round(seconds, 1), "trials": trials, **self._read_outcome()}

    def _read_outcome(self) -> dict[str, Any]:
        """The figures of the exported pick, and how much was evaluated."""
        front: dict[str, Any] = json.loads(bitfront("front", _STUDY, "--storage", self._storage, "--json"))
        manifest = json.loads((self.folder / "engine" / "manifest.json").read_text())
        table, best = verbs.front(_STUDY, storage=self._storage).standing.table, front["best"]
        rows = {row["role"]: row for row in front["rows"] if row["role"]}
        return {
            "evaluations": len(table),
            "scored": int(table.samples[table.samples > 0].sum()),
            "trial": manifest["trial"],
            "verdict": manifest["final"].get("verdict"),
            "float_nodes": self._float_ops(manifest["precision"]),
            "over_fp32": 1 / best["speedup"] if best else None,
            "search_loss": best["loss"] if best else None,
            "final_loss": best["final_loss"] if best else None,
            "uniform": {role: {key: row[key] for key in ("speedup", "loss")} for role, row in rows.items()},
            "band": front["latency_tie_band"],
        }

    def _float_ops(self, precision: Mapping[str, str]) -> list[str]:
        """Weighted ops that INT8 was offered for and that run in float."""
        model, space, _ = self._lowering()
        offered = {group for group, precision in space.lower_pairs() if precision is Precision.INT8}
        return sorted(each.name for each in model.groups if each.id in offered and precision[each.name] == "fp32")

    def lower(self, mix: str, out: Path) -> tuple[str, ...]:
        """Write a mix as ONNX, with the ranges and the recovery of this study, as `bitfront evaluate` builds it.

        Args:
            mix: as `bitfront evaluate --assign` takes it.

        Returns:
            Which layers cannot run as wanted.
        """
        model, space, builder = self._lowering()
        wanted = read_mix(mix, model.groups, space)
        onnx_file.write(builder.lower(wanted.assignment), out)
        return wanted.notes

    def _lowering(self) -> tuple[Any, Any, Any]:
        """Model, space and builder."""
        ranges = Ranges.from_json(json.loads((self.folder / "engine" / "ranges.json").read_text()))
        backend = OnnxRuntimeBackend(threads=1)
        model = load(self.case.model, batch=self.case.batch or BATCH).scale_constants(ranges.recovery.factors)
        return model, make_space(model, backend.capability(), ranges), backend.builder(model, ranges)
