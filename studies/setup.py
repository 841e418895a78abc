"""From options to a run that can start: everything is checked first, and only then is anything created."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evaluators import calibration_cache
from evaluators.backends.registry import open_backend, resolve
from evaluators.job import Job
from evaluators.process import EvaluatorProcess, ProcessDiedError, ProcessLimits
from search import model as models
from search.errors import ConfigError, EvaluatorError, MetricError, StudyError
from search.model import Model
from search.samplers import check_sampler
from search.space import Space, make_space
from search.values import Capability, Ranges, Target, digest_of
from studies import environment
from studies.artifacts import Artifacts
from studies.config import OPTIONS, Limits, SearchConfig, limits_for
from studies.progress import Progress
from studies.records import Choice, NewStudy, StudyRecord, TargetRecord
from studies.runner import Work
from studies.store import Store, artifact_folder

_WORK_PREFIX = "bitfront-run-"
_TIMING_CACHE = "timing-cache"  # a folder among the engines


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
        found: Target = self.keeper.description["target"]
        return found

    @property
    def capability(self) -> Capability:
        found: Capability = self.keeper.description["capability"]
        return found

    def described(self, key: str) -> dict[str, Any]:
        return dict(self.keeper.description[key])


@contextmanager
def checked(config: SearchConfig) -> Iterator[Checked]:
    """Check every input of a search. Nothing is created but a folder for temporary files.

    Raises:
        InputError: naming what cannot be used.
        EvaluatorError: the evaluator process does not start.
    """
    check_sampler(config.sampler)
    check_backend_options(config)
    model = load_model(config)
    with _work_folder() as folder, EvaluatorProcess(_job(config, folder), folder / "log", _bounds(config)) as keeper:
        try:
            keeper.call("try_out")
        except MetricError as error:
            raise ConfigError(f"trying the metric on the float model: {error}") from error
        except ProcessDiedError as death:
            raise EvaluatorError(f"trying the float model: {death.told()}") from death
        found = keeper.description
        metric = found["metric"]
        limits = limits_for(
            config, metric_name=metric["name"], metric_unit=metric["unit"], metric_ratio=metric["ratio"]
        )
        make_space(model, found["capability"], None, config.keep, config.granularity)
        yield Checked(config, model, keeper, folder, limits)


def load_model(config: SearchConfig) -> Model:
    """The model that a configuration names, at the shapes it asks for."""
    shapes = {s.name: models.ShapeRequest(s.minimum, s.optimum, s.maximum) for s in config.shapes}
    return models.load(Path(config.model), batch=config.batch, shapes=shapes)


def look_at_layers(config: SearchConfig, *, calibrated: bool) -> tuple[Model, Space, Target]:
    """The space of a model on a target, without a study; with data, ranges decide on FP16 too.

    Raises:
        InputError: the model, a rule, the target or the data cannot be used.
    """
    config = replace(config, timing_cache="none")  # nothing is built
    check_backend_options(config)
    model = load_model(config)
    if not calibrated:
        backend = open_backend(resolve(config.backend), _device(config), backend_options(config))
        return model, make_space(model, backend.capability(), None, config.keep, config.granularity), backend.target()
    with checked(config) as good:
        found = good.keeper.call("calibrate", {"method": config.calibration})
        ranges = Ranges.from_json(found["ranges"])
        return model, make_space(model, good.capability, ranges, config.keep, config.granularity), good.target


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
    """Refuse a folder for engines that cannot be written; creates nothing.

    Raises:
        ConfigError: it is a file or may not be written.
        StudyError: the database is on a server and no folder was given.
    """
    _check_folder("--artifacts", artifacts_of(config), "engines are kept there")


def check_backend_options(config: SearchConfig) -> None:
    """Refuse options that the backend does not have, and files they name that cannot be used; creates nothing.

    Raises:
        ConfigError: naming those options.
        TargetError: the backend is not known or none is installed.
    """
    backend = resolve(config.backend)
    foreign = [OPTIONS[name] for name in config.given if OPTIONS[name].backend not in ("", backend)]
    if foreign:
        names = ", ".join(option.shown for option in foreign)
        auto = ", which --backend auto stands for here" if config.backend == "auto" else ""
        raise ConfigError(
            f"{names}: expected only with backend {foreign[0].backend}, got backend {backend}{auto}. Leave "
            f"{'it' if len(foreign) == 1 else 'them'} out, or choose --backend {foreign[0].backend}."
        )
    for plugin in config.plugins:
        if not Path(plugin).is_file():
            raise ConfigError(f"--plugin {plugin}: there is no such file. Give the path of a plugin library.")
    if config.timing_cache and config.timing_cache != "none":
        _check_folder("--timing-cache", Path(config.timing_cache).absolute(), "TensorRT's timing cache is kept there")


def _check_folder(option: str, folder: Path, what_for: str) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"{option} {folder}: {existing} is no folder that can be written. Name one that can; {what_for}."
        )


def calibration_cache_of(config: SearchConfig) -> dict[str, float] | None:
    """What `--calibration-cache` holds, magnitude by tensor; None where it was not given.

    Raises:
        ConfigError: the file cannot be read.
    """
    return None if config.calibration_cache is None else calibration_cache.read_file(Path(config.calibration_cache))


def create_study(store: Store, good: Checked, progress: Progress) -> StudyRecord:
    """Write the study's row, its groups and its target: from here on it can be resumed."""
    config = good.config
    new = NewStudy(
        name=config.study,
        model_path=str(Path(config.model).absolute()),
        model_digest=good.model.digest,
        config=resolved(config),
        data=good.described("data"),
        metric=good.described("metric"),
        model={
            "inputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.inputs],
            "outputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in good.model.outputs],
        },
        environment=environment.collect(),
    )
    complete_study(store, good, store.create_study(new))
    progress.note(f"study {config.study!r} in {store.url}, backend {new.config['backend']}")
    return store.study(config.study)


