"""Commands for messages, quoted for a shell."""

from __future__ import annotations

import shlex

from studies.options.urls import default_url
from studies.store.database.database_url import hide_password, parse_url


def command(verb: str, study: str, *words: str, storage: str | None = None) -> str:
    """`bitfront VERB STUDY WORDS`, and the database where it is not the default, its password hidden.

    Args:
        words: behind the study, ready for the shell.
    """
    elsewhere = storage and _shown(storage) != _shown(default_url())
    where = ("--storage", shlex.quote(hide_password(storage))) if storage and elsewhere else ()
    if study.startswith("-"):  # which would be read as an option
        return " ".join(["bitfront", verb, *words, *where, "--", shlex.quote(study)])
    return " ".join(["bitfront", verb, shlex.quote(study), *words, *where])


def _shown(url: str) -> str:
    return hide_password(parse_url(url))
