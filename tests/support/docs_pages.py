"""What the pages of the documentation hold: fenced blocks and command lines."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import typer

from bitfront.cli.main import program

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM: Any = typer.main.get_command(program())
VERBS: dict[str, Any] = dict(PROGRAM.commands)


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, *languages: str) -> list[str]:
    """Fenced blocks of these languages."""
    return [body for language, body in FENCE.findall(read(path)) if language in languages]


def parse(arguments: str) -> tuple[str, dict[str, Any]]:
    """The verb of a command line and what it is given, as the program itself reads them."""
    words = shlex.split(arguments, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    context = VERBS[words[0]].make_context(words[0], words[1:])
    return words[0], context.params
