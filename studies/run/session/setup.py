"""From options to a run that can start: everything is checked first, and only then is anything created."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evaluators.backends.kind import BackendKind, BackendOption
from evaluators.backends.registry import choose_backend, kind_named, open_backend
from evaluators.calibration import cache as calibration_cache
from evaluators.data.opening import check_source
from evaluators.process.connection import ProcessLimits
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.errors import ArtifactError, ConfigError, MetricError, StudyError
from search.graph import model as models
from search.graph.model import Model
from search.sampler.registry import sampler_named
from search.space.choices import Space, make_space
from search.values import Capability, Ranges, Target
from studies import environment
from studies.artifacts.locations import artifacts_folder as artifacts_of
from studies.artifacts.locations import bucket_of, local_folder, open_artifacts
from studies.crew.deletion import reported_deletion
from studies.judging.search_events import SearchEvents
from studies.judging.sentences.cautions import caution_text
from studies.options.backend_options import absolute_texts, read_values
from studies.options.builder_options import FINAL, builder_options
from studies.options.config import SearchConfig
from studies.options.limits import Limits, MetricScale, resolve_limits
from studies.options.mistakes import run_checks
from studies.options.table import option_table
from studies.run.session.levels import START_LEVEL
from studies.store.records import FileRecord, NewStudy, StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_names import foreign, own
from studies.store.target_options import options_of

_WORK_PREFIX = "bitfront-run-"


@dataclass(frozen=True)
class Checked:
    """Inputs that have been found good, with the process that found them so."""

    config: SearchConfig
    model: Model
    keeper: EvaluatorProcess
    folder: Path
    limits: Limits

    @property
    def target(self) -> Target:
        return self.keeper.description.target

    @property
    def capability(self) -> Capability:
        return self.keeper.description.capability

    @property
    def data(self) -> dict[str, Any]:
        """Digests and sizes of the data, as the study's row has them."""
        found = self.keeper.description.data
        assert found is not None  # it opens more than builds
        return asdict(found)

    @property
    def metric(self) -> dict[str, Any]:
        """The metric, as the study's row has it."""
        found = self.keeper.description.metric
        assert found is not None
        return asdict(found)


@contextmanager
def checked(
    config: SearchConfig, *, scored: bool = True, more: Sequence[Callable[[], object]] = ()
) -> Iterator[Checked]:
    """Check every input of a search. Nothing is created but a folder for temporary files.

    Args:
        more: checks of the caller's, whose refusals are told together with those of the options and files here.
        scored: whether a metric will score outputs. Where none does, the float model is not tried with it either, so
            that outputs and labels may have any form.

    Raises:
        InputError: naming what cannot be used.
        EvaluatorError: the evaluator process does not start.
    """
    model = _load_checked(config, more)
    with work_folder() as folder, EvaluatorProcess(_job(config, folder), folder / "log", _bounds(config)) as keeper:
        setup = keeper.ask("trying the float model").setup
        try:
            if scored:
                setup.try_out()
            else:
                setup.knobs()  # the first request, whatever it is, opens the inputs
        except MetricError as error:
            raise ConfigError(f"trying the metric on the float model: {error}") from error
        metric = keeper.description.metric
        assert metric is not None
        limits = _limits(config, asdict(metric))
        make_space(model, keeper.description.capability, None, config.keep, config.granularity)
        yield Checked(config, model, keeper, folder, limits)


def _limits(config: SearchConfig, metric: Mapping[str, Any]) -> Limits:
    """The limits in the unit of the metric; where they do not fit a metric that nobody named, also why it is that."""
    try:
        return resolve_limits(config.limits, MetricScale.of(metric))
    except ConfigError as error:
        if config.metric is not None:
            raise
        raise ConfigError(". ".join([str(error).rstrip("."), *metric["notes"]])) from error


def _load_checked(config: SearchConfig, more: Sequence[Callable[[], object]]) -> Model:
    """The model, once all checks that need no evaluator process have passed."""
    loaded: list[Model] = []
    sources = filter(None, (config.data, config.calibration_data, config.final_data))
    run_checks(
        *more,
        lambda: sampler_named(config.sampler),
        lambda: check_backend_options(config),
        lambda: loaded.append(load_model(config)),
        *(partial(check_source, source) for source in sources),
    )
    return loaded[0]


