"""Many workers on one study in a database on a server: what is stored of it, and what must be left of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
from sqlalchemy import create_engine, inspect, text


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition is true, and give what it returns."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What the database says; empty while it has not all tables yet."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            there = all(inspect(connection).has_table(name) for name in ("bf_worker", "trials"))
            return [tuple(row) for row in connection.execute(text(query))] if there else []
    finally:
        engine.dispose()


def finished(url: str) -> int:
    """How many evaluations are."""
    return sum(count for (count,) in rows(url, "select count(*) from bf_evaluation where status <> 'running'"))


def loose_ends(url: str) -> dict[str, int]:
    """How much there is of what must not be left when all work is done."""
    counted = {
        "running evaluations": "bf_evaluation where status = 'running'",
        "leases": "bf_lease",
        "tasks": "bf_task",
        "running trials": "trials where state = 'RUNNING'",
        "evaluations no trial tells of": "bf_evaluation e where not exists (select 1 from bf_trial t join trials o "
        "on o.number = t.number where t.evaluation_id = e.id and cast(o.state as text) = "
        "case e.status when 'ok' then 'COMPLETE' else 'FAIL' end)",
        "told trials without an evaluation": "trials where state = 'COMPLETE' and number not in "
        "(select number from bf_trial)",
        "digests that are there twice": "(select digest from bf_evaluation group by digest having count(*) > 1) as d",
    }
    return {what: rows(url, f"select count(*) from {query}")[0][0] for what, query in counted.items()}


def assert_whole(url: str, total: int) -> None:
    """Every evaluation counted once, nothing under way, the study done."""
    left = {what: count for what, count in loose_ends(url).items() if count}
    assert left == {}, left
    assert rows(url, "select count(*) from bf_evaluation") == [(total,)]
    assert rows(url, "select state from bf_study") == [("done",)]


def tree(pid: int) -> list[psutil.Process]:
    """All processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
