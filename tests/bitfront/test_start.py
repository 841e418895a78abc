"""How bitfront is started: quickly, not with a user's module of the same name, and not twice by multiprocessing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bitfront.shadows import check_packages
from tests.support.command_line import environment


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True)


def test_importing_bitfront_imports_nothing_else(tmp_path: Path) -> None:
    heavy = ("numpy", "onnx", "optuna", "sqlalchemy", "rich", "studies", "evaluators", "search")
    code = f"import sys, bitfront; print([name for name in {heavy!r} if name in sys.modules], 'load' in dir(bitfront))"
    assert run(tmp_path, "-c", code).stdout == "[] True\n"


@pytest.mark.slow
def test_python_m_bitfront_is_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "bitfront", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "bitfront"), done


@pytest.mark.parametrize("name", ["search.py", "studies/__init__.py", "evaluators.py"])
def test_a_users_module_of_the_same_name_is_named(tmp_path: Path, name: str) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("")
    (tmp_path / "script.py").write_text("import bitfront as bf\nbf.search('model.onnx', 'data.npz')\n")
    says = f"importing bitfront: expected its package {name[:-3].removesuffix('/__init__')!r} in "
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    assert f"ImportError: {says}" in done.stderr
    assert f"Python finds {own} first. Rename that file or folder" in done.stderr
    done = run(tmp_path, "-m", "bitfront", "status")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {says}")


def test_a_module_of_that_name_that_is_already_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    module = type(sys)("search")
    monkeypatch.setitem(sys.modules, "search", module)
    with pytest.raises(ImportError, match="expected its package 'search'"):
        check_packages()


@pytest.mark.slow
def test_a_script_that_multiprocessing_imports_searches_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import multiprocessing, sys\n"
        "import bitfront as bf\n"
        "def work(): pass\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
        "bf.search('model.onnx', 'data.npz')\n"
    )
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    assert "was called while a process of multiprocessing imports" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
