"""Looking into models and engines: the verbs `layers`, `profile`, `compare`, `sensitivity`, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import ConfigError
from studies.events import Quiet
from studies.inspect.comparison import DEFAULT_SAMPLES, DEFAULT_THRESHOLD_DB, Comparison
from studies.judging.search_events import SearchEvents
from studies.judging.study_lookup import find_target, standing_of
from studies.options.config import SearchConfig, from_options
from studies.show.layer_table import Layers
from studies.store.store import Store, default_url
from studies.store.target_options import config_of

if TYPE_CHECKING:  # these belong to single verbs
    from studies.inspect.profile import Profile
    from studies.judging.findings.sensitivity_table import Sensitivities, Thresholds
    from studies.run.noise.remeasurement import Remeasured


def layers(options: Mapping[str, Any]) -> Layers:
    """Groups and edges of a model and what each may run in on a target, as `bitfront layers`.

    Args:
        options: `model`, and if wanted `data` (ranges decide on FP16), `backend`, `device`, `batch`, `shape`, `keep`,
            `granularity`, `calibration`, `threads`, `typing`.

    Raises:
        InputError: the model, a rule or the target cannot be used.
    """
    from studies.run.session.setup import look_at_layers

    config = from_options({"data": "-", **options})
    model, space, target = look_at_layers(config, calibrated="data" in options)
    return Layers(model, space, target)


def profile(
    name: str,
    trial: int,
    *,
    count: int = 50,
    again: bool = False,
    against: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    target: str | None = None,
) -> tuple[Profile, ...]:
    """What each layer of a trial's engine takes, as `bitfront profile`; measured and stored where it was not.

    Args:
        count: inferences of a profiled run.
        again: measure anew what is stored.
        against: another trial of the study, which is profiled too.
        options: `model`, `data` where files have moved.

    Returns:
        The trial's profile and, if asked for, that of the other; `inspect.profile.delta_rows` puts them side by side.

    Raises:
        StudyError: no such study or trial, a trial without an engine, or model, data or target are not the study's.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    from studies.inspect.profile_trials import profile_trials

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, None, target)
    trials = (trial,) if against is None else (trial, against)
    return profile_trials(
        url, now, trials, count=count, again=again, options=options or {}, progress=progress or Quiet()
    )


def remeasure(
    name: str,
    trials: Sequence[int] = (),
    *,
    every: bool = False,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    target: str | None = None,
) -> tuple[Remeasured, ...]:
    """Measure latencies of a study again, beside the baseline and each other, as `bitfront remeasure`.

    Each is measured until nothing is doubtful in it, a few times at most. Older measurements stay stored.

    Args:
        trials: these, doubtful or not; empty for what is doubtful and matters: uniform baselines, front, picks and
            what is within reach of the latency budget.
        every: of all that is doubtful, whether it matters or not.
        options: `model`, `data` where files have moved.

    Returns:
        What changed, in order of the evaluations; empty where nothing was to be measured.

    Raises:
        ConfigError: `trials` and `every` are both given.
        StudyError: no such study or trial, a trial without a latency, another process works on the study on SQLite, or
            model, data or target are not the study's.
        EvaluatorError: engines cannot be loaded or run here.
    """
    from studies.run.noise.remeasurement import remeasure_study

    if trials and every:
        raise ConfigError("measuring again: --trial and --all were both given; give one.")
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, None, target)
    return remeasure_study(url, now, tuple(trials), every=every, options=options or {}, progress=progress or Quiet())


def compare(
    name: str,
    trial: int,
    *,
    groups: bool = False,
    samples: int = DEFAULT_SAMPLES,
    threshold_db: float = DEFAULT_THRESHOLD_DB,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    target: str | None = None,
) -> Comparison:
    """How far a trial's engine is from ONNX Runtime on the same data, and why, as `bitfront compare`.

    Args:
        groups: compare group by group too.
        samples: of the final split, at most.
        threshold_db: fall of a group's SQNR below its inputs' from which on it is marked.
        options: `model`, `data` where files have moved.

    Raises:
        StudyError: no such study or trial, a trial of which no engine was built, or another model.
        EvaluatorError: the engine cannot be loaded or run here.
    """
    from studies.artifacts.shipping import here
    from studies.inspect.compare_trial import compare_trial

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        study = store.studies.load(name)
        meant = find_target(store, study, target)
        config = config_of(study, meant, url).with_options(options or {})
        return compare_trial(
            store,
            study,
            meant,
            trial,
            here(store, study, config),
            groups=groups,
            samples=samples,
            threshold_db=threshold_db,
            progress=progress or Quiet(),
        )


def sensitivity(
    study_or_model: str,
    *,
    thresholds: Thresholds | None = None,
    again: bool = False,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    target: str | None = None,
) -> Sensitivities:
    """What each group adds to the outputs' error alone in a lower precision, as `bitfront sensitivity`.

    Args:
        study_or_model: a study, whose stored pass is read or which is given one; or an ONNX file, of which nothing is
            stored.
        thresholds: beyond which a group is sensitive.
        again: measure anew what is stored.
        options: `sensitivity-time`, `data`, and of a study `model` where files have moved, of a model those of
            `layers`.
        target: which of the study's; None for the first.

    Raises:
        StudyError: no such study, or model, data or target are not the study's.
        ConfigError: a threshold or an option cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies.judging.findings.sensitivity_table import Thresholds
    from studies.run.guidance import sensitivities

    if target is not None and _is_model_file(study_or_model):
        raise ConfigError(f"--target: it belongs to a study, and {study_or_model} is an ONNX file. Leave it out.")
    judged, given, shown = thresholds or Thresholds(), dict(options or {}), progress or Quiet()
    judged.check()
    if _is_model_file(study_or_model):
        return sensitivities.of_model(_for_model(study_or_model, given, storage), judged, shown)
    foreign = sorted(given.keys() - {"model", "data", "sensitivity-time"})
    if foreign:
        raise ConfigError(
            f"--{foreign[0]}: study {study_or_model!r} has its own, which cannot be changed. Leave it out, or name an "
            "ONNX file instead of a study."
        )
    url = storage or default_url()
    return sensitivities.of_study(
        url, study_or_model, judged, again=again, options=given, progress=shown, wanted=target
    )


def _is_model_file(study_or_model: str) -> bool:
    return study_or_model.endswith(".onnx") or Path(study_or_model).is_file()


def _for_model(model: str, given: Mapping[str, Any], storage: str | None) -> SearchConfig:
    if "model" in given or storage is not None:
        option = "--model" if "model" in given else "--storage"
        raise ConfigError(f"{option}: it belongs to a study, and {model} is an ONNX file. Leave it out.")
    if "data" not in given:
        raise ConfigError(f"measuring the sensitivity of {model}: expected --data to run it on. Add --data DATA.")
    return from_options({**given, "model": model})
