"""From options to a run that can start. Everything is checked before anything is created."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evaluators.backends.registry import choose_backend, open_backend
from evaluators.calibration import cache as calibration_cache
from evaluators.data.checks import check_input_names, check_source
from evaluators.held_folders import held_folder
from evaluators.lowering.placement import Placement
from evaluators.metrics.own.handed_metric import find_metric, is_handed
from evaluators.process.connection import ProcessLimits
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.errors import BitfrontError, ConfigError, MetricError
from search.graph import model as models
from search.graph.element_types import is_float
from search.graph.model import Model, values_by_name
from search.space.choices import Space, make_space
from search.space.range_rules import check_matches
from search.space.rules import SampleChoice
from search.values import Capability, Ranges, Score, Target
from studies.events import Events, Quiet
from studies.options.config import SearchConfig
from studies.options.limits import Limits, MetricScale
from studies.options.option import run_checks
from studies.options.resolve_limits import resolve_limits
from studies.run.session.backend_values import backend_options, check_backend_options, device_of
from studies.run.session.builders import prepared_builders
from studies.run.session.data_caches import function_sources, read_sources
from studies.run.session.data_shapes import model_notes, open_inputs, range_text, values_text, with_shapes_of_data
from studies.run.session.trusted_functions import check_trusted

_LEAST_TRYING_S = 10.0
_NO_JOB = Job(model="", data="", folder="")


@dataclass(frozen=True)
class Checked:
    """What a configuration came to: inputs that have been found good, with the process that found them so.

    Attributes:
        space: before calibration; see `space_under`.
        limits: in the unit of the metric, for a whole batch.
        builders: processes for `make_builders`.
    """

    config: SearchConfig
    model: Model
    space: Space
    keeper: EvaluatorProcess
    folder: Path
    limits: Limits
    builders: tuple[EvaluatorProcess, ...] = ()

    def space_under(self, ranges: Ranges) -> Space:
        """The search space that calibrated ranges leave."""
        return make_space(self.model, self.capability, ranges, self.config.keep, self.config.granularity)

    @property
    def target(self) -> Target:
        return self.keeper.description.target

    @property
    def capability(self) -> Capability:
        return self.keeper.description.capability

    @property
    def data(self) -> dict[str, Any]:
        """Digests and sizes of the data, as the study's row has them."""
        data = self.keeper.description.data
        assert data is not None  # it opens more than builds
        return asdict(data)

    @property
    def metric(self) -> dict[str, Any]:
        """The metric, as the study's row has it."""
        metric = self.keeper.description.metric
        assert metric is not None
        row = asdict(metric)
        del row["undeclared"]  # what it turned out to be counts
        return row


@contextmanager
def check_inputs(
    config: SearchConfig,
    *,
    scored: bool = True,
    undivided: bool = False,
    builds: bool = False,
    more: Sequence[Callable[[], object]] = (),
    events: Events | None = None,
    cache: Path | None = None,
) -> Iterator[Checked]:
    """Check every input of a search. Nothing is created but a folder for temporary files, and what is in `cache`.

    The evaluator process starts, and opens its backend, while the checks are made that need none; it is ended with them
    where they refuse something.

    Args:
        more: checks of the caller's, whose refusals are told together with those of the options and files here.
        scored: whether a metric will score outputs. Where none does, the float model is not tried with it either, so
            that outputs and labels may have any form.
        builds: whether to start processes that only build, too.
        undivided: whether every split is all of the data: for data that nothing is chosen by.
        events: told how far the reading of the data is.
        cache: folder that keeps what functions of the user give, read once; None to read it for this run alone.

    Raises:
        InputError: naming what cannot be used.
        EvaluatorError: the evaluator process does not start.
    """
    user_config = config
    check_trusted(config)
    with held_folder() as folder, ExitStack() as stack:
        builders: tuple[EvaluatorProcess, ...] = ()
        keeper = stack.enter_context(EvaluatorProcess(_NO_JOB, folder / "log", _bounds(config)))
        with suppress(BitfrontError):  # options that make no job are told with all other mistakes
            keeper.job = _job(config, folder)
            keeper.prepare()
            if builds:
                builders = stack.enter_context(prepared_builders(config, keeper.job, folder))
        config, model = load_checked(config, more)
        place = cache or folder / "samples"
        # Of a function only one batch was looked at.
        if function_sources(config) and config.shapes != user_config.shapes:
            open_specs = open_inputs(user_config, model.inputs)
            read = read_sources(config, open_specs, place, events or Quiet(), shared=cache is not None)
            config = with_shapes_of_data(user_config, read)
            model = load_model(config)
        for text in (values_text(config, user_config), range_text(model, user_config)):
            if events is not None and text:
                events.note(text)
        caches = read_sources(config, model.inputs, place, events or Quiet(), shared=cache is not None)
        for text in model_notes(model):
            (events or Quiet()).note(text)
        keeper.job = replace(_job(config, folder), undivided=undivided, caches=caches, known_shapes=model.measured)
        if events is not None:
            keeper.on_doing = partial(_tell_doing, events, set())
        keeper.limits = _bounds_of_trying(config)
        setup = keeper.ask("trying the float model").setup
        setup.knobs()  # the first request, whatever it is, opens the inputs
        metric = keeper.description.metric
        assert metric is not None
        if not metric.undeclared:
            _limits(config, asdict(metric), model.batch)  # before anything runs
        _check_choice(config, keeper)
        space = make_space(model, keeper.description.capability, None, config.keep, config.granularity)
        if scored:
            try:
                if setup.try_out() and not metric.ratio:
                    keeper.take_as_shares()
            except MetricError as error:
                raise ConfigError(f"trying the metric on the float model: {error}") from error
        keeper.limits = _bounds(config)
        limits = _limits(config, {**asdict(metric), "ratio": keeper.job.shares or metric.ratio}, model.batch)
        yield Checked(config, model, space, keeper, folder, limits, builders)


