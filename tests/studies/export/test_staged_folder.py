"""Folders that an export fills: all of it or nothing, wherever they are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from search.errors import ArtifactError
from studies.export.folder import staged_folder


def fill(out: Path) -> None:
    with staged_folder(out, "exporting") as staging:
        (staging / "engine").write_text("new")
        (staging / "more").mkdir()
        assert not (out / "engine").exists()


def fill_half(staging: Path) -> None:
    (staging / "engine").write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("kind", ["new", "deep", "empty", "link", "here"])
def test_a_new_or_empty_folder_is_filled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    if kind in ("empty", "here"):
        out.mkdir()
    if kind == "link":
        (tmp_path / "target").mkdir()
        out.symlink_to(tmp_path / "target")
    if kind == "here":
        monkeypatch.chdir(out)
        out = Path()
    if kind == "deep":
        out = out / "in" / "side"
    fill(out)
    assert sorted(path.name for path in out.iterdir()) == ["engine", "more"]
    assert (tmp_path / "out").is_symlink() == (kind == "link")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"out", "target"} if kind == "link" else {"out"})


@pytest.mark.parametrize("here", [False, True])
def test_what_fails_leaves_nothing(here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    if here:
        out.mkdir()
        monkeypatch.chdir(out)
    with (
        pytest.raises(ArtifactError, match=r"No space left on device. Free some space"),
        staged_folder(out, "") as part,
    ):
        fill_half(part)
    assert list(tmp_path.rglob("*")) == ([out] if here else [])


def test_another_error_is_none_of_space(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught, staged_folder(tmp_path / "out", "exporting"):
        raise OSError(errno.EBUSY, "Device or resource busy")
    assert "Free some space" not in str(caught.value)
