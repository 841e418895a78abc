"""Sharing a study's model and data with other hosts: stored among its artifacts, and fetched where they are missing.

Files are shipped: the ONNX file with its external data, `.npz` files, a calibration cache. Folders of data and
functions that give data are not; every host has to have them.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from search.errors import ArtifactError, StudyError
from search.graph import onnx_file
from search.references import is_file, names_function, parse_call
from search.values import digest_of
from studies.artifacts.folder import TEMPORARY, Artifacts, hash_of
from studies.artifacts.locations import bucket_of, cache_home, open_artifacts
from studies.events import Events
from studies.options.config import SearchConfig
from studies.options.quantities import format_bytes
from studies.store.records import FileRecord, StudyRecord
from studies.store.store import Store

ROLES = {
    "model": "model",
    "data": "data",
    "calibration-data": "calibration_data",
    "final-data": "final_data",
    "calibration-cache": "calibration_cache",
}


def ships(config: SearchConfig) -> bool:
    """Whether other hosts may work on a study: its database is on a server, or its artifacts are in an object store."""
    return not config.storage.startswith("sqlite") or bucket_of(config) is not None


def put(artifacts: Artifacts, config: SearchConfig, progress: Events) -> tuple[FileRecord, ...]:
    """Let the artifacts have the files that a configuration names, those they lack; what is there now.

    Raises:
        ArtifactError: a file cannot be read or stored.
    """
    records: list[FileRecord] = []
    for role, field in ROLES.items():
        source = getattr(config, field)
        if source is None:
            continue
        files = _files(role, Path(source))
        for position, (name, path) in enumerate(files):
            digest = artifacts.share(path, role)
            there = path.stat().st_size
            records.append(FileRecord(role=role, position=position, name=name, digest=digest, size_bytes=there))
        if not files:
            progress.note(
                f"{source} is not a file, so every other host needs it too; files are stored in {artifacts.place}"
            )
    if records:
        size = format_bytes(sum(file.size_bytes for file in records))
        progress.note(f"{len(records)} files of model and data, {size}, are in {artifacts.place} for other hosts")
    return tuple(records)


def keep(store: Store, study: StudyRecord, config: SearchConfig, progress: Events) -> None:
    """Put what is not there yet, or was named again, once a host's files were found to be the study's."""
    known = {file.role for file in store.files.inputs(study.id)}
    sources = {role: getattr(config, field) for role, field in ROLES.items() if getattr(config, field) is not None}
    lacking = {role for role, source in sources.items() if role not in known and Path(source).is_file()}
    if ships(config) and (lacking or set(config.given) & ROLES.keys()):
        artifacts = open_artifacts(config)
        files = put(artifacts, config, progress)
        store.files.set_inputs(study.id, files)
        put_again(artifacts, config, files, progress)


def put_again(artifacts: Artifacts, config: SearchConfig, files: Sequence[FileRecord], progress: Events) -> None:
    """Put what another study, which had the same files, let go of before the database knew that this one has them."""
    if any(file.digest not in artifacts for file in files):
        put(artifacts, config, progress)


def here(store: Store, study: StudyRecord, config: SearchConfig, events: Events) -> SearchConfig:
    """A configuration whose paths hold on this host; what is not here, or is another file here, is fetched.

    What options name just now is taken as it is.

    Raises:
        StudyError: a folder, a function or a file is neither here nor among the artifacts, or where these should be
            there are none.
        ArtifactError: a file among the artifacts cannot be read, is damaged, or cannot be written here.
    """
    if not ships(config):
        return config
    files, artifacts = store.files.inputs(study.id), open_artifacts(config, events.note)
    changes: dict[str, Any] = {}
    for role, field in ROLES.items():
        source = getattr(config, field)
        if source is None or role in config.given:
            continue
        parts = [file for file in files if file.role == role]
        if parts:
            changes[field] = str(_locate(artifacts, study.name, parts, Path(source), events))
        elif not _is_here(source):
            raise _not_shipped(study.name, role, source)
    if not set(config.given) & ROLES.keys():  # what is given is put there, also where it was lost
        _check_place(store, study, files, artifacts)
    return replace(config, **changes)


def _check_place(store: Store, study: StudyRecord, files: Sequence[FileRecord], artifacts: Artifacts) -> None:
    """Refuse a place that has none of a study's files: a folder that this host does not share, say."""
    ranges = [target.ranges_digest for target in store.targets.of_study(study.id)]
    known = [*(file.digest for file in files), *(digest for digest in ranges if digest is not None)]
    if known and not any(digest in artifacts for digest in known):
        raise StudyError(
            f"running study {study.name!r} on this host: {artifacts.place} holds none of the files that were put there "
            "for other hosts. Every host has to see the same place: mount it here. Where they were lost, --model and "
            "--data with the files on this host put them there again."
        )