def _tell_doing(events: Events, known: set[str], doing: str, holder: str) -> None:
    """Say what the evaluator process does or waits for; the first wait for each other process has a line."""
    text = f"{doing}: waiting for {holder}" if holder else doing
    if holder and holder not in known:
        known.add(holder)
        events.step(text, 1, 1)
    else:
        events.announce(text)


def _check_choice(config: SearchConfig, keeper: EvaluatorProcess) -> None:
    """Refuse `--calibration-select` of more samples than there are to choose from."""
    data, choice = keeper.description.data, SampleChoice.parse(config.calibration_select)
    assert data is not None
    if choice is not None and choice.count > data.calibration:
        raise ConfigError(
            f"--calibration-select {config.calibration_select}: expected at most {data.calibration} samples, as many "
            "as there are to calibrate with. Choose fewer, or give more with --calibration-data."
        )


def _limits(config: SearchConfig, metric: Mapping[str, Any], batch: int) -> Limits:
    """The limits in the unit of the metric; where they do not fit a metric that nobody named, also why it is that."""
    try:
        return resolve_limits(config.limits, MetricScale.of(metric), batch)
    except ConfigError as error:
        if config.metric is not None:
            raise
        raise ConfigError(". ".join([str(error).rstrip("."), *metric["notes"]])) from error


def load_checked(config: SearchConfig, more: Sequence[Callable[[], object]]) -> tuple[SearchConfig, Model]:
    """The model, once all checks that need no evaluator process have passed; and the options with all its shapes."""
    check_trusted(config)
    loaded: list[Model] = []
    shaped: list[SearchConfig] = []
    sources = [each for each in (config.data, config.calibration_data, config.final_data) if each]
    run_checks(
        *more,
        lambda: _check_sampler(config),
        lambda: _check_metric(config),
        lambda: check_steps(config),
        lambda: check_backend_options(config),
        lambda: shaped.append(with_shapes_of_data(config)),
        lambda: loaded.extend(map(load_model, shaped)),
        lambda: _check_ranges(config, loaded),
        *(partial(check_source, source) for source in sources),
        lambda: check_input_names(sources, [spec.name for model in loaded for spec in model.inputs]),
    )
    return shaped[0], loaded[0]


def _check_sampler(config: SearchConfig) -> None:
    """Refuse a sampler that there is not, and weights for one that has no use for them."""
    if not config.sampler_kind().rewarded and Score(*config.reward) != Score():
        raise ConfigError(
            f"--reward {Score(*config.reward)}: the sampler {config.sampler} does not use a reward. Leave the "
            "option out, or search with --sampler rl."
        )


def _check_metric(config: SearchConfig) -> None:
    """Refuse a metric that is a Python function which only another process was handed.

    One that cannot be imported is refused by the evaluator process. Where functions of the user give the data, which
    may take minutes to read, it is imported here, before they are read.

    Raises:
        ConfigError: saying how to go on.
    """
    if config.metric is not None and is_handed(config.metric):
        find_metric(config.metric)
    elif config.metric is not None and function_sources(config):
        from evaluators.metrics.registry import get_metric  # with all metrics

        get_metric(config.metric, config.decode)


def _check_ranges(config: SearchConfig, loaded: Sequence[Model]) -> None:
    """Refuse a `--range` that names no float tensor; one whose type inference does not know may be of floats."""
    for model in loaded:
        values = values_by_name(model.graph)
        floats = [name for name, value in values.items() if value.dtype is None or is_float(value)]
        check_matches(config.ranges, floats)


def check_steps(config: SearchConfig) -> None:
    """Refuse recovery steps that there are not, or that do not go with other options.

    Raises:
        ConfigError, DataError: naming them.
    """
    if config.recover in ("auto", "none"):
        return
    from evaluators.recovery.registry import steps_of  # it imports what runs models

    steps_of(config.recover)
    if config.calibration_cache is not None:
        raise ConfigError(
            f"--recover {config.recover} and --calibration-cache: give one of them. Recovery calibrates again, and "
            "the ranges of a cache would no longer be valid."
        )


