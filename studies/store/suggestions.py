"""Commands for messages, which can be pasted into the shell that bitfront was called from."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from studies.options.urls import default_url
from studies.store.database.database_url import hide_password, is_file, parse_url

PROGRAM = "BITFRONT_PROGRAM"  # of worker processes: how their parent was called


def command(verb: str, study: str, *words: str, storage: str | None) -> str:
    """`bitfront VERB STUDY WORDS`, and the database where it is not the default, its password hidden.

    Args:
        words: behind the study, ready for the shell.
        storage: URL of the study's database; None for the default one.
    """
    where = _storage_words(storage) if storage else ()
    if study.startswith("-"):  # which would be read as an option
        return " ".join([program(), verb, *words, *where, "--", shlex.quote(study)])
    return " ".join([program(), verb, shlex.quote(study), *words, *where])


def program() -> str:
    """What calls this bitfront from the current folder, ready for the shell.

    It is `bitfront` if the shell would find this one by that name, and its path as in `.venv/bin/bitfront` if not.
    """
    script = Path(sys.argv[0])
    if PROGRAM in os.environ:
        return os.environ[PROGRAM]
    if script.name == "__main__.py" and script.parent.name == "bitfront":
        return f"{shlex.quote(_shorten_path(sys.executable))} -m bitfront"
    if script.name != "bitfront" or not script.is_file():  # called from Python
        return "bitfront"
    command_path = shutil.which("bitfront")
    if command_path is not None and os.path.samefile(command_path, script):
        return "bitfront"
    short = _shorten_path(str(script))
    return shlex.quote(short if os.sep in short else f".{os.sep}{short}")


def _storage_words(storage: str) -> tuple[str, ...]:
    url, default = parse_url(storage), parse_url(default_url())
    if hide_password(url) == hide_password(default):
        return ()
    if is_file(url):
        url = url.set(database=_shorten_path(str(url.database)))
    return "--storage", shlex.quote(hide_password(url))


def _shorten_path(path: str) -> str:
    """A path as seen from the current folder, if it is below that."""
    folder = os.getcwd()
    absolute_path = os.path.abspath(path)
    return (
        os.path.relpath(absolute_path, folder) if absolute_path.startswith(os.path.join(folder, "")) else absolute_path
    )