def load_model(config: SearchConfig) -> Model:
    """The model that a configuration names, at the shapes it asks for."""
    shapes = {s.name: models.ShapeRequest(s.minimum, s.optimum, s.maximum) for s in config.shapes}
    return models.load(Path(config.model), batch=config.batch, shapes=shapes)


def look_at_layers(config: SearchConfig, *, calibrated: bool) -> tuple[Model, Space, Target]:
    """The space of a model on a target, without a study; with data, ranges decide on FP16 too.

    Raises:
        InputError: the model, a rule, the target or the data cannot be used.
    """
    config = config.changed({"timing_cache": "none"})  # nothing is built
    check_backend_options(config)
    model = load_model(config)
    if not calibrated:
        backend = open_backend(config.backend, _device(config), backend_options(config))
        return model, make_space(model, backend.capability(), None, config.keep, config.granularity), backend.target()
    with checked(config, scored=False) as good:
        ranges = calibrate(good, config.calibration)
        return model, make_space(model, good.capability, ranges, config.keep, config.granularity), good.target


def calibrate(good: Checked, method: str) -> Ranges:
    """Ranges, of inputs that no study keeps them for.

    Raises:
        EvaluatorError: the evaluator process dies over it.
    """
    return good.keeper.ask("calibrating").calibrations.calibrate(method).ranges


def check_searchable(good: Checked) -> None:
    """Refuse a model with nothing to choose.

    Raises:
        ConfigError: every group has one precision left; says why.
    """
    config = good.config
    space = make_space(good.model, good.capability, None, config.keep, config.granularity)
    if space.variables:
        return
    reasons = {f"{c.precision.label}: {c.reason}" for choices in space.choices.values() for c in choices if c.reason}
    raise ConfigError(
        f"making the search space: there is nothing to search, every layer of {config.model} has one precision left on "
        f"{good.target.backend} ({good.target.device}). {'; '.join(sorted(reasons)[:4])}. "
        f"`bitfront layers` shows all; loosen --keep, or choose another --backend or --device."
    )


def check_artifacts(config: SearchConfig) -> None:
    """Refuse a place for engines that cannot be used; creates nothing.

    Raises:
        ConfigError: a folder is a file or may not be written; a bucket cannot be reached or its client is missing.
        StudyError: the database is on a server and no place was given.
    """
    if bucket_of(config) is None:
        _check_folder("--artifacts", artifacts_of(config), "engines are kept there")
        return
    _check_folder("XDG_CACHE_HOME", artifacts_of(config), "copies of artifacts are kept there")
    try:
        remote = open_artifacts(config).remote  # some clients look for credentials already when they are made
        if remote is not None:
            remote.check()
    except ArtifactError as error:
        raise ConfigError(f"--artifacts {config.artifacts}: {error}") from error


def check_backend_options(config: SearchConfig) -> None:
    """Refuse options that the backend does not have, and files they name that cannot be used; creates nothing.

    Raises:
        ConfigError: naming those options.
        TargetError: the backend is not known or none is installed.
    """
    kind = backend_kind(config)
    backend = kind.name
    table = option_table()
    given = [table[name] for name in config.given if name in table]
    foreign = [option for option in given if option.backend not in ("", backend)]
    if foreign:
        names = ", ".join(option.shown for option in foreign)
        auto = ", which --backend auto stands for here" if config.backend == "auto" else ""
        raise ConfigError(
            f"{names}: expected only with backend {foreign[0].backend}, got backend {backend}{auto}. Leave "
            f"{'it' if len(foreign) == 1 else 'them'} out, or choose --backend {foreign[0].backend}."
        )
    for row, value in _backend_values(config).items():
        _check_paths(row, value)


def _check_paths(row: BackendOption, value: Any) -> None:
    for path in value if row.type == "file" else ():
        if not Path(path).is_file():
            raise ConfigError(f"{row.option} {path}: there is no such file. Give the path of one that is there.")
    if row.type == "folder" and value and value != "none":
        _check_folder(row.option, Path(value).absolute(), "the backend keeps files there")


