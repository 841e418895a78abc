"""The lock of a study on SQLite, where one process at a time may run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from search.errors import StudyError
from studies.crew import locked_study


def test_a_study_is_held_by_one_process_whichever_way_its_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    (tmp_path / "link.db").symlink_to("a.db")
    urls = [f"sqlite:///{tmp_path / name}" for name in ("a.db", "link.db", "b.db")]
    locks = tmp_path / "engines"  # which databases may share
    with locked_study(locks, urls[0], "net"):
        with pytest.raises(StudyError, match="another process is running it"), locked_study(locks, urls[1], "net"):
            pass
        with locked_study(locks, urls[0], "other"), locked_study(locks, urls[2], "net"):
            pass
    with locked_study(locks, urls[1], "net"):
        pass
