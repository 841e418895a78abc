"""How quickly large studies answer: `bitfront front` on 10,000 evaluations, `bitfront resume` on 1,000.

The 10,000 are made up: 38 groups, with audit, samples and per-sample scores of real sizes, in SQLite. The 1,000 stand
on a short real search of the example, so that it can really go on; Optuna's study holds the 1,000 trials too.
Times of resume and search run from the start of the command to what is polled for in the database.

usage: python -m benchmarks.figures.database [--front 10000] [--resume 1000] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks import ROOT, synthetic
from benchmarks.example import BATCH, DATA, MODEL, load_text
from search.values import Evaluation, Precision
from studies import verbs
from studies.options.config import SearchConfig
from studies.options.read_options import read_config
from studies.store.records import NewStudy
from studies.store.store import Store, optuna_storage
from studies.verbs.analyses import layers

REPEATS = 3
FIRST = 4  # evaluations of the real search that the 1,000 stand on


def main(front: int = 10_000, resume: int = 1_000, keep: Path | None = None) -> dict[str, float]:
    """Seconds: `front_s` of the command, `front_call_s` of the function, `front_import_s` of a command that opens
    no database; `resume_s` in all and `resume_beyond_s` more than a fresh search needs to check the same inputs.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = front_times(folder, front) | resume_times(folder, resume)
    print(f"medians of {REPEATS}; {load_text()}")
    return found


# -- front ---------------------------------------------------------------------------------------------------------


def front_times(folder: Path, count: int) -> dict[str, float]:
    path = folder / "front.db"
    url, start = f"sqlite:///{path}", time.perf_counter()
    groups = write_study(url, count)
    print(f"{count} evaluations x {groups} groups: {path.stat().st_size / 2**20:.0f} MiB", end=", ")
    print(f"written in {time.perf_counter() - start:.0f} s")
    found = {
        "front_s": median_of(lambda: run("front", "digits", "--storage", url)),
        "front_import_s": median_of(lambda: run("studies", "--help")),
        "front_call_s": median_of(lambda: verbs.front("digits", storage=url)),
    }
    print(f"front: command {found['front_s']:.2f} s (of it {found['front_import_s']:.2f} s to start)", end=", ")
    print(f"function {found['front_call_s']:.2f} s", flush=True)
    return found


def write_study(url: str, count: int) -> int:
    """A study of the example whose evaluations nobody measured; the number of its groups."""
    looked = layers(SearchConfig(str(MODEL), "", batch=BATCH))
    config = read_config({"model": str(MODEL), "data": str(DATA), "max-drop": "1%", "batch": str(BATCH)})
    metric = {"name": "top1", "unit": "", "higher_is_better": True, "ratio": True}
    new = NewStudy("digits", str(MODEL), looked.model.digest, config.to_json(), {}, metric, {}, {}, "done")
    with Store.open(url, create=True) as store:
        study = store.studies.create(new)
        store.studies.set_groups(study, looked.model.groups)
        target = store.targets.add(study, looked.target, "digits")
        store.targets.settle(target, latency_band=0.02)
        synthetic.fill(store, target, range(count), [group.id for group in looked.model.groups], "", {})
    return len(looked.model.groups)


# -- resume --------------------------------------------------------------------------------------------------------


def resume_times(folder: Path, count: int) -> dict[str, float]:
    url = f"sqlite:///{folder / 'resume.db'}"
    options = {"model": str(MODEL), "data": str(DATA), "max-drop": "1%", "batch": str(BATCH), "study": "digits"}
    verbs.search(read_config({**options, "trials": str(FIRST), "storage": url}))
    start = time.perf_counter()
    fill_both(url, count)
    print(f"{count} evaluations and trials to resume, written in {time.perf_counter() - start:.0f} s")
    resumed = median_of(lambda: again(folder, count + 1))
    given = [f"--{name}={value}" for name, value in options.items() if name != "model"]
    checked = median_of(lambda: fresh(folder, _STUDY, MODEL, *given))
    print(f"resume: {resumed:.2f} s until a new candidate is evaluated", end="; ")
    print(f"a fresh search checks the same inputs in {checked:.2f} s", flush=True)
    return {"resume_s": resumed, "resume_beyond_s": resumed - checked, "search_check_s": checked}


_STUDY = "SELECT count(*) FROM bf_study"
_RUNNING = "SELECT count(*) FROM bf_evaluation WHERE status = 'running'"


