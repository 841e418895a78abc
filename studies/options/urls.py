"""URLs in options: of the database, and of the folder or object store of artifacts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from search.errors import ConfigError

DEFAULT_STORAGE = "sqlite:///bitfront.db"
SCHEMES = ("s3", "gs")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_WANTED = "a folder, file:///folder, s3://bucket/prefix or gs://bucket/prefix"


def default_url() -> str:
    """The database used when none is named: that of BITFRONT_STORAGE, where no other user of the machine can read its
    password, else a file in the current folder.
    """
    return os.environ.get("BITFRONT_STORAGE") or DEFAULT_STORAGE


def mask_password(url: str) -> str:
    """The database URL with its password replaced by `***`, fit for messages and reports."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:***@", url)
    return re.sub(r"((?:password|passwd|pwd)=)[^&\s]*", r"\1***", url, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Bucket:
    """Where in an object store: `s3` or `gs`, a bucket, and what stands before every key; empty for nothing."""

    scheme: str
    name: str
    prefix: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}" + (f"/{self.prefix}" if self.prefix else "")

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


def parse_place(text: str) -> Path | Bucket:
    """What `--artifacts` names: a folder, or a place in an object store.

    Raises:
        ConfigError: another kind of URL, one without a bucket, or one with a user, a query or a fragment.
    """
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    # What stands before an @ may be a secret, so the text is not repeated.
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"--artifacts {parts.scheme}://…: expected {_WANTED}, got one with a user, a password or a query. "
            "Credentials come from the environment: AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS and the like."
        )
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return Path(unquote(parts.path))
    if parts.scheme in SCHEMES and _BUCKET.fullmatch(parts.netloc):
        return Bucket(parts.scheme, parts.netloc, parts.path.strip("/"))
    raise ConfigError(f"--artifacts {text}: expected {_WANTED}. Write it like one of these.")
