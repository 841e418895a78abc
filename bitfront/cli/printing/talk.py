"""How much a command tells, and where: `--verbose` and `--log-file`, which every verb that runs something takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Talk:
    """What was asked of one command.

    Attributes:
        verbose: tell forecasts, audits and whatever else explains a search.
        log_file: gets every line with its time; None for none.
    """

    verbose: bool = False
    log_file: Path | None = None


_TALK: ContextVar[Talk] = ContextVar("talk", default=Talk())  # noqa: B039 - it is frozen


def verbose() -> bool:
    """Whether the command that runs was given `--verbose`."""
    return _TALK.get().verbose


def log_file() -> Path | None:
    """Where the command that runs writes what it tells."""
    return _TALK.get().log_file


@contextmanager
def talking(asked: Talk) -> Iterator[None]:
    """Let the block tell so much."""
    token = _TALK.set(asked)
    try:
        yield
    finally:
        _TALK.reset(token)
