"""Names from a stranger's file are shown by a terminal, and never obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from rich.text import Text

from bitfront.printing.output import SafeConsole
from tests.support.command_line import invoke, ok, three_layers

NAME = "evil\x1b]0;title\x07\x1b[31m\x9b2J\u202ename"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    proto = three_layers()
    proto.graph.node[0].name = NAME
    onnx.save(proto, tmp_path / "m.onnx")
    return "m.onnx"


@pytest.mark.parametrize(
    "verb", [("inspect", "m.onnx", "--backend", "fake"), ("inspect", "m.onnx", "--against", "m.onnx")]
)
def test_tables_show_control_characters_and_send_none(model: str, verb: tuple[str, ...]) -> None:
    shown = ok(*verb)
    assert "evil" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_json_escapes_them_and_keeps_the_name(model: str) -> None:
    shown = ok("inspect", model, "--backend", "fake", "--json")
    assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert any(NAME in group["nodes"] for group in json.loads(shown)["groups"])


def test_errors_send_none(model: str) -> None:
    result = invoke("inspect", model, "--backend", "fake", "--keep", "\x1b[31m=fp32")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


def test_colours_of_our_own_are_still_sent(capsys: pytest.CaptureFixture[str]) -> None:
    console = SafeConsole(force_terminal=True, color_system="standard")
    console.print(Text("red \x1b[2J", style="red"))
    assert capsys.readouterr().out == "\x1b[31mred \N{REPLACEMENT CHARACTER}[2J\x1b[0m\n"
