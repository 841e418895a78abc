"""Ranges that a user's searches keep for later ones: found whole, bounded in size, and no reason to end a search."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from search.values import Ranges, RecoveryRecord, StepRecord
from studies.artifacts.kept_ranges import KeptRanges
from studies.events import Quiet
from tests.support.command_line import environment
from tests.support.forks.processes import popen
from tests.support.networks import loaded, observed

KEY, OTHER = "a" * 64, "b" * 64


class Told(Quiet):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def ranges() -> Ranges:
    return observed(loaded("residual"))


def test_what_is_kept_is_found_with_what_recovery_did(ranges: Ranges, tmp_path: Path) -> None:
    kept, record = (
        KeptRanges(tmp_path / "new", Quiet()),
        RecoveryRecord("auto", (StepRecord("bias", False, True, "so"),)),
    )
    assert kept.find(KEY) is None
    kept.keep(KEY, ranges, record)
    kept.keep(OTHER, ranges)
    assert kept.find(KEY) == (ranges, record)
    assert kept.find(OTHER) == (ranges, None)


@pytest.mark.parametrize("damage", ["cut", "other", "empty", "old"])
def test_a_damaged_file_is_told_and_made_again(damage: str, ranges: Ranges, tmp_path: Path) -> None:
    told = Told()
    kept = KeptRanges(tmp_path, told)
    kept.keep(KEY, ranges)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {"cut": whole[:-20], "other": b"no gzip", "empty": b"", "old": gzip.compress(json.dumps({}).encode())}
    path.write_bytes(damaged[damage])
    assert kept.find(KEY) is None
    assert str(path) in told.notes[0]
    kept.keep(KEY, ranges)
    assert kept.find(KEY) == (ranges, None)


def test_the_least_recently_used_go_first(ranges: Ranges, tmp_path: Path) -> None:
    kept = KeptRanges(tmp_path, Quiet())
    kept.keep(KEY, ranges)
    (path,) = tmp_path.iterdir()
    bounded = KeptRanges(tmp_path, Quiet(), most_bytes=int(2.5 * path.stat().st_size))
    os.utime(path, (1, 1))
    bounded.keep(OTHER, replace(ranges, samples=2))
    os.utime(next(p for p in tmp_path.iterdir() if p != path), (2, 2))
    assert bounded.find(KEY) is not None  # which counts as use
    bounded.keep("c" * 64, ranges)
    assert bounded.find(OTHER) is None
    assert bounded.find(KEY) is not None
    KeptRanges(tmp_path, Quiet(), most_bytes=1).keep("d" * 64, ranges)
    assert bounded.find("d" * 64) is None, "what alone is too large is not kept, and takes the place of nothing"
    assert bounded.find(KEY) is not None


def test_a_folder_that_cannot_be_written_is_told(ranges: Ranges, tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "file").write_text("in the way")
    kept = KeptRanges(tmp_path / "file", told)
    kept.keep(KEY, ranges)
    assert "keeps no ranges for later searches" in told.notes[0]
    KeptRanges(None, told).keep(KEY, ranges)
    assert KeptRanges(None, told).find(KEY) is None
    assert len(told.notes) == 1


def test_processes_that_keep_and_find_at_once_see_whole_files(ranges: Ranges, tmp_path: Path) -> None:
    KeptRanges(tmp_path, Quiet()).keep(KEY, ranges)
    code = (
        "import sys; from pathlib import Path; from studies.artifacts.kept_ranges import KeptRanges; "
        "from studies.events import Quiet; from tests.support.networks import loaded, observed; "
        "r = observed(loaded('residual')); k = KeptRanges(Path(sys.argv[1]), Quiet(), 9000); "
        "ok = all((k.keep(c * 64, r), k.find('a' * 64) in (None, (r, None)))[1] for c in 'abc' * 20); sys.exit(not ok)"
    )
    running = [popen([sys.executable, "-c", code, str(tmp_path)], env=environment()) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert not list(tmp_path.glob("*.draft"))
