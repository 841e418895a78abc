"""What tests cost in processor time, their processes included: for machines that others use too.

    python -m pytest -p tests.support.processor_times -p no:xdist tests/studies/store

Prints the dearest tests and files at the end. A database server that all tests share is not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

MOST_SHOWN = 25
SPENT: Counter[str] = Counter()


def _now_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before_s = _now_s()
    found = yield
    SPENT[item.nodeid] += _now_s() - before_s  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: Counter[str] = Counter()
    for name, spent_s in SPENT.items():
        files[name.partition("::")[0]] += spent_s
    terminalreporter.section(f"{sum(SPENT.values()):.1f} s of processor time in {len(SPENT)} tests")
    for kind in (SPENT, files):
        for name, spent_s in kind.most_common(MOST_SHOWN):
            terminalreporter.write_line(f"{spent_s:7.2f} s  {name}")
        terminalreporter.write_line("")
