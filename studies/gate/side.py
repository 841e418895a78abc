"""The two sides of a gate: finding the engine of a study, an exported folder, an ONNX file or a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.backends.registry import kind_named, kind_of_file
from search.errors import ConfigError, StudyError
from search.references import names_function
from search.values import Target
from studies.artifacts.folder import hash_of
from studies.artifacts.locations import open_artifacts
from studies.events import Events
from studies.judging.selection import find_row
from studies.judging.study_lookup import standing_of
from studies.store import suggestions
from studies.store.store import Store
from studies.store.target_options import config_of

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Side:
    """One of the two engines that are compared.

    Attributes:
        name: as the user gave it, with the trial that it means.
        engine: its file.
        backend: that runs it, by the name that it was given for the search: that of a class is none of its target.
        target: what it was made for; None if the file does not say.
        band: tie band of latency that was measured on that target, relative; 0 if none was.
    """

    name: str
    engine: Path
    backend: str
    target: Target | None = None
    band: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        target = None if self.target is None else self.target.to_json()
        return {"name": self.name, "engine": str(self.engine), "backend": self.backend, "target": target}


@dataclass(frozen=True)
class WantedSide:
    """What names a side.

    Attributes:
        source: name of a study, folder that was exported, or engine file.
        option: by which it was given, for messages.
        trial: of a study; None for its pick `best`.
        trial_option: by which that was given.
    """

    source: str
    option: str
    trial: int | None
    trial_option: str


def find_side(wanted: WantedSide, url: str, target: str | None, backend: str, events: Events) -> Side:
    """Find the engine that a side means.

    Args:
        url: of the database that studies are looked up in.
        target: which of a study's; None for the first.
        backend: that the user named. Only then a class that a manifest or a database names is imported. It runs files
            that end as its engines do, where several backends have such files.
        events: told what is waited for.

    Raises:
        ConfigError: a file or folder is missing or damaged, or a trial is given of what is no study.
        StudyError: there is no such study, pick or trial, or its engine was not kept.
    """
    path = Path(wanted.source)
    is_file = path.is_file() or kind_of_file(path) is not None
    if not (path.is_dir() or is_file):
        return _of_study(wanted, url, target, backend, events)
    if wanted.trial is not None:
        raise ConfigError(
            f"{wanted.trial_option} {wanted.trial}: only a study has trials, and {wanted.source} is not a study. Leave "
            "the option "
            "out, or give a study."
        )
    return _of_folder(wanted, path, backend) if path.is_dir() else _of_file(wanted, path, backend)


def _of_file(wanted: WantedSide, path: Path, backend: str) -> Side:
    if not path.is_file():
        raise ConfigError(f"{wanted.option} {path}: there is no such file. Give an ONNX file or a plan.")
    kind = kind_of_file(path) or kind_named("onnxruntime")
    runs_it = backend != "auto" and path.suffix == Path(kind_named(backend).engine_file).suffix
    return Side(wanted.source, path.absolute(), backend if runs_it else kind.name)


def _check_backend(wanted: WantedSide, backend: str, named: str) -> None:
    """Refuse a backend that is a class of somebody's module, unless the user named that one.

    Raises:
        ConfigError: naming the option and the class.
    """
    if names_function(backend) and backend != named:
        raise ConfigError(
            f"{wanted.option} {wanted.source}: its backend is {backend}, whose code would run here. If you trust it, "
            f"add --backend {backend}."
        )


def _of_folder(wanted: WantedSide, folder: Path, backend: str) -> Side:
    """The engine of an exported folder, if it is what was exported."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        target = Target.from_json(manifest["target"])
        named = str(manifest["backend"])
        _check_backend(wanted, named, backend)
        engine = folder / kind_named(named).engine_file
        digest, trial = manifest["files"][engine.name], manifest["trial"]
        latency = manifest["latency"]
        band = 0.0 if latency["tie_band_provisional"] else float(latency["tie_band"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{wanted.option} {folder}: expected a folder that `bitfront export` wrote, but {folder / MANIFEST} cannot "
            f"be used: {type(error).__name__}: {error}. Give the folder of an export, or an engine file."
        ) from error
    if not _is_intact(engine, digest):
        raise ConfigError(
            f"{wanted.option} {folder}: {engine.name} is missing or was changed after the export. Export it again. To "
            f"compare the file as it is, give {engine} itself."
        )
    return Side(f"{wanted.source} (trial {trial})", engine.absolute(), named, target, band)


def _of_study(wanted: WantedSide, url: str, target: str | None, backend: str, events: Events) -> Side:
    """The kept engine of a study's pick or trial."""
    with Store.open(url, write=False) as store:
        now = standing_of(store, wanted.source, wanted=target)
        row = find_row(now, None, wanted.trial, option=wanted.trial_option)
        config = config_of(now.study, now.target, url)
        artifacts = open_artifacts(config, events.note)
        trial, digest = int(now.table.trial[row]), str(now.table.artifact[row] or "")
        if not digest or digest not in artifacts or not artifacts.is_whole(digest):
            words = ("--trial", str(trial), "--out", "engine/")
            way = suggestions.command("export", wanted.source, *words, storage=url)
            raise StudyError(
                f"{wanted.option} {wanted.source}: the engine of trial {trial} was not kept. Export it, which builds "
                f"it again, and name the folder: `{way}`."
            )
        engine = artifacts.path(digest)
    made_for = now.target.target
    _check_backend(wanted, config.backend, backend)
    band = 0.0 if now.target.band_is_provisional else now.target.band
    return Side(f"{wanted.source} (trial {trial})", engine, config.backend, made_for, band)


def _is_intact(engine: Path, digest: str) -> bool:
    if not engine.is_file():
        return False
    with engine.open("rb") as file:
        return hash_of(file) == digest
