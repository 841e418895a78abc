"""CSV as it is printed: what a program reads from it is what was meant."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.command_line import DATABASE, copy_finished, ok

WARNINGS = [
    "spread 12.0% of the median, more than 2%",
    'the GPU also ran "a; b", pid 7',
    "drift 3 % over 50 samples",
]


def test_warnings_of_a_row_can_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect(DATABASE) as connection:
        connection.execute("update bf_sample set warnings = ?", [json.dumps(WARNINGS)])
    connection.close()
    expected = json.loads(ok("front", "small", "--json"))["rows"]
    rows = list(csv.DictReader(io.StringIO(ok("front", "small", "--csv"))))
    assert {row["trial"] for row in rows} == {str(row["trial"]) for row in expected}
    for row, told in zip(rows, expected, strict=True):
        assert set(WARNINGS) <= set(told["warnings"])  # a busy machine adds its own
        assert row["warnings"].split("; ") == [warning.replace(";", ",") for warning in told["warnings"]]
        assert row["picks"].split("; ") == (told["picks"] or [""])
