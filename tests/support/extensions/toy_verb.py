"""A verb of another package: `greet`."""

from __future__ import annotations

from typing import Annotated

import typer

from bitfront.cli.base import verb
from bitfront.cli.printing.output import out
from search.errors import ConfigError


@verb
def greet(
    name: Annotated[str, typer.Argument(help="Whom.", metavar="NAME")],
    loudly: Annotated[bool, typer.Option("--loudly", help="In capitals.")] = False,
) -> None:
    """Greet somebody."""
    if name == "nobody":
        raise ConfigError("greeting nobody: expected a name, got none. Give one.")
    out.print(f"hello {name}".upper() if loudly else f"hello {name}", markup=False)
