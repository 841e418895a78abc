"""Studies with a few rows in their database, and workers of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from sqlalchemy import create_engine, func, select, update

from search.graph.model import Group
from search.values import (
    BOUND_TRIES,
    Accuracy,
    Assignment,
    AuditRow,
    EngineSummary,
    Evaluation,
    Latency,
    LayerTime,
    Precision,
    Target,
)
from studies.judging.rules.verdicts import STORED, quantile
from studies.options.read_options import read_config
from studies.store.database import column_types, database, tables
from studies.store.store import Store
from tests.support.made_once import copy_tables, make_tables
from tests.support.records import METRIC, MODEL, study_record
from tests.support.servers.databases import mariadb_url, postgresql_url

GIVEN = os.environ.get("BITFRONT_TEST_URL")  # one more, say MySQL 8: a database whose bf_ tables may be dropped
TARGET = Target("onnxruntime", "CPU", {"onnxruntime": "1.23"}, {"threads": "1"}, "p20", True)
STUDY = study_record("demo", model={"inputs": [["ü", "float32", [1]]]}, environment={"python": "3"})
ENGINE = EngineSummary(layers=9, moves=3, opaque=1, sparse=2, moves_ms=0.125, profiled_ms=1.5)
DETAILS = {"layer": "conv + relu", "weights": "Int8", "inputs": "Int8 NC/32HW32", "outputs": "Half NC/2HW2"}
AROUND = {"host_to_device": 0.5, "device_to_host": 0.25, "enqueue": 0.125}
CONDITIONS = {
    "before": {"sm_clock_mhz": 1980, "temperature_c": 41, "power_w": 310.5, "throttled": [], "other_processes": 0},
    "after": {"sm_clock_mhz": 1830, "temperature_c": 44, "power_w": 695.5, "throttled": ["power cap"]},
    "throttled": ["power cap"],
}
LAYERS = (
    LayerTime("conv + relu", "CaskConvolution", "g000", False, 0.25),
    LayerTime("Reformatting CopyNode", "Reformat", None, True, 0.125),
)
SERVERS = ["postgresql", "mariadb", *(["given"] if GIVEN else [])]
KINDS = ["sqlite", *SERVERS]
SQLITE_ALONE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # of the contract of the store
LEASE_S = 60.0
WORKERS = 6
T = TypeVar("T")


def fresh_url(kind: str, tmp_path: Path, *, with_tables: bool = False) -> str:
    """An empty database: a file, a new one on a server, or the one given with our tables dropped.

    Args:
        with_tables: it may have empty tables where copying them is quicker than making them.
    """
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'a.db'}"
        if with_tables:
            copy_tables(url)
        return url
    if kind == "given":
        return _emptied(str(GIVEN))
    return postgresql_url(make_tables if with_tables else None) if kind == "postgresql" else mariadb_url()


def _emptied(url: str) -> str:
    engine = create_engine(url)
    tables.Base.metadata.drop_all(engine)
    engine.dispose()
    return url


def assignment(*codes: int | Precision) -> Assignment:
    """Of groups g000, g001, …; a number is the id of a precision."""
    precisions = (code if isinstance(code, Precision) else Precision.of_id(code) for code in codes)
    return Assignment({f"g{i:03}": precision for i, precision in enumerate(precisions)})


def measured(chosen: Assignment, **changes: Any) -> Evaluation:
    audit = tuple(
        AuditRow(group, precision, precision, f"kernel of {group}", DETAILS) for group, precision in chosen.items()
    )
    times, baseline = np.array([1.25, 1.5]), np.array([2.0, 2.0])
    latency = Latency(1.5, 1.5, 0.5, 2.0, times, baseline, ("clocks moved",), AROUND, CONDITIONS)
    accuracy = Accuracy("top1", 0.75, 0.25, 0.125, 0.5, 4, 8, np.array([1.0, 1.0, 1.0, 0.0]))
    whole = Evaluation(chosen, None, audit, latency, accuracy, 1000, 2 << 40, 1.5, 2.5, 2, None, ("note",), ENGINE)
    return replace(whole, **changes)


def finish(store: Store, target: int, trial: int, *codes: int, artifact: str | None = None, **changes: Any) -> int:
    chosen = assignment(*codes)
    evaluation_id = store.claims.begin(target, chosen, chosen.digest, "w0", trial)
    store.claims.record(evaluation_id, measured(chosen, **changes), artifact)
    return evaluation_id


def plain(value: Any) -> Any:
    """Dataclasses and rows with arrays as something that `==` compares."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tables.Base):
        return {name: plain(each) for name, each in vars(value).items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def count(store: Store, table: type[tables.Base]) -> int:
    with store.database.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def make_study(store: Store, groups: Sequence[Group] = (), **options: str) -> int:
    """A study named `s` with one target; the target's id."""
    config = read_config({"model": "model.onnx", "data": "data.npz", **options})
    new = study_record("s", state="running", config=config.to_json(), metric=METRIC, model=MODEL)
    return store.targets.add(store.studies.create(new, groups=groups), TARGET, "s@1")


def scored(loss: float, half: float, samples: int = 8) -> Accuracy:
    """A score of 0.9 less the loss on some of 8 samples, whose bounds are those of a normal distribution."""
    reach = [half * quantile(tries) / STORED for tries in BOUND_TRIES]
    return Accuracy(
        *("top1", 0.9 - loss, loss, loss - half, loss + half, samples, 8, np.ones(samples)),
        loss_bounds=tuple(loss + each for each in reach),
        value_bounds=tuple(0.9 - loss - each for each in reach),
    )


def evaluated(codes: tuple[int, ...], latency_ms: float, loss: float, half: float, **changes: Any) -> Evaluation:
    """A finished evaluation; the same for the same arguments."""
    chosen = assignment(*codes)
    got = changes.pop("got", None)
    audit = tuple(AuditRow(g, p, p if got is None else Precision.of_id(got), "kernel") for g, p in chosen.items())
    values = scored(loss, half)
    latency = Latency(latency_ms, latency_ms, 0.01, 2.0, np.ones(2), np.ones(2), ())
    measured: dict[str, Any] = {"audit": audit, "latency": latency, "accuracy": values, "memory_bytes": 1000}
    return Evaluation(chosen, **{**measured, **changes})


def add(store: Store, target: int, trial: int, evaluation: Evaluation, role: str = "", worker: str = "w0") -> int:
    """Store an evaluation as that of a trial; its id."""
    number = store.claims.begin(target, evaluation.assignment, evaluation.assignment.digest, worker, trial, role)
    store.claims.record(number, evaluation)
    return number


def group(number: int) -> Group:
    """A convolution of which nothing but names is known."""
    texts = {"id": f"g{number:03}", "name": f"/layer{number}/Conv", "op": "Conv", "output": "y"}
    rest: dict[str, Any] = {field.name: () for field in fields(Group) if field.name not in texts}
    return Group(**{**rest, **texts, "block": "", "pinned": "", "nodes": ("n",), "anchors": ("n",)})


def join(store: Store, target: int, pid: int = 1) -> str:
    return store.workers.join(target, host="a host", device="CPU", pid=pid)


def begin(store: Store, target: int, worker: str, number: int = 0, **options: Any) -> int:
    chosen = assignment(*(number // 3**place % 3 for place in range(6)))
    return store.claims.begin(target, chosen, chosen.digest, worker, number, **options)


def grow_old(store: Store, table: type[Any], seconds: float = 2 * LEASE_S) -> None:
    """Let so much time pass since the heartbeats of a table."""
    with database.begin_write(store.database.engine) as connection:
        connection.execute(update(table).values(heartbeat=column_types.utc_ago(seconds)))


def at_once(*calls: Callable[[], T]) -> list[T]:
    """What the calls give, each made in a thread of its own, all at the same moment."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result() for done in [pool.submit(run, call) for call in calls]]
