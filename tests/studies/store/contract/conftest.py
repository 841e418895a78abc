"""The contract of the store: whatever database is named, its tests run on SQLite, PostgreSQL and MariaDB alike.

Other tests use SQLite alone, or are about what only servers do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.study_rows import KINDS, fresh_url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of every kind that holds no study."""
    return fresh_url(request.param, tmp_path, with_tables=True)
