"""Who may import whom: studies → evaluators → search; heavy modules in few places; everything without any of them."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from bitfront.cli.main import VERBS, program_for
from bitfront.verbs.command import printers_of
from search.installation import install_command
from tests.support.command_line import copy_finished
from tests.support.paths import ROOT

LAYERS = ("search", "evaluators", "studies", "bitfront")
STORE = {str(path.relative_to(ROOT)) for path in (ROOT / "studies/store").rglob("*.py")}
TENSORRT = {str(path.relative_to(ROOT)) for path in (ROOT / "evaluators/backends/tensorrt").glob("*.py")}
RUN_SCRIPT = "evaluators/backends/run_script"  # parts of a script that runs alone
ALLOWED = {
    "onnxruntime": {
        "evaluators/backends/onnxruntime/device.py",
        "evaluators/calibration/graph_sessions.py",
        f"{RUN_SCRIPT}/onnxruntime_engine.py",
    },
    "tensorrt": {*TENSORRT, f"{RUN_SCRIPT}/tensorrt_engine.py"},
    "cuda": {*TENSORRT, f"{RUN_SCRIPT}/tensorrt_engine.py"},
    "openvino": {"evaluators/backends/openvino/device.py", f"{RUN_SCRIPT}/openvino_engine.py"},
    "sqlalchemy": STORE,
    "pynvml": {"evaluators/backends/nvidia/discovery.py"},
    "pickle": set[str](),
    "torch": set[str](),
}
# Installed by extras or not at all, so that a machine without them must be able to import every module.
OPTIONAL = (
    "onnxruntime",
    "openvino",
    "tensorrt",
    "cuda",
    "pynvml",
    "torch",
    "psycopg",
    "pymysql",
    "optuna_dashboard",
    "boto3",
    "PIL",
    "prometheus_client",
    "scipy",
)


@functools.cache
def sources() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


@functools.cache
def imported(path: str) -> tuple[str, ...]:
    """Full names of what a file imports, also inside functions and for types alone."""
    return tuple(_imported(path, ast.parse((ROOT / path).read_text())))


def _imported(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.slow
def test_imports_point_one_way() -> None:
    wrong = []
    for path in sources():
        above = LAYERS[LAYERS.index(path.split("/")[0]) + 1 :]
        wrong += [f"{path} imports {name}" for name in imported(path) if name.split(".")[0] in above]
    assert wrong == []


# What these packages may import of `studies`, so that what runs a search knows nothing of how it is shown.
OF_STUDIES = {
    "judging": {"events", "options", "run_clock", "store"},
    "show": {"bounded_server", "judging", "options", "outputs", "store", "trials"},
    "export": {"__version__", "environment", "judging", "run", "show", "store", "trials"},
    "gate": {"__version__", "artifacts", "events", "judging", "options", "run", "store"},
    "inspect": {"artifacts", "environment", "events", "judging", "options", "run", "show", "store"},
}


@pytest.mark.parametrize("package", OF_STUDIES)
def test_what_judges_and_shows_knows_nothing_of_what_runs(package: str) -> None:
    inside = [path for path in sources() if path.startswith(f"studies/{package}/")]
    names = {name.split(".")[1] for path in inside for name in imported(path) if name.startswith("studies.")}
    assert names - {package} <= OF_STUDIES[package]


@pytest.mark.parametrize("package", ["options", "store", "judging", "crew", "artifacts", "trials", "run"])
def test_what_runs_knows_nothing_of_how_it_is_shown(package: str) -> None:
    inside = [path for path in sources() if path.startswith(f"studies/{package}/")]
    assert inside
    assert not [name for path in inside for name in imported(path) if name.startswith("studies.show")]


def test_heavy_modules_are_imported_only_where_they_belong() -> None:
    wrong = []
    for path in sources():
        allowed = {module for module, places in ALLOWED.items() if path in places}
        heavy = ALLOWED.keys() - allowed
        wrong += [f"{path} imports {name}" for name in imported(path) if name.split(".")[0] in heavy]
    assert wrong == []


# Packages from the ground up. One imports only those of lower floors of its room, also for types and inside functions.
FLOORS = {
    "search": (
        *("errors values", "references", "extensions", "graph", "space"),
        *("regression solver", "forecast", "sampler"),
    ),
    "evaluators": (
        *(
            "cores forks held_folders late_imports stopwatch",
            "data lent_constants",
            "calibration metrics",
            "lowering",
            "engine",
        ),
        *("backends measure", "diagnose engine_files recovery", "process"),
    ),
    "studies": (
        *(
            "bounded_server environment events guard interrupts options outputs run_clock",
            "store",
            "artifacts crew judging",
            "trials",
        ),
        *("run show", "export fleet gate inspect monitoring", "lifecycle"),
    ),
    "bitfront": (
        "columns inputs metrics printing shadows trial wording",
        "verbs",
        "study",
        "progress",
        "searches cli",
        "__main__",
    ),
}
MOST_FILES, MOST_LINES = 12, 400


@pytest.mark.parametrize("room", FLOORS)
def test_packages_import_only_those_below_them(room: str) -> None:
    floors = {package: floor for floor, names in enumerate(FLOORS[room]) for package in names.split()}
    wrong = []
    for path in sources():
        if path.startswith(f"{room}/") and path != f"{room}/__init__.py":
            here = path.split("/")[1].removesuffix(".py")
            for name in imported(path):
                there = name.split(".")[1] if name.startswith(f"{room}.") else here
                if there != here and floors.get(there, -1) >= floors[here]:
                    wrong.append(f"{path} imports {name}")
    assert wrong == []
    assert len(FLOORS[room]) <= 8


def test_no_file_imports_in_a_circle_not_even_for_types() -> None:
    graph = {path[:-3].replace("/", "."): {name for name in imported(path) if _is_ours(name)} for path in sources()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join((*way, module))
        if module not in done:
            for name in graph.get(module, ()):
                visit(name, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_folders_and_files_are_small_enough_to_look_through() -> None:
    """A budget to think by: whoever needs more says why here."""
    files = Counter(str(Path(path).parent) for path in sources() if not path.endswith("__init__.py"))
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in sources()}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def _is_ours(name: str) -> bool:
    return (ROOT / f"{name.replace('.', '/')}.py").exists()


def test_ruff_knows_the_same_rules() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for module in ("onnxruntime", "tensorrt", "cuda", "sqlalchemy", "pynvml", "pickle"):
        assert f'"{module}".msg' in text
    for place in ("studies/store/*", "evaluators/backends/tensorrt/*"):
        assert f'"{place}" = ["TID251"]' in text


BLOCKED = f"""
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
for name in {[path[:-3].replace("/", ".").removesuffix(".__init__") for path in sources() if "__main__" not in path]!r}:
    importlib.import_module(name)
