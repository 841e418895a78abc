"""A network's work folder as files of at most 15 MiB, and back. The standard library alone, for bare machines."""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

PART_BYTES = 15 * 2**20
_SMALL_BYTES = 2**20
_MODEL = "model.onnx"


def pack(work: Path, networks: Sequence[str], parts: Path, name: str, *, models: bool = True) -> list[Path]:
    """Write what a fresh machine needs to go on, engines left out, as PARTS/NAME.00, .01, …; the files.

    Databases are copied as they stand, also while others write to them. Engines above 1 MiB are left out.

    Args:
        models: with the networks themselves, which are most of it and never change.
    """
    parts.mkdir(parents=True, exist_ok=True)
    for stale in parts.glob(f"{name}.[0-9][0-9]"):
        stale.unlink()
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "packed.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for network in networks:
                for path in _to_keep(work / network, models):
                    tar.add(_steady(path, Path(folder)), path.relative_to(work))
        return list(_split(archive, parts, name))


def unpack(parts: Path, name: str, work: Path) -> None:
    """Put packed parts back into a work folder.

    Raises:
        FileNotFoundError: there are none of that name.
    """
    found = sorted(parts.glob(f"{name}.[0-9][0-9]"))
    if not found:
        raise FileNotFoundError(f"unpacking {name}: expected {parts / name}.00 and so on, found none")
    work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        joined = Path(folder) / "packed.tar"
        joined.write_bytes(b"".join(part.read_bytes() for part in found))
        with tarfile.open(joined) as tar:
            tar.extractall(work, filter="data")


def _to_keep(folder: Path, models: bool) -> Iterator[Path]:
    wanted = ["training.json", "results.json", "*.jsonl", "*.db", "scaling.sql", "scaling.json"]
    wanted += [_MODEL] if models else []
    yield from (path for pattern in wanted for path in sorted(folder.glob(pattern)))
    yield from folder.glob("data/digits.npz")
    for path in sorted(folder.glob("*.db.artifacts/**/*")):  # of artifacts the ranges, not the engines
        if path.is_file() and path.stat().st_size < _SMALL_BYTES:
            yield path


def _steady(path: Path, folder: Path) -> Path:
    """A copy of a database that may be written to at this moment; any other file itself."""
    if path.suffix != ".db":
        return path
    copy = folder / "copy.db"
    copy.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as sink:
        source.backup(sink)
    return copy


def _split(archive: Path, parts: Path, name: str) -> Iterator[Path]:
    with archive.open("rb") as source:
        number = 0
        while piece := source.read(PART_BYTES):
            part = parts / f"{name}.{number:02d}"
            part.write_bytes(piece)
            yield part
            number += 1