def complete_study(store: Store, good: Checked, study_id: int) -> None:
    """Add groups and target to a study that has none: a new one, or one whose process was killed just then."""
    if store.targets(study_id):
        return
    store.set_groups(study_id, good.model.groups, good.model.edges)
    fingerprint = good.target.fingerprint
    store.add_target(study_id, good.target, f"{good.config.study}@{fingerprint[:12]}", capability=good.capability)


def resolved(config: SearchConfig) -> dict[str, Any]:
    """The configuration as JSON, with paths that hold from any folder and the backend that `auto` stood for."""
    data = config.to_json()
    for name in ("model", "data", "calibration_data", "final_data", "calibration_cache"):
        if data[name] and Path(data[name]).exists():
            data[name] = str(Path(data[name]).absolute())
    if config.artifacts:
        data["artifacts"] = str(Path(config.artifacts).absolute())
    data["plugins"] = [str(Path(plugin).absolute()) for plugin in config.plugins]
    if config.timing_cache and config.timing_cache != "none":
        data["timing_cache"] = str(Path(config.timing_cache).absolute())
    return {**data, "backend": resolve(config.backend)}


def check_unchanged(good: Checked, study: StudyRecord, target: TargetRecord | None) -> None:
    """Refuse to go on with other inputs than the study was made of.

    Args:
        target: None where the study has none yet.

    Raises:
        StudyError: naming all that changed.
    """
    changed = []
    if good.model.digest != study.model_digest:
        changed.append(f"the model {good.config.model} has other content (or other shapes were asked for)")
    data = good.described("data")
    changed += [
        f"the {name} have other content"
        for name, key in (
            ("data", "digest"),
            ("final data", "final_digest"),
            ("calibration data", "calibration_digest"),
        )
        if data[key] != study.data[key] and (key == "digest" or study.data[key] != study.data["digest"])
    ]
    if target is not None:
        changed += [f"target: {line}" for line in target.target.differences(good.target)]
    if good.described("metric") != study.metric:
        changed.append(f"the metric was {study.metric['name']}, is {good.described('metric')['name']}")
    if changed:
        raise StudyError(
            f"resuming study {study.name!r}: what it was made of has changed:\n  - "
            + "\n  - ".join(changed)
            + "\nGive the original files (--model, --data say where they have moved), or start a new study."
        )


@contextmanager
def prepared(store: Store, good: Checked, study: StudyRecord, progress: Progress) -> Iterator[Work]:
    """Calibrate, fix the space, and hold the study for this process alone.

    Raises:
        StudyError: another process runs this study, or its space changed.
    """
    config = good.config
    target = store.targets(study.id)[0]
    artifacts = Artifacts(artifacts_of(config))
    with alone(artifacts.folder, study.name):
        ranges = _ranges(store, artifacts, good, target, progress)
        path = good.folder / "ranges.json"
        path.write_text(json.dumps(ranges.to_json()), encoding="utf-8")
        good.keeper.adopt(ranges=str(path))
        space = make_space(good.model, good.capability, ranges, config.keep, config.granularity)
        _fix_space(store, target, space)
        target = next(t for t in store.targets(study.id) if t.id == target.id)
        yield Work(
            store=store,
            artifacts=artifacts,
            keeper=good.keeper,
            study=study,
            target=target,
            config=config,
            limits=good.limits,
            space=space,
            model=good.model,
            knobs=good.described("knobs"),
            engine_file=str(good.keeper.description["engine_file"]),
            folder=good.folder,
            progress=progress,
        )


def artifacts_of(config: SearchConfig) -> Path:
    return artifact_folder(config.storage, Path(config.artifacts) if config.artifacts else None)