def load_model(config: SearchConfig) -> Model:
    """The model that a configuration names, at the shapes it asks for."""
    shapes = {s.name: models.ShapeRequest(s.minimum, s.optimum, s.maximum) for s in config.shapes}
    model = models.load(Path(config.model), batch=config.batch, shapes=shapes, values=config.input_values)
    model = _with_measured_shapes(config, model) if model.unknown_shapes() else model
    return model.with_decisions(config.decide)


def _with_measured_shapes(config: SearchConfig, model: Model) -> Model:
    """Take shapes that inference does not tell from one run, in a process of its own; `shape_text` says the rest."""
    with held_folder() as folder:
        job = replace(
            _job(config, folder), backend="onnxruntime", device="cpu", options={}, capabilities=None, only_builds=True
        )
        with EvaluatorProcess(job, folder / "log", _bounds_of_trying(config)) as process, suppress(BitfrontError):
            return model.with_shapes(process.ask("running the float model for its shapes").builds.measure_shapes())
    return model


def look_at_layers(config: SearchConfig, *, calibrated: bool) -> tuple[Model, Space, Target, Capability, Placement]:
    """The space of a model on a target, what that runs and how, without a study; with data, ranges decide on FP16.

    Raises:
        InputError: the model, a rule, the target or the data cannot be used.
    """
    config = config.with_values({"timing_cache": "none"})  # nothing is built
    check_backend_options(config)
    if not calibrated:
        model = load_model(config)
        backend = open_backend(config.backend, device_of(config), backend_options(config), config.capabilities)
        runs = backend.capability()
        space = make_space(model, runs, None, config.keep, config.granularity)
        return model, space, backend.target(), runs, backend.placement
    with check_inputs(config, scored=False) as good:
        placement = Placement.from_json(good.keeper.description.placement)
        space = good.space_under(calibrate(good, config.calibration))
        return good.model, space, good.target, good.capability, placement


def calibrate(good: Checked, method: str) -> Ranges:
    """Ranges, of inputs that no study keeps them for.

    Raises:
        EvaluatorError: the evaluator process dies over it.
    """
    return good.keeper.ask("calibrating").calibrations.calibrate(method).ranges


def adopt_ranges(keeper: EvaluatorProcess, folder: Path, ranges: Ranges) -> None:
    """Let an evaluator process continue ranges.

    Args:
        folder: where the process reads them from, as long as it lives.
    """
    path = folder / "ranges.json"
    path.write_text(json.dumps(ranges.to_json()), encoding="utf-8")
    keeper.adopt(ranges=str(path))


def check_searchable(good: Checked) -> None:
    """Refuse a model with nothing to choose.

    Raises:
        ConfigError: every group has one precision left; says why.
    """
    if good.space.variables:
        return
    config, choices = good.config, good.space.choices
    reasons = {f"{c.precision.label}: {c.reason}" for each in choices.values() for c in each if c.reason}
    raise ConfigError(
        f"making the search space: there is nothing to search. Every layer of {config.model} has only one precision "
        "left on "
        f"{good.target.backend} ({good.target.device}). {'; '.join(sorted(reasons)[:4])}. "
        f"`bitfront inspect` shows the reasons of all layers. Loosen --keep, or choose another --backend or --device."
    )


def calibration_cache_of(config: SearchConfig) -> dict[str, float] | None:
    """What `--calibration-cache` holds, magnitude by tensor; None if it was not given.

    Raises:
        ConfigError: the file cannot be read.
    """
    return None if config.calibration_cache is None else calibration_cache.read_file(Path(config.calibration_cache))


def _job(config: SearchConfig, folder: Path) -> Job:
    return Job(
        model=config.model,
        data=config.data,
        folder=str(folder / "evaluator"),
        batch=config.batch,
        input_values=config.input_values,
        shapes={s.name: [list(s.minimum), list(s.optimum), list(s.maximum)] for s in config.shapes},
        backend=choose_backend(config.backend, device_of(config)),
        device=device_of(config),
        options=backend_options(config),
        capabilities=None if config.capabilities is None else config.capabilities.to_json(),
        metric=config.metric,
        decode=config.decode,
        calibration_data=config.calibration_data,
        final_data=config.final_data,
        preprocess=config.preprocess,
        max_samples=config.max_samples,
        split_seed=config.split_seed,
        calibration_select=config.calibration_select,
        hand_ranges=[str(rule) for rule in config.ranges],
        decide=config.decide,
        keep=[str(rule) for rule in config.keep],
    )


def _bounds(config: SearchConfig) -> ProcessLimits:
    return ProcessLimits(config.evaluation_timeout_s, config.evaluation_memory_bytes)


def _bounds_of_trying(config: SearchConfig) -> ProcessLimits:
    """Bounds until the float model has run once: one that never ends must not outlast the whole command."""
    limits = _bounds(config)
    if config.time_limit_s is None:
        return limits
    return replace(limits, timeout_s=min(limits.timeout_s, max(config.time_limit_s, _LEAST_TRYING_S)))
