"""Errors of the operating system as messages and exit codes, and checks of files to be written."""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from search.errors import ConfigError, InputError

# What a terminal takes as a command, or writes from right to left. Names of files come from anywhere.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# A path that cannot be what it was named for. Any other refusal, a full disk say, is no mistake of the command.
_PATHS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EEXIST", "EISDIR", "ELOOP", "EINVAL", "ENAMETOOLONG", "ENOENT", "ENOTDIR", "EPERM", "EROFS")
)


def without_controls(text: str) -> str:
    """A text that a terminal only shows: each control character but line ends and tabs is a replacement character."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped_controls(text: str) -> str:
    """A JSON text that a terminal only shows: an escape stands for each control character."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def error_text(error: Exception) -> str:
    """The message of an error; of the system's, what was used, why not, and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"reading or writing: {reason}. Correct that, then try again."
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    advice = "Give another path, or correct this one." if error.errno in _PATHS else "Correct that, then try again."
    return f"reading or writing {name}: {reason}. {advice}"


def exit_code(error: Exception) -> int:
    """2 for what the user has to say otherwise, 1 for what could not go on."""
    mistaken = isinstance(error, InputError) or (isinstance(error, OSError) and error.errno in _PATHS)
    return 2 if mistaken else 1


def prepare() -> None:
    """Have all three standard streams: one that was closed is empty, or is thrown away.

    Else the next file that is opened, a database say, would take its number and get what others print. What an encoding
    lacks is shown as a question mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    with suppress(AttributeError):  # something else was put in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def give_up() -> None:
    """Write what is left to standard output, or forget it: it would be tried again at the end, with a traceback."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def check_file(path: Path, doing: str) -> None:
    """Refuse a path where no file can be written, or where something else is than a file; creates nothing.

    Args:
        doing: what is being done, as it begins the message.

    Raises:
        ConfigError: the folder is not there or cannot be written, or the path is a folder, device or pipe.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ConfigError(f"{doing} {path}: expected a file in an existing folder, got {kind}. Give another path.")
    if not path.parent.is_dir():
        raise ConfigError(
            f"{doing} {path}: expected a path in an existing folder. Make the folder, or give another path."
        )
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{doing} {path}: the folder cannot be written. Give a path in another folder.")