def _ranges(store: Store, artifacts: Artifacts, good: Checked, target: TargetRecord, progress: Progress) -> Ranges:
    """The calibrated ranges: the study's own, those of an earlier study of the same content, or new ones."""
    if target.ranges_digest is not None and target.ranges_digest in artifacts:
        return _read(artifacts, target.ranges_digest)
    asked = {"method": good.config.calibration, "cache": calibration_cache_of(good.config)}
    key = good.keeper.call("calibration_key", asked)
    cached = store.artifact(key)
    if cached is not None and cached.digest in artifacts:
        progress.note("calibration: ranges of an earlier study with the same model and data")
        digest = cached.digest
    else:
        digest = _calibrate(store, artifacts, good, asked, key, progress)
    if target.ranges_digest not in (None, digest):
        raise StudyError(
            "resuming: the study's ranges were removed from its artifacts, and those calibrated anew are not the same: "
            "the calibration cache or this bitfront is another one. Start a new study."
        )
    store.update_target(target.id, ranges_digest=digest)
    return _read(artifacts, digest)


def _read(artifacts: Artifacts, digest: str) -> Ranges:
    return Ranges.from_json(json.loads(artifacts.read_bytes(digest)))


def _calibrate(
    store: Store, artifacts: Artifacts, good: Checked, asked: Mapping[str, Any], key: str, progress: Progress
) -> str:
    try:
        found = good.keeper.call(
            "calibrate",
            asked,
            lambda event, value: progress.step("calibrating", value[0], value[1]) if event == "progress" else None,
        )
    except ProcessDiedError as death:
        raise EvaluatorError(f"calibrating: {death.told()}") from death
    for note in found["notes"]:
        progress.note(f"calibration: {note}")
    data = json.dumps(found["ranges"], sort_keys=True).encode()
    digest = artifacts.put_bytes(data, "ranges")
    store.add_artifact(digest, "ranges", len(data), key=key)
    return digest


def _fix_space(store: Store, target: TargetRecord, space: Space) -> None:
    """Store the space of a new study; refuse another one for a study that has one."""
    if target.space_digest is None:
        codes = {group: variable.precisions for variable in space.variables for group in variable.groups}
        rows = [
            Choice(
                group,
                choice.precision,
                codes[group].index(choice.precision) if choice.precision in codes.get(group, ()) else None,
                choice.offered,
                choice.reason,
            )
            for group, choices in space.choices.items()
            for choice in choices
        ]
        store.set_choices(target.id, space.digest, rows)
    elif target.space_digest != space.digest:
        raise StudyError(
            "resuming: the search space is not the one the study was made with: other --keep rules, granularity, "
            "ranges or precisions of the target. Start a new study for it."
        )


def _job(config: SearchConfig, folder: Path) -> Job:
    return Job(
        model=config.model,
        data=config.data,
        folder=str(folder / "evaluator"),
        batch=config.batch,
        shapes={s.name: [list(s.minimum), list(s.optimum), list(s.maximum)] for s in config.shapes},
        backend=resolve(config.backend),
        device=_device(config),
        options=backend_options(config),
        metric=config.metric,
        calibration_data=config.calibration_data,
        final_data=config.final_data,
        preprocess=config.preprocess,
    )


def backend_options(config: SearchConfig) -> dict[str, Any]:
    """Keyword arguments of the backend, as plain JSON values.

    Raises:
        StudyError: the database is on a server and neither a folder for engines nor one for the timing cache was given.
    """
    options: dict[str, Any] = {"threads": config.threads}
    if resolve(config.backend) != "tensorrt":
        return options
    names = ("typing", "workspace_bytes", "optimization_level", "tf32", "sparsity", "native_instancenorm")
    options |= {name: getattr(config, name) for name in names}
    options["plugins"] = [str(Path(plugin).absolute()) for plugin in config.plugins]
    options["timing_cache"] = _timing_cache(config)
    return options


def final_options(config: SearchConfig) -> dict[str, Any]:
    """`backend_options` of the engine that is exported: at the final optimization level, where there is one."""
    options = backend_options(config)
    if "optimization_level" in options and config.final_optimization_level is not None:
        options["optimization_level"] = config.final_optimization_level
    return options


def _timing_cache(config: SearchConfig) -> str | None:
    if config.timing_cache == "none":
        return None
    folder = Path(config.timing_cache) if config.timing_cache else artifacts_of(config) / _TIMING_CACHE
    return str(folder.absolute())


def _device(config: SearchConfig) -> str | None:
    return None if config.device == "auto" else config.device


def _bounds(config: SearchConfig) -> ProcessLimits:
    return ProcessLimits(config.evaluation_timeout_s, config.evaluation_memory_bytes)


@contextmanager
def alone(folder: Path, study: str) -> Iterator[None]:
    """One process at a time runs or deletes a study; the kernel frees the lock of a process that dies."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{digest_of(study)[:16]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StudyError(
            f"running study {study!r}: another process is running it on this database. Wait for it or stop it first."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _work_folder() -> Iterator[Path]:
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
