"""Worker processes of one study in PostgreSQL, and what its database says. For test_workers.py."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from tests.support.command_line import command, environment
from tests.support.forks.processes import popen

METRIC = """
import os, time
def score(outputs, labels):
    '''Slow, so that a worker can be met in the middle of an evaluation; in a worker with `HELD`, until it may go on.'''
    time.sleep(0.03)
    while os.path.exists(os.environ.get("HELD", "")):
        time.sleep(0.02)
    logits = outputs['logits'] if isinstance(outputs, dict) else outputs
    return (logits.argmax(axis=1) == labels).astype(float)
score.higher_is_better = True
"""
# What a worker runs before, so that METRIC holds it in the middle of its first evaluation: `Workers.wait_until_held`.
HELD = """
import os
from pathlib import Path
from studies.run.pipeline.pipeline import SerialPipeline
os.environ["HELD"] = f"held{os.getpid()}"
evaluate = SerialPipeline.wait_finished
def held(pipeline):
    if pipeline.busy:
        SerialPipeline.wait_finished = evaluate
        Path(os.environ["HELD"]).touch()
    return evaluate(pipeline)
SerialPipeline.wait_finished = held
"""


def copy_of(url: str) -> str:
    """A database with the content of another one, which nobody uses meanwhile."""
    name = f"copy_{secrets.token_hex(4)}"
    engine = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"create database {name} template {make_url(url).database}"))
    engine.dispose()
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@dataclass
class Workers:
    """Processes that work on study `s` of a database; as a context manager it ends those that still run."""

    folder: Path
    url: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Workers:
        self._engine = create_engine(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._engine.dispose()

    def start(self, *arguments: Any, first: str = "") -> subprocess.Popen[bytes]:
        """A process of its own, whose output is kept; `first` is code that it runs before."""
        words = command(*arguments, "--storage", self.url)
        words[2] = f"{first}\n{words[2]}"
        with (self.folder / f"out{len(self.processes)}").open("wb") as out:
            process: subprocess.Popen[bytes] = popen(
                words,
                cwd=self.folder,
                env=environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def said(self, number: int) -> str:
        return (self.folder / f"out{number}").read_text()

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """What the database says; empty while it has no such tables yet."""
        try:
            with self._engine.connect() as connection:
                return [tuple(row) for row in connection.execute(text(query), values)]
        except ProgrammingError as error:
            if "does not exist" in str(error):
                return []
            raise

    def change(self, statement: str, **values: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(statement), values)

    def value(self, query: str, **values: Any) -> Any:
        """The first column of the first row, None without one."""
        return next((row[0] for row in self.rows(query, **values)), None)

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait, while a process lives, until a condition is true, and give what it returns."""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            assert any(process.poll() is None for process in self.processes), self.all_said()
            time.sleep(0.02)
        raise AssertionError(f"nothing happened\n{self.all_said()}")

    def wait(self) -> list[int]:
        """Wait until all have ended; their exit codes."""
        end = time.monotonic() + 400
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a worker does not end\n{self.all_said()}") from None

    def all_said(self) -> str:
        return "\n".join(f"--- {number}\n{self.said(number)}" for number in range(len(self.processes)))

    def under_way(self, process: subprocess.Popen[bytes]) -> int | None:
        """The evaluation that a process is at."""
        query = (
            "select e.id from bf_evaluation e join bf_lease l on l.evaluation_id = e.id "
            "join bf_worker w on w.name = l.worker where w.pid = :pid and e.status = 'running'"
        )
        evaluation: int | None = self.value(query, pid=process.pid)
        return evaluation

    def wait_until_held(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until a process is in the middle of the evaluation that it is held in; its id."""
        self.wait_until((self.folder / f"held{process.pid}").exists)
        evaluation = self.under_way(process)
        assert evaluation is not None
        return evaluation

    def release(self, process: subprocess.Popen[bytes]) -> None:
        """Let a process that is held go on."""
        (self.folder / f"held{process.pid}").unlink()

    def wait_until_stopped(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process has stopped itself (SIGSTOP)."""
        self.wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)

    def left_behind(self) -> dict[str, int]:
        """How much there is of what must not be left when all have ended; every count has to be zero."""
        counts = {
            "leases": "select count(*) from bf_lease",
            "tasks": "select count(*) from bf_task",
            "running": "select count(*) from bf_evaluation where status = 'running'",
            "open": "select count(*) from trials where state = 'RUNNING'",
            "untold": "select count(*) from bf_evaluation e where not exists (select 1 from bf_trial t join trials o "
            "on o.number = t.number where t.evaluation_id = e.id and cast(o.state as text) = "
            "case e.status when 'ok' then 'COMPLETE' else 'FAIL' end)",
            "loose": "select count(*) from trials where state = 'COMPLETE' "
            "and number not in (select number from bf_trial)",
            "twice": "select count(*) - count(distinct assignment::text) from bf_evaluation",
        }
        return {name: int(self.value(query)) for name, query in counts.items()}
