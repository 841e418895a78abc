"""Kill a search again and again, resume it, and see what its database says.

What is stored is read with plain SQL, and the front is computed a second time, by definition and in plain Python.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tests.support.command_line import DATABASE, child, command, environment
from tests.support.forks.processes import evaluators_of, popen

Row = tuple[Any, ...]


@dataclass
class Story:
    """What happened over all kills.

    Attributes:
        main, evaluator: kills of either process; of the main one so many came `late`, when it had ended by itself.
    """

    main: int = 0
    evaluator: int = 0
    late: int = 0
    runs: int = 0
    evaluations: int = 0
    lost: int = 0
    changed: int = 0
    duplicated: int = 0
    running_left: int = 0
    untold: int = 0
    front_equal: bool = False
    seed: int = 0
    moments_s: list[float] = field(default_factory=list)


def rows(folder: Path, query: str, *values: Any) -> list[Row]:
    """What the database says; empty while it has no such tables yet."""
    path = folder / DATABASE
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=300)
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise
    finally:
        connection.close()


def stored(folder: Path) -> dict[str, Row]:
    """Finished evaluations: digest → what was measured."""
    query = "select digest, id, status, raw_ms, loss, samples from bf_evaluation where status <> 'running'"
    return {row[0]: row[1:] for row in rows(folder, query)}


@contextmanager
def started(*arguments: Any, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; killed at the end if it still runs."""
    process = popen(
        command(*arguments),
        cwd=cwd,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=400)


def evaluator_of(process: subprocess.Popen[str]) -> psutil.Process | None:
    """The evaluator process of a running command, if it has one now."""
    return next(iter(evaluators_of(process.pid)), None)


def wait_for_end(pids: Sequence[int], seconds: float = 300) -> None:
    """Wait until processes are gone: an evaluator ends by itself when its keeper does."""
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, left = psutil.wait_procs(processes, timeout=seconds)
    assert not left, f"still there: {left}"


