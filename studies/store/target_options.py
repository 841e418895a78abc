"""Options of targets: the study's options, overridden by those of each target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from studies.options.config import SearchConfig
from studies.options.urls import DEFAULT_STORAGE
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store

# Where files lie is told of the whole study; the rest of these belongs to no target.
FILES = ("model", "data", "calibration_data", "final_data", "calibration_cache")
_OF_THE_HOST = ("device", "artifacts")
_OF_THE_STUDY = frozenset({*FILES, "study", "artifacts", "quiet"})


def config_of(
    study: StudyRecord, target: TargetRecord, url: str = DEFAULT_STORAGE, *, lenient: bool = False
) -> SearchConfig:
    """What runs of a study on a target were asked to do: the study's options with the target's own over them.

    Args:
        url: of its database.
        lenient: as of `SearchConfig.from_json`.
    """
    stored = {**study.config, **(target.options or {})}
    if stored.get("optimization_level") is None:
        stored["optimization_level"] = target.optimization_level  # chosen when it was first worked on
    return SearchConfig.from_json(stored, url, lenient=lenient)


def options_of(study: StudyRecord, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What of a resolved configuration a target has to remember, because the study says otherwise."""
    known, values = study.config, json.loads(json.dumps(resolved))
    options = {k: v for k, v in values.items() if k not in _OF_THE_STUDY and (k not in known or known[k] != v)}
    if "device" in options:  # which of several alike is this host's affair
        options["device"] = str(options["device"]).partition(":")[0]
    return options


def remember(
    store: Store, study: StudyRecord, target: TargetRecord, run_options: Mapping[str, Any], *, moved: bool = True
) -> None:
    """Store the options that a run was given: of the study for its first target, else of the target alone; where files
    lie always of the study.

    Args:
        study, target: as they were read when the run began; what others were told since then stays.
        run_options: field of the configuration → what the run was given for it, as JSON.
        moved: files are from now on where the run was told that they are; otherwise that, and which device is meant,
            is the affair of this host.
    """
    left_out = frozenset() if moved else frozenset({*FILES, *_OF_THE_HOST})
    values = json.loads(json.dumps({name: value for name, value in run_options.items() if name not in left_out}))
    first = target.options is None
    known = study.config
    of_study = {n: v for n, v in values.items() if (first or n in FILES) and (n not in known or known[n] != v)}
    if of_study:
        store.studies.add_options(study.id, of_study, seen=known)
    if not first:
        options = {name: value for name, value in values.items() if name not in _OF_THE_STUDY}
        store.targets.add_options(target.id, options, seen=target.options or {})
