"""Where a host keeps copies of a study's files."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

import pytest

from search.errors import ConfigError
from studies.artifacts.locations import cache_home


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "bitfront"


def test_a_relative_folder_for_caches_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "some/folder")
    assert cache_home().is_absolute()


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> Any:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"no home folder\. Set XDG_CACHE_HOME"):
        cache_home()
