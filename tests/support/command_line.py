"""The command line under test, inputs for it, and one finished study that tests copy."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from typer.testing import CliRunner, Result

from bitfront.cli.main import program_for
from search.graph.model import load
from studies.export import export
from studies.run.noise import remeasurement
from studies.run.session import calibration
from studies.store.database import database
from studies.store.reading import repeats
from tests.support.evaluator_jobs import float_labels
from tests.support.forks.processes import PATCHES, fork_evaluators, forked_processes, run_python
from tests.support.made_once import copy_tables, empty_database
from tests.support.networks import Net, images, save
from tests.support.paths import ROOT

DATABASE = "bitfront.db"
TEMPORARY = tempfile.gettempdir()  # tests point it elsewhere later


def run_sql(query: str, *values: Any, path: Path | str = DATABASE) -> list[Any]:
    """What a statement gives in the database of the current folder, or in another one; it is committed."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query, values).fetchall()


def three_layers(seed: int = 0, batch: int | str = 4) -> onnx.ModelProto:
    """Two convolutions and a Gemm: eight assignments, so that a search can try them all."""
    n = Net(seed)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    x = n.op("Relu", [n.conv(x, "second", 8, 8)], "second/relu")
    n.head(x, 8)
    return n.model([batch, 3, 8, 8], "logits", [batch, 10])


def write_inputs(folder: Path, network: onnx.ModelProto | None = None, samples: int = 60) -> None:
    """`model.onnx` and `data.npz`; labels, where the output is classes, are what the float model says."""
    folder.mkdir(parents=True, exist_ok=True)
    network = network or three_layers()
    model = load(save(network, folder / "model.onnx"))
    inputs = images(samples, shape=model.inputs[0].shape[1:])
    labels = {"labels": float_labels(network, model, inputs)} if len(model.outputs[0].shape) == 2 else {}
    np.savez(folder / "data.npz", image=inputs, **labels)


def invoke(*arguments: Any) -> Result:
    """Run a command in this process: no interpreter has to start, but signals and a killed parent need `child`."""
    with quick():
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(program_for(words), words)


def ok(*arguments: Any) -> str:
    """Run a command that has to succeed, in this process; what it printed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, f"{arguments}: exit {result.exit_code}\n{result.output}\n{result.exception!r}"
    return result.stdout


RECOVER = "BITFRONT_TEST_RECOVER"  # names the steps that `--recover auto` tries in tests; none where it is not set
QUICKLY = (
    "from evaluators.late_imports import import_late; import_late(); "
    "import os; from studies.export import export; from studies.run.noise import remeasurement; "
    f"from studies.run.session import calibration; calibration.BY_DEFAULT = os.environ.get({RECOVER!r}, 'none'); "
    "from studies.store.reading import repeats; repeats.BUILDS = 1; remeasurement.TRIES = 0; "
    "repeats.PROCESSES = 0; export.default_tolerance = lambda band: 1e9; "
)


def command(*arguments: Any) -> list[str]:
    """The command line of a process of its own, as quick as `quick`; so are the workers that it starts."""
    start = (
        f"{QUICKLY}from bitfront.cli import main as cli; from studies.fleet import processes as fleet; "
        "assert 'c.main()' in fleet._BOOT; "
        f"fleet._BOOT = fleet._BOOT.replace('c.main()', {QUICKLY + 'c.main()'!r}); cli.main()"
    )
    return [sys.executable, "-c", start, *map(str, arguments)]


def child(
    *arguments: Any, cwd: Path, env: Mapping[str, str] | None = None, wrapper: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return run_python([*wrapper, *command(*arguments)], cwd=cwd, env=environment(env))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a process under test: our folders are importable, and measurements are quick."""
    return {**os.environ, "PYTHONPATH": f"{PATCHES}{os.pathsep}{ROOT}", **(extra or {})}


@contextmanager
def quick() -> Iterator[None]:
    """Searches in this process measure quickly, and repeat the baseline once instead of three times.

    Nor do they start fresh processes to time it there, which takes longer than the rest: test_repeatability.py does.
    What is measured that quickly is too rough for an export to be held to it, and for doubts to be settled. By default
    INT8 stays as calibration makes it, which is the same whatever recovery steps there are; see `RECOVER`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        patch.setattr(calibration, "BY_DEFAULT", os.environ.get(RECOVER, "none"))
        fork_evaluators(patch)
        _open_copies(patch)
        patch.setattr(repeats, "BUILDS", 1)
        patch.setattr(repeats, "PROCESSES", 0)
        patch.setattr(remeasurement, "TRIES", 0)
        patch.setattr(export, "default_tolerance", lambda band: 1e9)
        yield


def _open_copies(patch: pytest.MonkeyPatch) -> None:
    """A database that a command makes gets its tables from a file."""
    empty_database()  # before it would be a copy itself
    open_engine = database.open_engine

    def open_copy(url: str, *, create: bool, write: bool) -> Any:
        if create:
            copy_tables(url)
        return open_engine(url, create=create, write=write)

    patch.setattr(database, "open_engine", open_copy)


@functools.cache
def unprivileged() -> tuple[str, ...] | None:
    """What a command is wrapped in to feel file permissions, which root does not; None where that cannot be done."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        return None
    return ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@functools.cache
def finished() -> Path:
    """A folder with `in/` (model, data) and a database with one finished study `small`. Copy it, do not write to it."""
    folder = Path(tempfile.mkdtemp(prefix="bitfront-test-", dir=TEMPORARY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_inputs(folder / "in")
    storage = f"sqlite:///{folder / DATABASE}"
    ok("search", folder / "in/model.onnx", "--data", folder / "in/data.npz", "--study", "small", "--trials", 4,
       "--storage", storage, "--max-drop", "20%", "--keep-engines", "all", "--quiet")  # fmt: skip
    return folder


def copy_finished(folder: Path) -> None:
    """The finished study as the default database of `folder`."""
    shutil.copy(finished() / DATABASE, folder / DATABASE)
    shutil.copytree(finished() / f"{DATABASE}.artifacts", folder / f"{DATABASE}.artifacts")


def evaluator_processes() -> list[psutil.Process]:
    """Evaluator processes that this process has started, or had forked, and that are still there."""
    started = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    started = [each for each in started if any("evaluators.process.server" in word for word in each.cmdline())]
    return [*started, *forked_processes()]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content, and every folder, but what Python compiled of users' code."""
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}
