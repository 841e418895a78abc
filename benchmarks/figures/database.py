"""How quickly a large study answers: `bitfront front` on 10,000 evaluations that nobody measured.

38 groups, with audit, samples and per-sample scores of the sizes that real ones have, written in bulk into SQLite.

usage: python -m benchmarks.figures.database [--evaluations 10000] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, text

from benchmarks import ROOT
from benchmarks.example import load_text
from bitfront import verbs
from evaluators.process.results import DataDescription, MetricDescription
from search.graph.grouping import Group
from search.values import Assignment, Precision, Target
from studies.options.read_options import read_config
from studies.store import records
from studies.store.database import tables
from studies.store.records import ChoiceRecord, StudyRecord
from studies.store.store import Store
from studies.trials.ledger import evaluation_digest

GROUPS = [f"g{number:03}" for number in range(38)]  # as many as the example has
REPEATS = 3
CHUNK = 2_000
SAMPLES = 2_988  # per-sample scores of an evaluation
INFERENCES = 120  # of one latency measurement, and as many of the baseline
ENGINE_BYTES = 320_000
WORKERS = 8
HOURS = 24.0  # over which the evaluations are spread
BASELINE_MS = 4.6
BOTH = (Precision.FP32, Precision.INT8)
LIMIT = 0.05  # loss that the study allows
MODEL = {"inputs": [["image", "float32", [16, 3, 32, 32]]]}
DATA = asdict(DataDescription("0" * 64, "0" * 64, "0" * 64, 100, 1000, 1000, {}))
METRIC = asdict(MetricDescription("top1", "", True, True, "per_sample", relative=False, notes=()))


def main(evaluations: int = 10_000, keep: Path | None = None) -> dict[str, float]:
    """Seconds: `front_s` of the command, `front_call_s` of the function, `front_import_s` of the start alone."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        times = front_times(folder, evaluations)
    print(f"medians of {REPEATS}; {load_text()}")
    return times


def front_times(folder: Path, count: int) -> dict[str, float]:
    path = folder / "front.db"
    url, start = f"sqlite:///{path}", time.perf_counter()
    with Store.open(url, create=True) as store:
        target = write_study(store, "digits", GROUPS)
        fill(store, target, made_up(GROUPS, count), range(count), lambda mix: evaluation_digest(mix, "", {}))
    print(f"{count} evaluations x {len(GROUPS)} groups: {path.stat().st_size / 2**20:.0f} MiB", end=", ")
    print(f"written in {time.perf_counter() - start:.0f} s")
    times = {
        "front_s": median_s(lambda: run("front", "digits", "--storage", url)),
        "front_import_s": median_s(lambda: run("status", "--help")),
        "front_call_s": median_s(lambda: verbs.front("digits", storage=url)),
    }
    print(f"front: command {times['front_s']:.2f} s (of it {times['front_import_s']:.2f} s to start)", end=", ")
    print(f"function {times['front_call_s']:.2f} s", flush=True)
    return times


def median_s(act: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]


def run(*arguments: Any) -> None:
    command = [sys.executable, "-m", "bitfront", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: exit {done.returncode}\n{done.stderr}")


# -- the study ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Evaluations to write: (n, groups) 0 for FP32 and 1 for INT8, and what was measured of each."""

    groups: Sequence[str]
    chosen: NDArray[np.int8]
    latency_ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    failed: NDArray[np.bool_]
    early: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.chosen)

    def scored(self, row: int) -> int:
        """How many samples were scored; a third where that told that the mix loses more than is allowed."""
        return SAMPLES // 3 if self.early[row] else SAMPLES

    def assignment(self, row: int) -> Assignment:
        codes = self.chosen[row]
        return Assignment({group: BOTH[int(code)] for group, code in zip(self.groups, codes, strict=True)})