def survive(folder: Path, first: Sequence[Any], name: str, *, kills: int, trials: int, seed: int) -> Story:
    """Run `search` with the arguments `first`, resume it after every kill, and at last to its end.

    Main and evaluator process are killed in turn; the main process dies after its evaluator too, up to a second later.
    Of four kills one comes while a run starts, the others after a few more evaluations; the last comes when all are
    done and the finalists are measured.

    Returns:
        What was lost, doubled or left behind.
    """
    chance, story, known = random.Random(seed), Story(seed=seed), dict[str, Row]()
    for number in range(kills):
        more = 0 if number % 4 == 0 else chance.randint(1, max(1, trials // kills))
        wanted = trials if number == kills - 1 else min(trials - 2, len(known) + more)
        with _run(folder, first, name, story) as process:
            start = time.monotonic()
            _wait_for(folder, process, wanted if more else 0)
            time.sleep(chance.uniform(0, 0.3 if more else 2.0))
            _kill(process, story, chance, evaluator_first=number % 2 == 1)
            story.moments_s.append(round(time.monotonic() - start, 2))
        known = _compared(story, known, stored(folder))
    with _run(folder, first, name, story) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    _compared(story, known, stored(folder))
    _judge(story, folder, name)
    return story


@contextmanager
def _run(folder: Path, first: Sequence[Any], name: str, story: Story) -> Iterator[subprocess.Popen[str]]:
    """The study's next run: `search` until there is a study, then `resume`."""
    story.runs += 1
    again = bool(rows(folder, "select 1 from bf_study where name = ?", name))
    with started(*(("resume", name) if again else ("search", *first)), cwd=folder) as process:
        yield process


def _wait_for(folder: Path, process: subprocess.Popen[str], evaluations: int) -> None:
    while process.poll() is None and len(stored(folder)) < evaluations:
        time.sleep(0.02)


def _kill(process: subprocess.Popen[str], story: Story, chance: random.Random, *, evaluator_first: bool) -> None:
    evaluator = evaluator_of(process)
    if evaluator_first and evaluator is not None:
        with suppress(psutil.NoSuchProcess):
            evaluator.kill()
        story.evaluator += 1
        time.sleep(chance.uniform(0, 1))  # the main process notices and goes on
    else:
        story.main += 1
        story.late += process.poll() is not None
    last = evaluator_of(process)
    process.kill()
    process.wait(timeout=400)
    wait_for_end([each.pid for each in (evaluator, last) if each is not None])


def _compared(story: Story, known: dict[str, Row], now: dict[str, Row]) -> dict[str, Row]:
    story.lost += len(known.keys() - now.keys())
    story.changed += sum(now[digest] != row for digest, row in known.items() if digest in now)
    return now


def _judge(story: Story, folder: Path, name: str) -> None:
    story.evaluations = len(rows(folder, "select id from bf_evaluation"))
    story.duplicated = story.evaluations - len(rows(folder, "select distinct assignment from bf_evaluation"))
    open_trials = rows(folder, "select number from trials where state not in ('COMPLETE', 'FAIL', 'WAITING')")
    story.running_left = len(open_trials) + len(rows(folder, "select id from bf_evaluation where status = 'running'"))
    story.untold = len(untold(folder))
    story.front_equal = front_of(folder) == shown_front(folder, name)


def untold(folder: Path) -> list[Row]:
    """Evaluations that no Optuna trial carries as they are stored, and finished trials without an evaluation."""
    linked = rows(
        folder,
        "select e.id from bf_evaluation e where not exists (select 1 from bf_trial t join trials o "
        "on o.number = t.number where t.evaluation_id = e.id and o.state = "
        "case e.status when 'ok' then 'COMPLETE' else 'FAIL' end)",
    )
    loose = rows(
        folder,
        "select number from trials where state = 'COMPLETE' and number not in (select number from bf_trial)",
    )
    return linked + loose


def shown_front(folder: Path, name: str) -> set[int]:
    listing = json.loads(child("front", name, "--json", cwd=folder).stdout)
    return {row["trial"] for row in listing["rows"] if row["on_front"]}


def latencies_of(folder: Path) -> dict[int, float]:
    """Evaluation → its latency: the last clean ratio to the baseline, or the last, times the usual baseline."""
    query = (
        "select evaluation_id, raw_ms, baseline_ms, warnings from bf_sample where role = 'candidate' "
        "and raw_ms is not null order by evaluation_id, round"
    )
    every = [(number, raw, beside, not json.loads(said or "[]")) for number, raw, beside, said in rows(folder, query)]
    usual = median([beside for _, _, beside, clean in every if clean] or [row[2] for row in every])
    latencies: dict[int, tuple[float, bool]] = {}
    for number, raw, beside, clean in every:
        sound = clean and abs(beside / usual - 1) <= 0.05
        if sound or not latencies.get(number, (0.0, False))[1]:
            latencies[number] = (raw / beside * usual, sound)
    return {number: ms for number, (ms, _) in latencies.items()}


def front_of(folder: Path) -> set[int]:
    """The front of a study without limits, by its definition: trial numbers that no other row knocks out."""
    [(band,)] = rows(folder, "select latency_band from bf_study_target")
    latencies = latencies_of(folder)
    points = [
        (trial, latencies[number], loss, (high - low) / 2)
        for number, trial, loss, low, high in rows(
            folder,
            "select e.id, min(t.number), loss, loss_low, loss_high from bf_evaluation e join bf_trial t "
            "on t.evaluation_id = e.id where status = 'ok' and samples = total_samples and not_obeyed = 0 "
            "group by e.id",
        )
    ]

    def faster(a: Row, b: Row) -> bool:
        return bool(a[1] * (1 + band) < b[1])

    def better(a: Row, b: Row) -> bool:
        return bool(a[2] + max(a[3], b[3]) < b[2])

    def knocks_out(a: Row, b: Row) -> bool:
        return (faster(a, b) and not better(b, a)) or (better(a, b) and not faster(b, a))

    def stay() -> set[int]:
        return {b[0] for b in points if not any(knocks_out(a, b) for a in points)}

    front = stay()
    if not front:  # ties are not transitive: all may be knocked out in a circle
        band, points = 0.0, [(*point[:3], 0.0) for point in points]
        front = stay()
    return front