def _files(role: str, path: Path) -> list[tuple[str, Path]]:
    """(name, path) of a file and what it cannot be read without; empty for what is no file."""
    if not path.is_file():
        return []
    more = onnx_file.external_files(path) if role == "model" else []
    return [(path.name, path), *((name, path.parent / name) for name in more)]


def _locate(artifacts: Artifacts, study: str, parts: Sequence[FileRecord], source: Path, events: Events) -> Path:
    """Where on this host the file is, fetched if need be."""
    if _are_in(source.parent, parts, first=source.name):
        return source
    key = digest_of([[part.name, part.digest] for part in parts])[:32]
    inputs = cache_home() / "inputs"
    with fetching_alone(inputs, key, events):
        if not _are_in(inputs / key, parts):
            if any(part.digest not in artifacts for part in parts):
                raise _not_there(study, parts[0], source, artifacts)
            _fetch(artifacts, parts, inputs / key)
    return inputs / key / _inside(parts[0].name)


def _are_in(folder: Path, parts: Sequence[FileRecord], first: str | None = None) -> bool:
    """Whether a folder has all these files, with their content; the first of them under another name, if given."""
    names = [first or _inside(parts[0].name), *(_inside(part.name) for part in parts[1:])]
    return all(_is(folder / name, part) for name, part in zip(names, parts, strict=True))


def _is(path: Path, part: FileRecord) -> bool:
    try:
        if not path.is_file() or path.stat().st_size != part.size_bytes:
            return False
        with path.open("rb") as file:
            return hash_of(file) == part.digest
    except OSError:  # what cannot be read here is fetched
        return False


def _fetch(artifacts: Artifacts, parts: Sequence[FileRecord], folder: Path) -> None:
    """Fill a new folder, and let it appear whole."""
    new = folder.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        for part in parts:
            artifacts.copy(part.digest, new / _inside(part.name))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except ArtifactError as error:
        raise ArtifactError(
            f"fetching the study's {parts[0].role} {parts[0].name} from {artifacts.place}: {error} Or give "
            f"--{parts[0].role} with the file on this host."
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _inside(name: str) -> str:
    """The name of a file below a folder; a database from elsewhere must not make us write anywhere else."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ArtifactError(f"fetching the study's files: {name!r} is no path below a folder. The database is damaged.")
    return str(path)


@contextmanager
def fetching_alone(folder: Path, key: str, events: Events) -> Iterator[None]:
    """One process of this host at a time fetches the same files."""
    from evaluators.measure.device_lock import locked_file

    def tell(holder: str) -> None:
        events.note(f"waiting for {holder}, which fetches or checks this host's copies of the study's files")

    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked_file(folder / f"{key}.lock", tell))
        except OSError as error:
            raise ArtifactError(
                f"keeping copies of the study's files: {folder} cannot be written: {error.strerror}. Set "
                "XDG_CACHE_HOME to a folder that can."
            ) from error
        yield


def _is_here(source: str) -> bool:
    """Whether a path is there, or the module of a function can be found."""
    if os.path.exists(source) or not names_function(source):
        return os.path.exists(source)
    module = parse_call(source).module
    if is_file(module):
        return os.path.exists(module)
    top = module.partition(".")[0]
    if any((Path.cwd() / name).exists() for name in (f"{top}.py", top)):
        return True
    return top in sys.modules or importlib.util.find_spec(top) is not None


def _not_there(study: str, part: FileRecord, source: Path, artifacts: Artifacts) -> StudyError:
    return StudyError(
        f"running study {study!r} on this host: its {part.role.replace('-', ' ')} is not here as {source}, and is not "
        f"in {artifacts.place}, where it was put for other hosts. Every host has to see the same place; or give "
        f"--{part.role} with the file on this host."
    )


def _not_shipped(study: str, role: str, source: str) -> StudyError:
    function = names_function(source)
    of_file = function and is_file(parse_call(source).module)
    what = "a function" if function else "a folder or a file of the host that made it"
    way = "Run from the folder that holds its module, install it, or give" if function and not of_file else "Give"
    return StudyError(
        f"running study {study!r} on this host: its {role.replace('-', ' ')} {source} is {what}, which is not among "
        f"the artifacts and not here. {way} --{role} with the same content on this host."
    )
