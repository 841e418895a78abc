"""Ranges in this user's cache folder, by what they were made of: for later studies of the same, in any database."""

from __future__ import annotations

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from search.errors import ConfigError
from search.values import Correction, Ranges, RecoveryRecord
from studies.artifacts.folder import Artifacts
from studies.artifacts.locations import cache_home
from studies.events import Events
from studies.store.store import Store

MOST_BYTES = 256 * 2**20
_FOLDER = "ranges-1"  # another one where the same key would name something else
_SUFFIX = ".json.gz"


class KeptRanges:
    """A folder with a file for each key, which several processes may use at once: a file is there whole or not at all.

    Nothing here ends a search: what cannot be read or written is told and left out.

    Args:
        folder: that is made by the first `keep`; None to find and keep nothing.
    """

    def __init__(self, folder: Path | None, events: Events, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._events = events
        self._most_bytes = most_bytes

    @classmethod
    def of_user(cls, events: Events, *, used: bool = True) -> KeptRanges:
        """The folder of this user; none where `used` is False, or the user has none."""
        try:
            return cls(cache_home() / _FOLDER if used else None, events)
        except ConfigError:
            return cls(None, events)

    def find(self, key: str) -> tuple[Ranges, RecoveryRecord | None] | None:
        """What was kept under a key of 64 hex digits; None if nothing was, or it is damaged."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}{_SUFFIX}"
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
            record = data["recovery"]
            ranges_and_record = (
                Ranges.from_json(data["ranges"]),
                None if record is None else RecoveryRecord.from_json(record),
            )
        except FileNotFoundError:
            return None
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
            self._events.note(f"calibration: the ranges kept in {path} cannot be read, and are made again: {error}")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used ones go first
        return ranges_and_record

    def keep(self, key: str, ranges: Ranges, record: RecoveryRecord | None = None) -> None:
        """Keep ranges, and let go of the least recently used ones beyond the bound."""
        if self._folder is None:
            return
        data = {"ranges": ranges.to_json(), "recovery": None if record is None else record.to_json()}
        packed = gzip.compress(json.dumps(data).encode(), compresslevel=1)
        if len(packed) > self._most_bytes:
            return
        draft = self._folder / f"{key}.{secrets.token_hex(8)}.draft"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(packed)
            draft.replace(self._folder / f"{key}{_SUFFIX}")
            self._prune()
        except OSError as error:
            self._events.note(f"calibration: {self._folder} keeps no ranges for later searches: {error.strerror}")
            with suppress(OSError):
                draft.unlink()

    def _prune(self) -> None:
        assert self._folder is not None
        known = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process has pruned it
                seen = path.stat()
                known.append((seen.st_mtime, seen.st_size, path))
        left = sum(size for _, size, _ in known)
        for _, size, path in sorted(known):
            if left <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            left -= size


def load_ranges(store: Store, artifacts: Artifacts, study_target_id: int, digest: str) -> Ranges:
    """The ranges of a target with the corrections of all mixes that have their own.

    Args:
        digest: of the ranges that the target was calibrated with.

    Raises:
        ArtifactError: they are gone.
    """
    ranges = Ranges.from_json(json.loads(artifacts.read_bytes(digest)))
    return ranges.with_mixes(read_mixes(store, study_target_id))


def read_mixes(store: Store, study_target_id: int) -> dict[str, Mapping[str, Correction]]:
    """Digest of an assignment → scales and offsets by op that its engine has in place of those of all INT8."""
    records = store.evaluations.mix_biases(study_target_id)
    made = ((record.assignment.digest, record.mix_corrections) for record in records)
    return {digest: recovery.corrections for digest, recovery in made if recovery is not None}
