"""The URL of the database: which is used when none is named, and how one is shown without its password."""

from __future__ import annotations

import os
import re

DEFAULT_STORAGE = "sqlite:///bitfront.db"


def default_url() -> str:
    """The database used when none is named: that of BITFRONT_STORAGE, where no other user of the machine can read its
    password, else a file in the current folder.
    """
    return os.environ.get("BITFRONT_STORAGE") or DEFAULT_STORAGE


def mask_password(url: str) -> str:
    """The database URL with its password replaced by `***`, fit for messages and reports."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:***@", url)
    return re.sub(r"((?:password|passwd|pwd)=)[^&\s]*", r"\1***", url, flags=re.IGNORECASE)
