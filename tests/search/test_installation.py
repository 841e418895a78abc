"""What a message says installs an extra, for every way in which bitfront itself is installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from search.installation import install_command, upgrade_advice
from tests.support.paths import ROOT

METADATA = """Metadata-Version: 2.4
Name: bitfront
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: onnxruntime>=1.23 ; extra == 'cpu'
Requires-Dist: onnxruntime-gpu[cuda,cudnn]>=1.23 ; extra == 'gpu'
Requires-Dist: nvidia-ml-py>=12.535 ; extra == 'gpu'
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that pip installed bitfront, from what its `direct_url.json` says; None for an index."""

    def pretend(origin: dict[str, Any] | None) -> None:
        info = tmp_path / "bitfront-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA)
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(metadata, "distribution", lambda name: metadata.Distribution.at(info))

    return pretend


@pytest.mark.parametrize(("facts", "option"), [({"editable": True}, "-e "), ({}, "")])
def test_a_folder_of_source(install: Any, tmp_path: Path, facts: dict[str, Any], option: str) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    install({"url": clone.as_uri(), "dir_info": facts})
    assert install_command("cpu") == f"pip install {option}'{clone}[cpu]'"


def test_a_wheel(install: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "bitfront-0.1.0-py3-none-any.whl"
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("gpu") == f"pip install '{wheel}[gpu]'"


def test_a_repository(install: Any) -> None:
    install({"url": "https://example.org/b.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert install_command("cpu") == "pip install 'bitfront[cpu] @ git+https://example.org/b.git@abc'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///gone/bitfront-0.1.0-py3-none-any.whl", "archive_info": {}}])
def test_what_it_came_from_is_not_there(install: Any, origin: dict[str, Any] | None) -> None:
    """Then the packages themselves are named, which any index has."""
    install(origin)
    assert install_command("cpu") == "pip install 'onnxruntime>=1.23'"
    assert install_command("gpu") == "pip install 'onnxruntime-gpu[cuda,cudnn]>=1.23' 'nvidia-ml-py>=12.535'"


def test_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("cpu") == f"pip install '{ROOT}[cpu]'"


@pytest.mark.parametrize(("facts", "option"), [({"editable": True}, "-e "), ({}, "")])
def test_a_folder_of_source_is_upgraded_in_its_place(
    install: Any, tmp_path: Path, facts: dict[str, Any], option: str
) -> None:
    source = tmp_path / "bitfront"
    source.mkdir()
    install({"url": source.as_uri(), "dir_info": facts})
    assert upgrade_advice() == (
        f"To upgrade bitfront, put the newer source into {source}, then run `pip install {option}{source}`."
    )
    (source / ".git").mkdir()
    assert f"run `git -C {source} pull`, then run `pip install {option}{source}`" in upgrade_advice()


def test_a_repository_is_upgraded_to_its_newest_commit(install: Any) -> None:
    install({"url": "https://example.org/b.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert "`pip install --upgrade 'bitfront @ git+https://example.org/b.git'`" in upgrade_advice()


def test_a_wheel_is_upgraded_by_another_wheel(install: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "bitfront-0.1.0-py3-none-any.whl"
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert "`make wheel`" in upgrade_advice()
    assert "git pull" not in upgrade_advice()
