"""Large studies that nobody measured, in SQLite or PostgreSQL, written in bulk with rows of the size of real ones."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, text

from benchmarks import synthetic
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from search.forecast.forecasts import MEASURED
from search.graph.grouping import Group
from search.values import Assignment, Precision, Target
from studies.options.read_options import read_config
from studies.store import records
from studies.store.database import tables
from studies.store.records import Choice, NewStudy, TargetRecord
from studies.store.store import Store, optuna_storage
from studies.trials.ledger import evaluation_digest

CHUNK = 2_000
SAMPLES = 1_000  # per-sample scores of an evaluation, where nothing else is said
WORKERS = 8
HOURS = 24.0  # over which the evaluations are spread
BASELINE_MS = 4.6
BOTH = (Precision.FP32, Precision.INT8)
LIMIT = 0.05  # loss that the studies allow, at most
METRIC = {"name": "top1", "unit": "", "higher_is_better": True, "ratio": True, "relative": False}


@dataclass(frozen=True)
class Rows:
    """Evaluations to write: (n, groups) 0 for FP32 and 1 for INT8, and what was measured of each."""

    groups: Sequence[str]
    chosen: NDArray[np.int8]
    latency_ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    failed: NDArray[np.bool_]
    early: NDArray[np.bool_]
    samples: int = SAMPLES

    def __len__(self) -> int:
        return len(self.chosen)

    def scored(self, row: int) -> int:
        """How many samples were scored; a third where that told that the mix loses more than is allowed."""
        return self.samples // 3 if self.early[row] else self.samples

    def assignment(self, row: int) -> Assignment:
        codes = self.chosen[row]
        return Assignment({group: BOTH[int(code)] for group, code in zip(self.groups, codes, strict=True)})


def made_up(groups: Sequence[str], count: int, seed: int = 0, samples: int = SAMPLES) -> Rows:
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
    return Rows(groups, chosen, latency_ms, loss, rng.random(count) < 0.02, early, samples)


def part(rows: Rows, kept: Sequence[int]) -> Rows:
    """Some of the rows."""
    at = np.array(kept, dtype=np.int64)
    columns = rows.chosen[at], rows.latency_ms[at], rows.loss[at], rows.failed[at], rows.early[at]
    return Rows(rows.groups, *columns, rows.samples)


def write_study(store: Store, name: str, groups: Sequence[str]) -> int:
    """A study without evaluations; the id of its target."""
    config = read_config({"model": "model.onnx", "data": "data.npz", "max-drop": f"{LIMIT:g}", "study": name})
    wanted = {**config.to_json(), "trials": 1_000_000}
    study = store.studies.create(NewStudy(name, "model.onnx", "0" * 64, wanted, {}, METRIC, {}, {}, "running"))
    store.studies.set_groups(study, [_group(group) for group in groups])
    target = store.targets.add(study, Target("onnxruntime", "Nobody's", {}, {}, "p20", True), f"{name}@nobody")
    store.targets.settle(target, latency_band=0.01)
    choices = [Choice(group, precision, code, True) for group in groups for code, precision in enumerate(BOTH)]
    store.spaces.set_choices(target, "0" * 64, choices)
    return target


def _group(group: str) -> Group:
    lists: dict[str, Any] = {"anchors": (group,), "nodes": (group,), "shape": (16, 64, 8, 8), "weight_shape": (64,)}
    empty: dict[str, Any] = dict.fromkeys(("weights", "inputs", "skips", "tensors"), ())
    return Group(id=group, name=f"/layer/{group}/Conv", op="Conv", output=group, block="", pinned="", **lists, **empty)


# -- on top of a real study -----------------------------------------------------------------------------------------


def fill_study(url: str, name: str, count: int) -> None:
    """Bring a study that ONNX Runtime began to so many evaluations and trials."""
    start, knobs = time.perf_counter(), OnnxRuntimeBackend().knobs()
    with Store.open(url) as store:
        study = store.studies.load(name)
        target = store.targets.of_study(study.id)[0]
        codes = {(choice.group, choice.precision): choice.code for choice in store.spaces.choices(target.id)}
        free = {pair: code for pair, code in codes.items() if code is not None}
        groups = [group.id for group in store.studies.groups(study.id)]
        there = store.evaluations.table(target.id)
        every, ranges = made_up(groups, count), target.ranges_digest or ""
        digests, known = (
            (evaluation_digest(every.assignment(row), ranges, knobs) for row in range(count)),
            set(there.digest),
        )
        new = [row for row, digest in enumerate(digests) if digest not in known]
        rows = part(every, new[: count - len(there)])
        first = int(there.trial[:].max()) + 1
        trials = range(first, first + len(rows))
        fill(store, target.id, rows, trials, lambda mix: evaluation_digest(mix, ranges, knobs))
    add_trials(url, target, rows, trials, free)
    print(f"{count} evaluations and trials, written in {time.perf_counter() - start:.0f} s", flush=True)


# -- our tables --------------------------------------------------------------------------------------------------------


def fill(store: Store, target: int, rows: Rows, trials: range, digest: Callable[[Assignment], str]) -> None:
    """Finished evaluations with audits, samples and scores, each the answer of its trial."""
    with store.database.writing("fill a study") as connection:
        first = (connection.scalar(text("select max(id) from bf_evaluation")) or 0) + 1
        for start in range(0, len(rows), CHUNK):
            piece = range(start, min(start + CHUNK, len(rows)))
            _write(connection, tables.Evaluation, (_evaluation(rows, i, first, target, digest) for i in piece))
            links = ((trials[i], first + i) for i in piece)
            trial = {"study_target_id": target, "reused": False}
            _write(connection, tables.Trial, ({**trial, "number": n, "evaluation_id": e} for n, e in links))
            _write(connection, tables.Sample, (row for i in piece for row in _samples(rows, i, first)))
            _write(connection, tables.Score, (_score(rows, i, first) for i in piece if not rows.failed[i]))
        pairs = "json_each_text" if _is_postgresql(connection) else "json_each"
        connection.execute(text(_AUDITS.format(pairs=pairs)), {"first": first})
        _raise_sequences(connection, {"bf_evaluation": "id"})
    if store.database.engine.dialect.name == "postgresql":
        analyze(store)


_CODE = f"case a.value when 'fp32' then {Precision.FP32.id} else {Precision.INT8.id} end"
_AUDITS = f"""
insert into bf_audit (evaluation_id, "group", asked, got, kernel)
select e.id, a.key, {_CODE}, {_CODE}, 'QLinearConv' from bf_evaluation e, {{pairs}}(e.assignment) a
where e.id >= :first and e.status = 'ok'
"""


def _is_postgresql(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def _raise_sequences(connection: Connection, keys: Mapping[str, str]) -> None:
    """Let PostgreSQL go on counting from what was written."""
    for table, key in keys.items() if _is_postgresql(connection) else ():
        connection.execute(text(f"select setval('{table}_{key}_seq', (select max({key}) from {table}))"))


def analyze(store: Store) -> None:
    """What autovacuum has done by the time that a study is so large."""
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze"))


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
        "assignment": assignment.to_json(),
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
        "total_samples": rows.samples,
        "size_bytes": synthetic.ENGINE_BYTES,
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
        yield {**row, "baseline_ms": BASELINE_MS, "warnings": [], "samples": os.urandom(4 * synthetic.INFERENCES)}


def _score(rows: Rows, i: int, first: int) -> dict[str, Any]:
    loss = float(rows.loss[i])
    values = {"value": 0.96 - loss, "loss": loss, "loss_low": loss - 0.004, "loss_high": loss + 0.004}
    samples = {"samples": rows.scored(i), "total": rows.samples}
    # Zeros and ones as float32 hold little information, which databases pack.
    scores = os.urandom(rows.scored(i) // 8) * 32
    row = {"evaluation_id": first + i, "split": "search", "metric": "top1", **samples}
    return {**row, **values, "scores": scores}


# -- Optuna's tables ---------------------------------------------------------------------------------------------------


def add_trials(
    url: str, target: TargetRecord, rows: Rows, trials: range, codes: dict[tuple[str, Precision], int]
) -> None:
    """The trials that these evaluations answered, as Optuna's own way of adding them writes them, but in bulk.

    Args:
        codes: of every precision that the sampler may propose of a group; groups without are no parameters.
    """
    import optuna
    from optuna.storages._rdb import models

    storage = optuna_storage(url)
    study_id = storage.get_study_id_from_name(target.optuna_study)
    free = optuna.distributions.distribution_to_json(optuna.distributions.IntDistribution(0, 1))
    states, now = optuna.trial.TrialState, datetime.now()
    columns = [column for column, group in enumerate(rows.groups) if (group, Precision.INT8) in codes]
    finite = models.TrialValueModel.TrialValueType.FINITE
    with storage.engine.begin() as connection:
        first = (connection.scalar(text("select max(trial_id) from trials")) or 0) + 1
        for start in range(0, len(rows), CHUNK):
            piece = range(start, min(start + CHUNK, len(rows)))
            good = [i for i in piece if not rows.failed[i]]
            trial = {"study_id": study_id, "datetime_start": now, "datetime_complete": now}
            _write(connection, models.TrialModel, (
                {**trial, "trial_id": first + i, "number": trials[i]}
                | {"state": states.FAIL if rows.failed[i] else states.COMPLETE} for i in piece
            ))  # fmt: skip
            _write(connection, models.TrialParamModel, (
                {"trial_id": first + i, "param_name": rows.groups[c], "distribution_json": free}
                | {"param_value": float(codes[rows.groups[c], BOTH[int(rows.chosen[i, c])]])}
                for i in piece for c in columns
            ))  # fmt: skip
            _write(connection, models.TrialValueModel, (
                {"trial_id": first + i, "objective": objective, "value": float(values[i]), "value_type": finite}
                for i in good for objective, values in enumerate((rows.latency_ms, rows.loss))
            ))  # fmt: skip
            _write(connection, models.TrialSystemAttributeModel, (
                {"trial_id": first + i, "key": f"constraints:{key}", "value_json": json.dumps(value)}
                for i in good for key, value in (("obeyed", 0.0), ("loss", float(rows.loss[i]) - 0.05))
            ))  # fmt: skip
            _write(connection, models.TrialUserAttributeModel, (
                {"trial_id": first + i, "key": MEASURED, "value_json": f"[0.02, 0.002, {float(not rows.early[i])}]"}
                for i in good
            ))  # fmt: skip
        _raise_sequences(connection, {"trials": "trial_id", "trial_params": "param_id"})
    storage.remove_session()
    storage.engine.dispose()
