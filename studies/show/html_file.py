"""Writing one HTML page to a file."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from search.errors import ArtifactError
from studies.outputs import check_file


def write_page(page: str, path: Path, what: str) -> None:
    """Write a page; `path` is either the old file or the whole new one, never a part.

    Args:
        what: names it in messages, for example `the report`.

    Raises:
        ConfigError: the folder is not there or cannot be written, or the path is a folder, device or pipe.
        ArtifactError: the file cannot be written.
    """
    check_file(path, f"writing {what}")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ArtifactError(f"writing {what} {path}: {error.strerror}; free some space or give another path") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
