"""The command that runs, as those who print need to know it: `--verbose` and `--log-file`."""

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
        verb: its name.
        verbose: tell forecasts, audits and whatever else explains a search.
        log_file: gets every line with its time; None for none.
    """

    verb: str = ""
    verbose: bool = False
    log_file: Path | None = None


_TALK: ContextVar[Talk] = ContextVar("talk", default=Talk())  # noqa: B039 - it is frozen


def talk() -> Talk:
    """What was asked of the command that runs."""
    return _TALK.get()


@contextmanager
def set_talk(new_talk: Talk) -> Iterator[None]:
    """Let the block print as much as this says."""
    token = _TALK.set(new_talk)
    try:
        yield
    finally:
        _TALK.reset(token)