def fill_both(url: str, count: int) -> None:
    """Evaluations in our tables and trials in Optuna's, up to `count` of each."""
    with Store.open(url) as store:
        study = store.studies.load("digits")
        target = store.targets.of_study(study.id)[0]
        variables = {choice.group for choice in store.spaces.choices(target.id) if choice.precision is Precision.INT8}
        groups = [group.id for group in store.studies.groups(study.id)]
        first = int(store.evaluations.table(target.id).trial[:].max()) + 1
        trials = range(first, first + count - FIRST)
        made = synthetic.fill(store, target.id, trials, groups, target.ranges_digest or "", _knobs())
    add_trials(url, target.optuna_study, trials, made, variables)


def _knobs() -> dict[str, str]:
    from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend

    return OnnxRuntimeBackend().knobs()


def add_trials(url: str, name: str, trials: range, evaluations: list[Evaluation], variables: set[str]) -> None:
    """What Optuna's own way of adding trials writes, in bulk."""
    import optuna
    from optuna.storages._rdb import models

    storage = optuna_storage(url)
    study_id = storage.get_study_id_from_name(name)
    free = optuna.distributions.distribution_to_json(optuna.distributions.IntDistribution(0, 1))
    done, now = optuna.trial.TrialState.COMPLETE, datetime.now()
    rows: dict[Any, list[dict[str, Any]]] = {m: [] for m in (models.TrialModel, models.TrialParamModel)}
    rows |= {m: [] for m in (models.TrialValueModel, models.TrialSystemAttributeModel)}
    known = max((trial._trial_id for trial in storage.get_all_trials(study_id, deepcopy=False)), default=0)
    for number, evaluation in zip(trials, evaluations, strict=True):
        assert evaluation.latency is not None
        assert evaluation.accuracy is not None
        owner = {"trial_id": known + 1 + number - trials.start}
        rows[models.TrialModel].append(
            {**owner, "number": number, "study_id": study_id, "state": done}
            | {"datetime_start": now, "datetime_complete": now}
        )
        rows[models.TrialParamModel] += [
            {**owner, "param_name": group, "param_value": float(precision is Precision.INT8), "distribution_json": free}
            for group, precision in evaluation.assignment.items()
            if group in variables
        ]
        values = (evaluation.latency.value_ms, evaluation.accuracy.loss)
        kind = models.TrialValueModel.TrialValueType.FINITE
        rows[models.TrialValueModel] += [
            {**owner, "objective": i, "value": value, "value_type": kind} for i, value in enumerate(values)
        ]
        limits = {"obeyed": 0.0, "loss": evaluation.accuracy.loss - 0.01}
        rows[models.TrialSystemAttributeModel] += [
            {**owner, "key": f"constraints:{key}", "value_json": json.dumps(value)} for key, value in limits.items()
        ]
    with storage.engine.begin() as connection:
        for model, values_of in rows.items():
            connection.execute(insert(model), values_of)
    storage.remove_session()
    storage.engine.dispose()


# -- commands ------------------------------------------------------------------------------------------------------


def median_of(measured: Callable[[], Any]) -> float:
    """Median of a few; seconds as the callable gives them, else those it took."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        given = measured()
        seconds.append(given if isinstance(given, float) else time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "studies.cli", *map(str, arguments)]


def run(*arguments: Any) -> None:
    done = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: exit {done.returncode}\n{done.stderr}")


def again(folder: Path, trials: int) -> float:
    """Seconds of resuming a copy of the study until a new candidate is evaluated."""
    name = f"again-{time.time_ns()}.db"
    shutil.copy(folder / "resume.db", folder / name)
    shutil.copytree(folder / "resume.db.artifacts", folder / f"{name}.artifacts")
    return seconds_until(folder / name, _RUNNING, "resume", "digits", "--trials", trials)


def fresh(folder: Path, query: str, *arguments: Any) -> float:
    """Seconds of a new search until a query counts something."""
    path = folder / f"fresh-{time.time_ns()}.db"
    return seconds_until(path, query, "search", *arguments)


def seconds_until(path: Path, query: str, *arguments: Any) -> float:
    """Start a command on a database; seconds until the query counts something; then the command is interrupted."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C goes to it alone, and its evaluator process is its own to end.
        child = subprocess.Popen(
            command(*arguments, "--storage", f"sqlite:///{path}"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _count(path, query):
                if child.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{arguments}: exit {child.returncode}\n{log.read().decode()}")
                time.sleep(0.005)
            return time.perf_counter() - start
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(timeout=60)


def _count(path: Path, query: str) -> int:
    if path.exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            return int(reader.execute(query).fetchone()[0])
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--front", type=int, default=10_000)
    parser.add_argument("--resume", type=int, default=1_000)
    parser.add_argument("--keep", type=Path, help="folder for the databases, to look at")
    arguments = parser.parse_args()
    main(arguments.front, arguments.resume, arguments.keep)
