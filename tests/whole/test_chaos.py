"""Workers, their database and a disk fail, and nothing is lost or doubled."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.crashes.storm import STUDY, Storm, status, write_list
from tests.support.servers.databases import postgresql_server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals and limits files of a process"),
    pytest.mark.slow,
]


@pytest.mark.timeout(1200)
def test_a_study_survives_whatever_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    write_list(tmp_path, 14, seed=1)
    with postgresql_server() as server:
        storm = Storm(tmp_path, server, workers=3, trials=14, every_s=4, lease_s=4, seed=1, pause_s=0.5)
        story = storm.run(seconds=1000)
        storm.compare()
        shown = status(storm.url, tmp_path)
    assert story.good, asdict(story)
    assert (story.evaluations, story.takeovers >= 1) == (14, True), story
    [target] = shown["targets"]
    assert (shown["study"], shown["state"], target["evaluations"]) == (STUDY, "done", 14)
    assert [worker for worker in target["workers"] if worker["live"]] == []