"""


# What a process that reads a study does without: it answers in the time that this takes to import.
NOT_TO_READ = (
    *("alembic", "boto3", "filelock", "jinja2", "msgspec", "numpy.ma", "onnx", "onnx_ir", "onnxscript", "optuna"),
    *("plotly", "psutil", "scipy", "sqlalchemy.orm", "torch"),
    *(
        "evaluators.process.connection",
        "evaluators.backends.nvidia.state",
        "search.graph.model",
        "search.space.choices",
    ),
    *(
        "studies.run.loop",
        "studies.run.session.setup",
        "studies.run.local_run",
        "studies.fleet.processes",
        "studies.export.export",
        "studies.show.report.page",
    ),
    *("studies.lifecycle.new_study", "studies.lifecycle.delivery", "bitfront.verbs.analyses"),
)


@pytest.mark.slow
def test_reading_verbs_import_nothing_that_they_do_not_need(tmp_path: Path) -> None:
    copy_finished(tmp_path)
    verbs = (["status", "small"], ["front", "small"], ["show", "small", "0"], ["front", "small", "--all"], ["status"])
    code = f"import sys\nfor words in {verbs!r}:\n"
    code += "    from bitfront.cli.main import program_for; program_for(words)(words, standalone_mode=False)\n"
    code += f"print([name for name in {NOT_TO_READ!r} if name in sys.modules])"
    done = run(code, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr


def test_a_verb_is_in_the_module_that_is_imported_for_it() -> None:
    for verb, row in VERBS.items():
        assert "." not in row.module
        assert printers_of(getattr(importlib.import_module(f"bitfront.verbs.{row.module}"), verb)), verb
    assert list(get_command(program_for(["--help"])).commands) == list(VERBS)  # type: ignore[attr-defined]
    listed = get_command(program_for(["front", "--help"])).commands  # type: ignore[attr-defined]
    assert [name for name, command in listed.items() if len(command.params) > 1] == ["front"]


def run(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_every_module_imports_without_what_extras_install() -> None:
    done = run(BLOCKED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def unwrapped(text: str) -> str:
    """Without white space, as lines are broken where the screen ends."""
    return "".join(text.split())


@pytest.mark.slow
def test_without_a_runtime_the_doctor_and_search_say_what_to_install() -> None:
    start = BLOCKED + "import importlib.util\nfind = importlib.util.find_spec\n"
    start += f"importlib.util.find_spec = lambda name: None if name in {OPTIONAL!r} else find(name)\n"
    doctor = run(start + "sys.argv = ['bitfront', 'doctor']; from bitfront.cli.main import main; main()")
    assert doctor.returncode == 1, doctor
    assert unwrapped(install_command("cpu")) in unwrapped(doctor.stdout)
    typed = ["bitfront", "search", "model.onnx", "--data", "data.npz"]
    search = run(start + f"sys.argv = {typed!r}; from bitfront.cli.main import main; main()")
    assert search.returncode == 2, search
    assert unwrapped(install_command("cpu")) in unwrapped(search.stderr)
    assert "Traceback" not in search.stderr


@pytest.mark.slow
def test_tests_share_only_what_is_in_support() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    shared = {name for path in files for name in imported(str(path.relative_to(ROOT))) if name.startswith("tests.")}
    assert [name for name in shared if not name.startswith("tests.support")] == []
    assert len({path.stem for path in files}) == len(files), "conftest.py orders files by their names"
