"""What is imported late is not there before it is used, and then it is whole; ONNX Runtime is told to send nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from evaluators.process import child as process
from tests.support.command_line import environment
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
# Later versions may need it at their start, which costs time and nothing else.
WAITS = tuple(int(part) for part in version("onnx-ir").split(".")[:2]) <= (1, 1)
LATE = "from evaluators import late_imports; late_imports.import_late(); import onnx_ir, sys; "
USED = "print('sympy.core' in sys.modules)"


def printed(code: str, *arguments: object) -> list[str]:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not WAITS, reason="another onnx-ir than those that this is known of")
def test_an_evaluator_begins_without_it() -> None:
    start, call = process._BOOT.split("; main(")
    assert call
    load = "from pathlib import Path; from evaluators.process import evaluator; from search.graph import model; "
    read = f"print(len(model.load(Path({str(DIGITS)!r}), batch=4).groups) > 0); "
    assert printed(f"{start}; {load}{read}{USED}", 0, 0, ROOT, *sys.path[1:]) == ["True", "False"]


@pytest.mark.skipif(not WAITS, reason="another onnx-ir than those that this is known of")
def test_a_command_begins_without_it() -> None:
    code = f"import atexit, sys; from bitfront.cli import main as cli; atexit.register(lambda: {USED}); cli.main()"
    out = printed(code, "inspect", DIGITS, "--batch", 4, "--json")
    assert (out[0], out[-1]) == ("{", "False")


@pytest.mark.parametrize(
    "use",
    [
        "print(str(onnx_ir.SymbolicDim('N') * 2 + 1) == '2*N + 1')",
        "print(onnx_ir.SymbolicDim('max(N, 3)').evaluate({'N': 5}) == 5)",
        "from sympy import Symbol; print(Symbol('x') + Symbol('x') == 2 * Symbol('x'))",
        "import sympy.polys.rings; print(sympy.polys.rings.ring('x', sympy.ZZ) is not None)",
        "import sympy; print(onnx_ir.SymbolicDim(sympy.Symbol('N') + 1).evaluate({'N': 2}) == 3)",
    ],
)
def test_used_it_is_whole(use: str) -> None:
    assert printed(f"{LATE}{use}; {USED}") == ["True", "True"]


def test_nobody_else_sees_a_stand_in() -> None:
    assert printed(f"{LATE}print([name for name in late_imports.LATE if name in sys.modules])") == ["[]"]
    before = "import sympy; from evaluators import late_imports; late_imports.import_late(); import onnx_ir._core; "
    assert printed(f"{before}print(onnx_ir._core.sympy is sympy)") == ["True"]


def test_what_needs_it_at_once_gets_it() -> None:
    """As a later version of onnx_ir may."""
    code = "late_imports.LATE = ('sympy',); late_imports.import_late(); import onnx_ir, sympy; "
    check = "print(onnx_ir._symbolic_shapes._ALLOWED_FUNCTIONS['max'] is sympy.Max)"
    assert printed(f"from evaluators import late_imports; {code}{check}") == ["True"]


def test_asked_twice_it_is_there_once() -> None:
    assert printed(LATE * 2 + "print(sys.meta_path.count(late_imports._Finder))") == ["1"]


@pytest.mark.parametrize(("chosen", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_reports_nothing_unless_its_user_says_so(
    chosen: dict[str, str], expected: str, tmp_path: Path
) -> None:
    code = "import evaluators, onnxruntime, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    around = environment() | {"TMPDIR": str(tmp_path)} | chosen
    around = {name: value for name, value in around.items() if name != "ORT_DISABLE_TELEMETRY" or name in chosen}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=around, capture_output=True, text=True, timeout=400
    )
    assert done.stdout.split() == [expected], done.stderr
    assert chosen or not list(tmp_path.iterdir())  # where it reports, it keeps the number of a session there
