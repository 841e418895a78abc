"""Reading and showing database URLs, and finding the artifacts of a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from search.errors import StudyError

MYSQL = ("mysql", "mariadb")
SECRETS = ("password", "passwd", "passphrase", "secret", "token")


def parse_url(url: str) -> URL:
    """Read a database URL; SQLite paths become absolute, so that a later chdir does not move the database.

    Raises:
        StudyError: it is no database URL, or names an SQLite database that is no file.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        # An unreadable URL is not repeated: nobody can tell where in it the password stands.
        raise StudyError(
            "The database URL cannot be read. Expected dialect://user:password@host/database, "
            "for example sqlite:///bitfront.db or postgresql+psycopg://me@db/studies, with special characters "
            "in a password written as %40 and the like."
        ) from None
    if backend == "mariadb":
        return parsed.set(drivername=parsed.drivername.replace("mariadb", "mysql", 1))  # the name that Optuna knows
    if backend != "sqlite":
        return parsed
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise StudyError(
            f"The database {hide_password(parsed)} is not a plain file. A study must outlive its process: "
            "give a path, for example sqlite:///bitfront.db."
        )
    if parsed.query:
        raise StudyError(
            f"The database {hide_password(parsed)} has options, {', '.join(parsed.query)}, but an SQLite file takes "
            "none. Leave out the ? and everything behind it."
        )
    # Through links too: locks and engines lie beside the file, wherever it is looked at from.
    return parsed.set(database=os.path.realpath(parsed.database))


def is_file(url: URL) -> bool:
    """Whether the database is an SQLite file of this machine, not one on a server."""
    return url.get_backend_name() == "sqlite"


def hide_password(url: URL | str) -> str:
    """The URL with passwords, also those in its query, replaced by ***; fit for messages, logs and reports."""
    parsed = make_url(url) if isinstance(url, str) else url
    hidden = parsed.update_query_dict(dict.fromkeys(secrets(parsed), "***"))
    return hidden.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def secrets(url: URL) -> dict[str, Any]:
    """What stands in the query of a URL and must not be shown."""
    return {key: value for key, value in url.query.items() if any(word in key.lower() for word in SECRETS)}


def artifact_folder(url: str, folder: Path | None = None) -> Path:
    """Where artifacts of this database lie: the folder given, else beside the SQLite file.

    Raises:
        StudyError: the database is on a server and no folder was given.
    """
    if folder is not None:
        return folder.absolute()
    parsed = parse_url(url)
    if is_file(parsed):
        return Path(f"{parsed.database}.artifacts")
    raise StudyError(
        f"The database {hide_password(parsed)} is on a server, so engines need a folder of their own. "
        "Give a folder that all workers of the study can use, or a bucket: --artifacts s3://bucket/prefix."
    )


def check_shareable(url: str) -> None:
    """Refuse a database that several worker processes cannot share.

    Raises:
        StudyError: it is an SQLite file.
    """
    parsed = parse_url(url)
    if is_file(parsed):
        raise StudyError(
            f"{hide_password(parsed)} is an SQLite file, and only one process at a time may run a study in it: its one "
            "lock makes every other writer wait, and on folders shared between hosts that lock is not reliable. "
            "More workers need PostgreSQL or MySQL. Start PostgreSQL, for example with\n"
            "  docker run -d -p 5432:5432 -e POSTGRES_USER=bitfront -e POSTGRES_PASSWORD=… -e POSTGRES_DB=bitfront "
            "postgres:17\n"
            "and give --storage postgresql+psycopg://bitfront:…@HOST/bitfront."
        )