def backend_kind(config: SearchConfig) -> BackendKind:
    """The backend that a configuration means on this host.

    Raises:
        TargetError: it is not known, or none is installed.
    """
    return kind_named(choose_backend(config.backend))


def _check_folder(option: str, folder: Path, what_for: str) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not _takes_files(existing):
        raise ConfigError(
            f"{option} {folder}: {existing} is no folder that can be written. Name one that can; {what_for}."
        )


def _takes_files(folder: Path) -> bool:
    """Tried, as permissions do not say: of a folder of the kernel's, say, where nobody can make anything."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".bitfront-", dir=folder))
    except OSError:
        return False
    return True


def calibration_cache_of(config: SearchConfig) -> dict[str, float] | None:
    """What `--calibration-cache` holds, magnitude by tensor; None where it was not given.

    Raises:
        ConfigError: the file cannot be read.
    """
    return None if config.calibration_cache is None else calibration_cache.read_file(Path(config.calibration_cache))


def create_study(store: Store, good: Checked, progress: SearchEvents, files: Sequence[FileRecord] = ()) -> StudyRecord:
    """Write the study's row, its groups and its target: from here on it can be resumed.

    Args:
        files: of its inputs, that lie among the artifacts.
    """
    config = good.config
    new = NewStudy(
        name=config.study,
        model_path=str(Path(config.model).absolute()),
        model_digest=good.model.digest,
        config=resolved(config),
        data=good.data,
        metric=good.metric,
        model={
            "inputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.inputs],
            "outputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.outputs],
        },
        environment=environment.collect(),
    )
    study_id = store.studies.create(new, dict(good.keeper.description.score_clusters))
    study = store.studies.load(config.study)
    with reported_deletion(store, study):
        store.files.set_inputs(study_id, files)
        complete_study(store, good, study_id)
    progress.note(f"study {config.study!r} in {store.url}, backend {new.config['backend']}")
    for text in (*new.metric["notes"], caution_text(good.target)):
        if text:
            progress.note(text)
    return study


def complete_study(store: Store, good: Checked, study_id: int) -> None:
    """Add groups and target to a study that has none: a new one, or one whose process was killed just then."""
    if store.targets.of_study(study_id):
        return
    store.studies.set_groups(study_id, good.model.groups)
    fingerprint = good.target.fingerprint
    store.targets.add(study_id, good.target, f"{good.config.study}@{fingerprint[:12]}", capability=good.capability)


def resolved(config: SearchConfig) -> dict[str, Any]:
    """The configuration as JSON, with paths that hold from any folder and the backend that `auto` stood for."""
    data = config.to_json()
    for name in ("model", "data", "calibration_data", "final_data", "calibration_cache"):
        if data[name] and Path(data[name]).exists():
            data[name] = str(Path(data[name]).absolute())
    if config.artifacts and bucket_of(config) is None:
        data["artifacts"] = str(artifacts_of(config).absolute())
    kind = backend_kind(config)
    data["backend_options"] = absolute_texts(kind, config.backend_options)
    for row in kind.options:
        if row.keyword not in data or row.type not in ("file", "folder"):
            continue
        if row.type == "file":
            data[row.keyword] = _absolute(data[row.keyword])
        elif data[row.keyword] not in (None, "none"):
            data[row.keyword] = str(Path(data[row.keyword]).absolute())
    return {**data, "backend": choose_backend(config.backend)}


def given_options(config: SearchConfig) -> dict[str, Any]:
    """Those fields of `resolved` that this run was given, not only defaulted or stored."""
    table = option_table()
    given = {table[name].key for name in config.given}
    return {name: value for name, value in resolved(config).items() if name in given}


def _absolute(files: Sequence[str]) -> list[str]:
    return [str(Path(file).absolute()) for file in files]


def runs_on_gpu(config: SearchConfig) -> bool:
    """Whether engines of a configuration run on a GPU."""
    return backend_kind(config).runs_on_gpu(_device(config))


def check_unchanged(good: Checked, study: StudyRecord, target: TargetRecord | None) -> None:
    """Refuse to go on with other inputs than the study was made of.

    Args:
        target: that it has to be; None where the study has none yet, or any.

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
    if _without_notes(good.metric) != _without_notes(study.metric):
        changed.append(f"the metric was {study.metric['name']}, is {good.metric['name']}")
    if changed:
        raise StudyError(
            f"resuming study {study.name!r}: what it was made of has changed:\n  - "
            + "\n  - ".join(changed)
            + "\nGive the original files (--model, --data say where they have moved), or start a new study."
        )
    if target is not None and target.target.fingerprint != good.target.fingerprint:
        raise foreign(study.name, [target], good.target)


