"""What tests cost in processor time, their processes included: for machines that others use too.

    python -m pytest -p tests.support.processor_times -p no:xdist tests/studies/store

Prints the dearest tests and files at the end. A file pays for what it is the first to start: the process that forks
others, and the database server that all tests share.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

MOST_SHOWN = 25
SPENT: Counter[str] = Counter()


def _now_s() -> float:
    """Processor time of this process and of all below it; forks for tests belong to the process that forks them."""
    spent_s = sum(os.times()[:4])
    for below in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            spent_s += sum(below.cpu_times()[:4])
    return spent_s


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before_s = _now_s()
    outcome = yield
    SPENT[item.nodeid] += _now_s() - before_s  # type: ignore[assignment]
    return outcome  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: Counter[str] = Counter()
    for name, spent_s in SPENT.items():
        files[name.partition("::")[0]] += spent_s
    terminalreporter.section(f"{sum(SPENT.values()):.1f} s of processor time in {len(SPENT)} tests")
    for kind in (SPENT, files):
        for name, spent_s in kind.most_common(MOST_SHOWN):
            terminalreporter.write_line(f"{spent_s:7.2f} s  {name}")
        terminalreporter.write_line("")
