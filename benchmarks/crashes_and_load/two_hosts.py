"""Two hosts on one study, as network namespaces of this machine, as docs/workers.md has it: search, worker, status.

    database    PostgreSQL, and S3 by moto, on an address of their own
    host1       has the model and the data: `bitfront search … --artifacts s3://…`
    host2       has neither, and sees nothing of host1's files: `bitfront worker NAME`, `bitfront status NAME --watch`

In the middle host1's cable is pulled for longer than the lease and plugged in again; at the end host2 runs front,
report and export. Every host has its own network, host name, home and folder, and only its own.

Prints one line of JSON; exits with 1 when anything is not as it must be, with 2 where it cannot run: it needs root.

usage: python -m benchmarks.crashes_and_load.two_hosts [--trials 16] [--lease 8] [--down 15] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.crashes_and_load.lan import Lan, Process, missing
from benchmarks.example import BATCH, DATA, MODEL, load_text

NAME = "digits"
LONGEST_S = 900.0
COUNTS = {
    "evaluations": "select count(*) from bf_evaluation where role <> 'export'",
    "running": "select count(*) from bf_evaluation where status = 'running'",
    "leases": "select count(*) from bf_lease",
    "doubled": "select count(*) - count(distinct digest) from bf_evaluation where role <> 'export'",
    "takeovers": "select coalesce(sum(takeovers), 0) from bf_evaluation",
    "late": "select count(*) from bf_evaluation where notes::text like '%second result%'",
    "open_trials": "select count(*) from trials where state = 'RUNNING'",
}
BY_HOST = (
    "select w.host, count(*) from bf_evaluation e join bf_worker w on w.name = e.worker where e.role <> 'export' "
    "group by 1 order by 1"
)


def main(folder: Path, trials: int, lease_s: float, down_s: float) -> dict[str, Any]:
    """Run the story once; what came of it."""
    with Lan(folder) as lan:
        start = time.monotonic()
        for name in (MODEL, DATA):
            shutil.copy(name, lan.hosts["host1"].folder)
        search = lan.start("host1", "search", MODEL.name, "--data", DATA.name, "--batch", BATCH, "--max-drop", "1%",
                           "--trials", trials, "--threads", 1, "--lease", f"{lease_s:g}s",
                           "--artifacts", lan.bucket)  # fmt: skip
        joined = until(lambda: lan.run("host2", "status", NAME).returncode == 0, search)
        watch = lan.start("host2", "status", NAME, "--watch")
        worker = lan.start("host2", "worker", NAME)
        until(lambda: both_at_it(lan.url), search, worker)
        before = counts(lan.url)["evaluations"]
        lan.pull("host1")
        pulled = time.monotonic()
        alone = lan.run("host1", "status", NAME)  # says that there is no way to the database, and does not wait for it
        time.sleep(max(0.0, down_s - (time.monotonic() - pulled)))
        while_down = counts(lan.url)["evaluations"] - before
        silent_s = silence_s(lan.url)
        lan.plug("host1")
        plugged = time.monotonic()
        until(lambda: silence_s(lan.url) < lease_s or search.poll() is not None, worker)
        back_s = time.monotonic() - plugged
        codes: dict[str, int | None] = {process.name: process.wait(LONGEST_S) for process in (search, worker, watch)}
        took_s = time.monotonic() - start
        read = {verb: lan.run("host2", *words) for verb, words in READ.items()}
        lan.processes += read.values()
        codes |= {verb: process.poll() for verb, process in read.items()}
        made = [
            str(path.relative_to(folder)) for path in sorted(lan.hosts["host2"].folder.rglob("*")) if path.is_file()
        ]
        tracebacks = sum(process.output().count("Traceback (most recent") for process in lan.processes)
        found = {**counts(lan.url), "by_host": by_host(lan.url)}
    return {
        "exit_codes": codes,
        "status_without_network": alone.poll(), "tracebacks": tracebacks, **found, "wanted": trials,
        "joinable_after_s": joined,
        "done_after_s": round(took_s, 1), "down_s": down_s, "evaluations_while_down": while_down,
        "silent_s": round(silent_s, 1), "back_after_s": round(back_s, 1), "files_of_host2": made, "load": load_text(),
    }  # fmt: skip


READ = {
    "front": ("front", NAME),
    "report": ("report", NAME, "--out", "report.html"),
    "export": ("export", NAME, "--out", "engine"),
}


def good(found: Mapping[str, Any]) -> bool:
    """Nothing lost, doubled or left behind, both hosts worked, and no command failed."""
    nothing = ("running", "leases", "doubled", "open_trials", "tracebacks")
    return (
        not any(found[name] for name in nothing)
        and found["evaluations"] == found["wanted"]
        and set(found["by_host"]) == {"host1", "host2"}
        and not any(found["exit_codes"].values())
        and found["status_without_network"] == 2
    )


def until(holds: Callable[[], bool], *alive: Process) -> float:
    """Wait; seconds that it took. RuntimeError where one that has to run has ended, or after LONGEST_S."""
    start = time.monotonic()
    while not holds():
        for process in alive:
            if process.poll() is not None:
                raise RuntimeError(f"{process.name} ended with {process.poll()}:\n{process.output()}")
        if time.monotonic() - start > LONGEST_S:
            raise RuntimeError("\n".join(process.output() for process in alive))
        time.sleep(0.5)
    return round(time.monotonic() - start, 1)


# -- what the database says --------------------------------------------------------------------------------------------


@contextmanager
def connected(url: str) -> Iterator[Any]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def counts(url: str) -> dict[str, int]:
    with connected(url) as connection:
        return {name: int(connection.scalar(text(query))) for name, query in COUNTS.items()}


def by_host(url: str) -> dict[str, int]:
    with connected(url) as connection:
        return {row[0]: int(row[1]) for row in connection.execute(text(BY_HOST))}


def both_at_it(url: str) -> bool:
    """Whether each host has an evaluation under way, and the first ones, which one worker does, are done."""
    query = (
        "select count(distinct w.host), (select count(*) from bf_evaluation where status <> 'running') "
        "from bf_lease l join bf_worker w on w.name = l.worker"
    )
    with connected(url) as connection:
        hosts, done = connection.execute(text(query)).one()
    return bool(hosts == 2 and done >= 3)


def silence_s(url: str) -> float:
    """Seconds since host1's worker was last heard of."""
    query = "select extract(epoch from now() at time zone 'utc' - max(heartbeat)) from bf_worker where host = 'host1'"
    with connected(url) as connection:
        return float(connection.scalar(text(query)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--lease", type=float, default=8.0, help="seconds")
    parser.add_argument("--down", type=float, default=15.0, help="seconds that host1 has no network")
    parser.add_argument("--keep", type=Path, help="a new folder for what the hosts wrote, which stays")
    given = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"two_hosts.py cannot run here: {lacking}", file=sys.stderr)
        sys.exit(2)
    place = given.keep or Path(tempfile.mkdtemp(prefix="bf-hosts-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        result = main(place.resolve(), given.trials, given.lease, given.down)
    finally:
        if given.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    print(json.dumps({**result, "good": good(result)}))
    sys.exit(0 if good(result) else 1)
