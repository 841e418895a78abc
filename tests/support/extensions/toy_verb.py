"""A verb of another package: `greet`."""

from __future__ import annotations

from typing import Annotated

from bitfront.verbs.command import Typed, prints
from search.errors import ConfigError


def greet(name: Annotated[str, Typed("NAME")], *, loudly: bool = False) -> str:
    """Greet somebody.

    Args:
        name: Whom.
        loudly: In capitals.
    """
    if name == "nobody":
        raise ConfigError("greeting nobody: expected a name, got none. Give one.")
    return f"hello {name}".upper() if loudly else f"hello {name}"


@prints(greet, json=lambda said: {"said": said})
def _print_greeting(said: str) -> None:
    from bitfront.printing.output import out

    out.print(said, markup=False)
