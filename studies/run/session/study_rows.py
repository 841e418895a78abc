"""Writing the rows of a study and its targets, and comparing them with the options of a later run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.backends.registry import choose_backend
from search.errors import StudyError
from search.references import absolute_reference
from studies import environment
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.artifacts.locations import bucket_of
from studies.judging.search_events import SearchEvents
from studies.judging.sentences.cautions import caution_text, unlabelled_text
from studies.options.backend_options import absolute_texts
from studies.options.config import SearchConfig, option_table
from studies.options.limits import MetricScale
from studies.run.session.backend_values import backend_kind, device_of
from studies.run.session.data_caches import absolute_paths
from studies.run.session.setup import Checked
from studies.run.session.trusted_functions import remember_functions
from studies.store.records import FileRecord, StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_names import foreign, names, own
from studies.store.target_options import options_of


def create_study(
    store: Store,
    good: Checked,
    progress: SearchEvents,
    files: Sequence[FileRecord] = (),
    renewed_from: StudyRecord | None = None,
) -> StudyRecord:
    """Write the study with its groups and its target: from here on it can be resumed.

    Args:
        files: of its inputs, that lie among the artifacts.
        renewed_from: the study whose mixes it tries again on fresh data.
    """
    config = good.config
    new = StudyRecord(
        name=config.study,
        model_path=str(Path(config.model).absolute()),
        model_digest=good.model.digest,
        config=resolve_config(config),
        data=good.data,
        metric=good.metric,
        model={
            "inputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.inputs],
            "outputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.outputs],
        },
        environment=environment.collect(),
        renewed_from=None if renewed_from is None else renewed_from.id,
    )
    remember_functions(config, progress)
    target = TargetRecord(
        target=good.target, optuna_study=optuna_name(config.study, good), capability=good.capability, details={}
    )
    clusters = dict(good.keeper.description.score_clusters)
    store.studies.create(new, clusters, groups=good.model.groups, files=files, target=target)
    study = store.studies.load(config.study)
    progress.note(f"study {config.study!r} in {store.url}, backend {new.config['backend']}")
    for text in (*new.metric["notes"], caution_text(good.target), _unlabelled_text(good)):
        if text:
            progress.note(text)
    return study


def _unlabelled_text(good: Checked) -> str:
    """What the limits of the accuracy mean where labels may have been forgotten; empty elsewhere."""
    if good.config.metric is not None or good.keeper.description.labelled:
        return ""
    return unlabelled_text(good.limits, MetricScale.of(good.metric))


def optuna_name(study: str, good: Checked, others: Sequence[TargetRecord] = ()) -> str:
    """What Optuna's study of a target is called, for optuna-dashboard; unlike those of the study's other targets."""
    return f"{study}, {names([*(other.target for other in others), good.target])[-1]}"


def resolve_config(config: SearchConfig) -> dict[str, Any]:
    """The configuration as JSON, with paths that hold from any folder and the backend that `auto` stood for."""
    data = config.to_json()
    for name in ("model", "data", "calibration_data", "final_data", "calibration_cache"):
        if data[name] and Path(data[name]).exists():
            data[name] = str(Path(data[name]).absolute())
    data["backend"] = choose_backend(config.backend, device_of(config))
    for name in ("data", "calibration_data", "final_data", "preprocess", "metric", "decode", "sampler", "backend"):
        if data[name]:
            data[name] = absolute_reference(data[name])
    if config.artifacts and bucket_of(config) is None:
        data["artifacts"] = str(artifacts_of(config).absolute())
    kind = backend_kind(config)
    data["backend_options"] = absolute_texts(kind, config.backend_options)
    for row in kind.options:
        if row.keyword not in data or row.type not in ("file", "folder"):
            continue
        if row.type == "file":
            data[row.keyword] = absolute_paths(data[row.keyword])
        elif data[row.keyword] not in (None, "none"):
            data[row.keyword] = str(Path(data[row.keyword]).absolute())
    return data


def explicit_options(config: SearchConfig) -> dict[str, Any]:
    """The fields of `resolve_config` that this run was given, not only defaulted or stored."""
    table = option_table()
    keys = {table[name].key for name in config.given}
    return {name: value for name, value in resolve_config(config).items() if name in keys}


def check_unchanged(good: Checked, study: StudyRecord, target: TargetRecord | None) -> None:
    """Refuse to continue other inputs than the study was made of.

    Args:
        target: that it has to be; None for any.

    Raises:
        StudyError: naming all that changed, or how this host differs from the target.
    """
    changed = []
    if good.model.digest != study.model_digest:
        changed.append(f"the model {good.config.model} has other content (or other shapes were asked for)")
    data = good.data
    changed += [
        f"the {name} have other content"
        for name, key in (
            ("data", "digest"),
            ("final data", "final_digest"),
            ("calibration data", "calibration_digest"),
        )
        if data[key] != study.data[key] and (key == "digest" or study.data[key] != study.data["digest"])
    ]
    before, now = metric_name(study.config, study.metric), metric_name(resolve_config(good.config), good.metric)
    if before != now:
        changed.append(f"the metric was {before} and is now {now}")
    elif _declarations(good.metric) != _declarations(study.metric):
        changed.append(f"the metric {now} has another unit, direction or kind")
    if changed:
        raise StudyError(
            f"opening study {study.name!r}: what it was made of has changed:\n  - "
            + "\n  - ".join(changed)
            + "\nGive the original files (--model, --data say where they have moved), or start a new study."
        )
    if target is not None and target.target.fingerprint != good.target.fingerprint:
        raise foreign(study.name, [target], good.target, good.config.storage)


def metric_name(config: Mapping[str, Any], metric: Mapping[str, Any]) -> str:
    """The name of a metric, where a file is named by its path from the root, whichever folder it was written in.

    Args:
        config: a configuration as `resolve_config` gives it, which names the metric, or None for the default metric.
        metric: the metric as a study's row has it, under the name that was written.
    """
    return str(config["metric"] or metric["name"])


def _declarations(metric: Mapping[str, Any]) -> dict[str, Any]:
    """What a metric says of its values; its notes are words for people."""
    return {key: value for key, value in metric.items() if key not in ("name", "notes")}


def add_target(store: Store, study: StudyRecord, good: Checked, progress: SearchEvents) -> None:
    """Let the study have the target that this process is, with the options it was given; once is enough."""
    others = store.targets.of_study(study.id)
    known = own(others, good.target)
    if known is None:
        values = resolve_config(good.config)
        if "optimization-level" not in good.config.given:  # that of another target is no matter of this one
            values["optimization_level"] = study.config.get("optimization_level")
        options = options_of(study, values)
        name = optuna_name(study.name, good, others)
        store.targets.add(study.id, good.target, name, capability=good.capability, options=options)
    else:
        progress.note(
            f"this host is already a target of the study, {known.target.fingerprint[:12]}, and is used as that one"
        )