def _without_notes(metric: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a metric another; its notes are words for people."""
    return {key: value for key, value in metric.items() if key != "notes"}


def add_target(store: Store, study: StudyRecord, good: Checked, progress: SearchEvents) -> None:
    """Let the study have the target that this process is, with the options it was given; once is enough."""
    known = own(store.targets.of_study(study.id), good.target)
    if known is None:
        told = resolved(good.config)
        if "optimization-level" not in good.config.given:  # that of another target is no matter of this one
            told["optimization_level"] = study.config.get("optimization_level")
        options = options_of(study, told)
        name = f"{study.name}@{good.target.fingerprint[:12]}"
        store.targets.add(study.id, good.target, name, capability=good.capability, options=options)
    else:
        progress.note(f"this host is a target of the study already, {known.target.fingerprint[:12]}; going on with it")


def _job(config: SearchConfig, folder: Path) -> Job:
    return Job(
        model=config.model,
        data=config.data,
        folder=str(folder / "evaluator"),
        batch=config.batch,
        shapes={s.name: [list(s.minimum), list(s.optimum), list(s.maximum)] for s in config.shapes},
        backend=choose_backend(config.backend),
        device=_device(config),
        options=backend_options(config),
        metric=config.metric,
        calibration_data=config.calibration_data,
        final_data=config.final_data,
        preprocess=config.preprocess,
        split_seed=config.split_seed,
    )


def backend_options(config: SearchConfig) -> dict[str, Any]:
    """Keyword arguments of the backend, as plain JSON values.

    Raises:
        StudyError: the database is on a server and neither a folder for engines nor one for the timing cache was given.
    """
    values = _backend_values(config).items()
    options = {"threads": config.threads, **{row.keyword: _settle_value(row, value, config) for row, value in values}}
    if "optimization_level" in options and options["optimization_level"] is None:
        options["optimization_level"] = START_LEVEL
    return options


def final_options(config: SearchConfig) -> dict[str, Any]:
    """`backend_options` of the engine that is exported: with the values that exports are built with, where given."""
    rows = [row for row in backend_kind(config).options if row.final]
    final = {row.keyword: config.builder_option(FINAL + row.keyword) for row in rows}
    return backend_options(config) | {keyword: value for keyword, value in final.items() if value is not None}


def _backend_values(config: SearchConfig) -> dict[BackendOption, Any]:
    """What was given for each option of the backend, or its default.

    Raises:
        ConfigError: what `--backend-option` names is unknown, or cannot be read.
    """
    kind = backend_kind(config)
    own = {option.key for option in builder_options() if option.backend == kind.name}
    given = read_values(kind, config.backend_options)
    if twice := [row.option for row in kind.options if row.keyword in own & given.keys()]:
        raise ConfigError(f"--backend-option: {', '.join(twice)} is an option of its own; write it as such.")
    return {
        row: config.builder_option(row.keyword) if row.keyword in own else given.get(row.keyword, row.default)
        for row in kind.options
    }


def _settle_value(row: BackendOption, value: Any, config: SearchConfig) -> Any:
    """The value of one option as the backend takes it: paths absolute, and a folder of its own where none is named."""
    if row.type == "file":
        return _absolute(value)
    if row.type != "folder":
        return value
    if value == "none":
        return None
    return str((Path(value) if value else local_folder(config) / row.option.lstrip("-")).absolute())


def _device(config: SearchConfig) -> str | None:
    return None if config.device == "auto" else config.device


def _bounds(config: SearchConfig) -> ProcessLimits:
    return ProcessLimits(config.evaluation_timeout_s, config.evaluation_memory_bytes)


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for this run's temporary files; those of runs that were killed go too."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_WORK_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_WORK_PREFIX}*"):
        owner = folder.name.removeprefix(_WORK_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