def made_up(groups: Sequence[str], count: int, seed: int = 0) -> Rows:
    """Distinct assignments of every share of INT8; each group has a gain and a cost of its own, and there is noise."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros((0, len(groups)), np.int8)
    while len(chosen) < count:
        more = (rng.random((count, len(groups))) < rng.random((count, 1))).astype(np.int8)
        both = np.concatenate([chosen, more])
        _, first = np.unique(both, axis=0, return_index=True)
        mixed = np.sort(first)
        chosen = both[mixed[both[mixed].any(axis=1) & ~both[mixed].all(axis=1)]]
    chosen = chosen[:count]
    gain, cost = np.random.default_rng(7).exponential(size=(2, len(groups)))
    latency_ms = (BASELINE_MS - 2.6 * (chosen @ gain) / gain.sum()) * rng.normal(1, 0.005, count)
    loss = np.maximum(0.1 * (chosen @ cost) / cost.sum() + rng.normal(0, 0.001, count), 0.0)
    early = (loss > LIMIT + 0.01) & (rng.random(count) < 0.5)
    return Rows(groups, chosen, latency_ms, loss, rng.random(count) < 0.02, early)


def write_study(store: Store, name: str, groups: Sequence[str]) -> int:
    """A study without evaluations; the id of its target."""
    config = read_config({"model": "model.onnx", "data": "data.npz", "max-drop": f"{LIMIT:g}", "study": name})
    wanted = {**config.to_json(), "trials": 1_000_000}
    facts = {"config": wanted, "data": DATA, "metric": METRIC, "model": MODEL, "environment": {}, "state": "running"}
    new = StudyRecord(name=name, model_path="model.onnx", model_digest="0" * 64, **facts)
    study = store.studies.create(new, groups=[_group(group) for group in groups])
    target = store.targets.add(study, Target("onnxruntime", "Nobody's", {}, {}, "p20", True), f"{name}@nobody")
    store.targets.settle(target, latency_band=0.01)
    choices = [
        ChoiceRecord(group=group, precision=precision, code=code, offered=True)
        for group in groups
        for code, precision in enumerate(BOTH)
    ]
    store.spaces.set_choices(target, "0" * 64, choices)
    return target


def _group(group: str) -> Group:
    lists: dict[str, Any] = {"anchors": (group,), "nodes": (group,), "shape": (16, 64, 8, 8), "weight_shape": (64,)}
    empty: dict[str, Any] = dict.fromkeys(("weights", "inputs", "skips", "tensors"), ())
    return Group(id=group, name=f"/layer/{group}/Conv", op="Conv", output=group, block="", pinned="", **lists, **empty)


def fill(store: Store, target: int, rows: Rows, trials: range, digest: Callable[[Assignment], str]) -> None:
    """Finished evaluations with audits, samples and scores, each the answer of its trial."""
    with store.database.begin_write("fill a study") as connection:
        first = (connection.scalar(text("select max(id) from bf_evaluation")) or 0) + 1
        for start in range(0, len(rows), CHUNK):
            piece = range(start, min(start + CHUNK, len(rows)))
            _write(connection, tables.EvaluationRecord, (_evaluation(rows, i, first, target, digest) for i in piece))
            links = ((trials[i], first + i) for i in piece)
            trial = {"study_target_id": target, "reused": False}
            _write(connection, tables.TrialRecord, ({**trial, "number": n, "evaluation_id": e} for n, e in links))
            _write(connection, tables.SampleRecord, (row for i in piece for row in _samples(rows, i, first)))
            _write(connection, tables.ScoreRecord, (_score(rows, i, first) for i in piece if not rows.failed[i]))
        connection.execute(text(_AUDITS), {"first": first})


_CODE = f"case a.value when 'fp32' then {Precision.FP32.id} else {Precision.INT8.id} end"
_AUDITS = f"""
insert into bf_audit (evaluation_id, "group", asked, got, kernel)
select e.id, a.key, {_CODE}, {_CODE}, 'QLinearConv' from bf_evaluation e, json_each(e.assignment) a
where e.id >= :first and e.status = 'ok'
"""


def _write(connection: Connection, table: Any, rows: Iterator[dict[str, Any]]) -> None:
    listed = list(rows)
    if listed:
        connection.execute(insert(table), listed)


def _evaluation(rows: Rows, i: int, first: int, target: int, digest: Callable[[Assignment], str]) -> dict[str, Any]:
    assignment, failed, loss = rows.assignment(i), bool(rows.failed[i]), float(rows.loss[i])
    ended = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(hours=HOURS * (1 - (i + 1) / len(rows)))
    row: dict[str, Any] = {
        "id": first + i,
        "study_target_id": target,
        "digest": digest(assignment),
        "status": records.FAILED if failed else records.OK,
        "stage": "build" if failed else None,
        "kind": "refused" if failed else None,
        "message": "no kernel for this mix" if failed else None,
        "role": {0: "baseline:fp32", 1: "baseline:int8"}.get(first + i - 1, ""),
        "started_at": ended - timedelta(seconds=5),
        "finished_at": ended,
        "worker": f"w-{i % WORKERS:06x}",
        "assignment": assignment,
        "notes": [],
        "engine": None if failed else {"layers": 60, "moves": 12, "opaque": 0, "sparse": 0},
    }
    measured = {
        "raw_ms": float(rows.latency_ms[i]),
        "baseline_ms": BASELINE_MS,
        "spread": 0.02,
        "metric_value": 0.96 - loss,
        "loss": loss,
        "loss_low": loss - 0.004,
        "loss_high": loss + 0.004,
        "samples": rows.scored(i),
        "total_samples": SAMPLES,
        "size_bytes": ENGINE_BYTES,
        "memory_bytes": 6_000_000,
        "build_s": 0.2,
        "total_s": 1.5,
    }
    return {**row, **(dict.fromkeys(measured) if failed else measured)}


def _samples(rows: Rows, i: int, first: int) -> Iterator[dict[str, Any]]:
    if rows.failed[i]:
        return
    for role, ms in (("candidate", float(rows.latency_ms[i])), ("baseline", BASELINE_MS)):
        row = {"evaluation_id": first + i, "round": 0, "role": role, "raw_ms": ms, "spread": 0.02}
        yield {**row, "baseline_ms": BASELINE_MS, "warnings": [], "samples": os.urandom(4 * INFERENCES)}


def _score(rows: Rows, i: int, first: int) -> dict[str, Any]:
    loss = float(rows.loss[i])
    values = {"value": 0.96 - loss, "loss": loss, "loss_low": loss - 0.004, "loss_high": loss + 0.004}
    samples = {"samples": rows.scored(i), "total": SAMPLES}
    # Zeros and ones as float32 hold little information, which databases pack.
    scores = os.urandom(rows.scored(i) // 8) * 32
    row = {"evaluation_id": first + i, "split": "search", "metric": "top1", **samples}
    return {**row, **values, "scores": scores}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="folder for the database, to look at")
    arguments = parser.parse_args()
    main(arguments.evaluations, arguments.keep)
