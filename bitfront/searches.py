"""The functions that make, continue and open a study: `search`, `resume` and `load`."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.samplers import BaseSampler

from bitfront import verbs
from bitfront.columns import Inputs, take_columns, unread_labels_text
from bitfront.inputs import InputFiles
from bitfront.metrics import Metric, OwnMetric, lend, metric_name, name_in_study
from bitfront.progress import LOG, Callback, Listener, RunningStudy, listen
from bitfront.study import Study
from bitfront.wording import in_python, python_words, resume_call
from search.errors import ConfigError, InputError, RunError, StudyError
from search.sampler.kinds import Handed, SamplerKind
from studies import interrupts
from studies.judging.sentences.cautions import pick_warnings
from studies.judging.sentences.no_pick import all_failed_text
from studies.judging.status.early_end import early_end
from studies.judging.study_lookup import exists
from studies.lifecycle.deletion import remove_inputs
from studies.lifecycle.new_study import check_new_study
from studies.options.config import SearchConfig, option_table, options_of
from studies.options.option import Option
from studies.options.read_options import read_changes, read_config
from studies.options.urls import default_url, mask_password
from studies.run.search_result import SearchResult
from studies.run.session.trusted_functions import NAMED_AGAIN, remember_functions
from studies.store.store import Store

if TYPE_CHECKING:
    import onnx

    Sampler = str | type[SamplerKind] | BaseSampler
    Run = Callable[[Listener], SearchResult]

IF_EXISTS = ("raise", "resume", "replace")


@python_words()
def search(
    model: str | Path | onnx.ModelProto,
    data: Any,
    *,
    inputs: Inputs | None = None,
    trials: int | None = None,
    max_drop: float | str | None = None,
    latency_budget: str | None = None,
    metric: Metric | None = None,
    sampler: Sampler | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = "auto",
    if_exists: str = "raise",
    **options: Any,
) -> Study:
    """Search for the best mixes of precisions of a model, as the command `bitfront search` does.

    Examples:
        >>> data = {"image": np.zeros((40, 3, 8, 8), np.float32)}
        >>> study = bitfront.search("model.onnx", data, trials=3, backend="fake", study="quick")
        >>> len(study)
        3
        >>> bitfront.search("model.onnx", data, trials=4, backend="fake", study="quick", if_exists="resume")
        <Study 'quick' in sqlite:///bitfront.db: 4 trials, best is <Trial ...>>

    Args:
        model: a path, or an `onnx.ModelProto` in float32.
        data: a path or `package.module:function`; a mapping from input name to array, with the labels as `labels`; an
            iterable of batches, such as a PyTorch `DataLoader`, where each batch is such a mapping or a pair (x, y);
            or a Hugging Face data set. Objects are read once and written to files beside the database, which are
            removed with the study.
        inputs: the columns that the model reads, for a Hugging Face data set or for batches that are mappings. The
            columns have the names of the inputs, or this is a mapping from input name to column. A column `label` or
            `labels` is read as the labels.
        trials: the number of distinct evaluations, including the baselines; None for 60.
        max_drop: the allowed loss of accuracy, as 0.01 or `1%`.
        latency_budget: the longest allowed latency with its unit, as `2.5ms`.
        metric: a name, or a function or class as `--metric` takes it. A function of a module is imported by the
            evaluator process. Any other function, for example one that a notebook defines, is called in this process,
            possibly not in the main thread. To resume such a study, the function has to be given again.
        sampler: a name, a `SamplerKind`, or any Optuna sampler; None for `guided`.
        callbacks: functions that are called after every trial with the study and the trial. `study.stop()` ends the
            search. An error in a callback also ends the search and is raised here. The study can then be resumed.
        progress: True and `auto` show a display on a terminal, and print lines in a notebook, a pipe or a file; `auto`
            leaves out the lines in a pipe or a file if `logging` is set up to show them. False prints nothing. The
            logger `bitfront` receives the messages in any case.
        if_exists: what to do if there already is a study of this name: `raise` an error, `resume` it, or `replace` it
            by a new one.
        options: any other option of `bitfront search`, with underscores and as the types of TOML: `batch=16`,
            `time_limit="30m"`, `keep=["head=fp32"]`. `study` is the name of the study, by default that of the model's
            file or graph. `storage` is the URL of its database, by default `sqlite:///bitfront.db`. `docs/options.md`
            lists all options.

    Returns:
        The study, after all trials were evaluated and its best mix was confirmed on the final samples.

    Raises:
        InputError: an argument cannot be used. Nothing was made.
        RunError: the search could not continue, or every evaluation failed. The study can be resumed.
        KeyboardInterrupt: Ctrl-C; the study can be resumed.
    """
    _refuse_import_of_script("search")
    if if_exists not in IF_EXISTS:
        raise ConfigError(f"if_exists: expected one of {', '.join(IF_EXISTS)}, got {if_exists!r}.")
    place = str(options.get("study") or _name_of(model)), str(options.get("storage") or default_url())
    resumes = if_exists == "resume" and exists(place[0], storage=place[1])
    own_name = name_in_study(metric, *place) if resumes else metric_name(metric)
    own = OwnMetric.of(metric, own_name)
    named = {"trials": trials, "max_drop": max_drop, "latency_budget": latency_budget, "metric": own_name}
    sampler_name, own_sampler = _read_sampler(sampler)
    with lend(own):
        texts = _texts({"study": _name_of(model), **options, **named, "sampler": sampler_name})
        # Before the data are read, which may take long.
        config = read_config({**texts, "model": "model.onnx", "data": "data"})
        config = replace(config, own_sampler=own_sampler)
        with InputFiles(config.study, config.storage, config.max_samples) as files:
            study = RunningStudy(config.study, config.storage, metric=own)
            study.sampler_is_object = own_sampler is not None
            with listen(study, callbacks, progress) as listener:
                files.tell(listener)
                chosen = take_columns(data, inputs)
                if text := unread_labels_text(chosen):
                    listener.note(text)
                run = _prepare(config, texts, files, (model, chosen), if_exists)
            with _inputs_taken_back(config):
                return _run(study, callbacks, progress, run)


def _prepare(
    config: SearchConfig, texts: Mapping[str, Any], files: InputFiles, inputs: tuple[Any, Any], if_exists: str
) -> Run:
    """Prepare the search of a new study, or that of the study that exists.

    Args:
        texts: the options from which `config` was read.
        inputs: the model and the data.
    """
    name, url = config.study, config.storage
    there = exists(name, storage=url)
    if there and if_exists == "raise":
        raise _known(name, url)
    files.write(*inputs)
    if there and if_exists == "resume":
        files.match()
        changes = {**_changes(config, texts), "model": files.model, "data": files.data}
        named = config.with_values({"data": files.data})

        def resume_named(events: Listener) -> SearchResult:
            remember_functions(named, events)  # this call names them, as it did when the study was made
            search_result: SearchResult = verbs.resume(
                name, changes, storage=url, own_sampler=config.own_sampler, events=events
            )
            return search_result

        return resume_named
    if there:
        check_new_study(config.with_values({"model": files.model, "data": files.data}))  # a mistake costs no study
        verbs.delete(name, url)
    files.keep()
    new = config.with_values({"model": files.model, "data": files.data})
    return lambda events: verbs.search(new, events)


@python_words()
def resume(
    study: str | Study,
    *,
    trials: int | None = None,
    metric: Metric | None = None,
    sampler: Sampler | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = "auto",
    storage: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Study:
    """Continue a study, as the command `bitfront resume` does.

    Examples:
        >>> len(bitfront.resume("model", trials=4))
        4

    Args:
        study: the name of the study, or the object that `search` or `load` returned.
        trials: the new total of evaluations; None for the study's own.
        metric: needed if the study was searched with a function that cannot be imported, unless `study` is the object
            that `search` returned.
        sampler: needed if the study was searched with an Optuna sampler that was given as an object.
        callbacks: as for `search`.
        progress: as for `search`.
        storage: as for `search`.
        target: the target of the study that this host is; None for the first.
        options: any other option of `bitfront resume`: limits, `time_limit`, and `model` and `data` if files have
            moved.

    Raises:
        InputError, RunError, KeyboardInterrupt: as for `search`.
    """
    _refuse_import_of_script("resume")
    name, url = _name_and_storage(study, storage)
    changes = read_changes(_texts({**options, "trials": trials}), "resume")
    own = OwnMetric.of_study(metric, name, url) or getattr(study, "metric", None)
    running = RunningStudy(name, url, target=target, metric=own)
    _, own_sampler = _read_sampler(sampler)
    running.sampler_is_object = own_sampler is not None
    with lend(own):
        return _run(
            running,
            callbacks,
            progress,
            lambda events: verbs.resume(
                name, changes, storage=url, target=target, own_sampler=own_sampler, events=events
            ),
        )


@python_words()
def load(
    study: str,
    *,
    storage: str | None = None,
    target: str | None = None,
    metric: Metric | None = None,
    **limits: Any,
) -> Study:
    """Open an existing study.

    Examples:
        >>> bitfront.load("model", max_drop=0.02).best
        <Trial ...>

    Args:
        study: the name of the study.
        storage: the URL of the database; None for `sqlite:///bitfront.db` in the current folder.
        target: one of the study's targets: its number, its fingerprint or a part of its name; None for the first.
        metric: needed for exports if the study was searched with a function that cannot be imported.
        limits: limits to judge by instead of the study's own: `max_drop="1%"`, `latency_budget="2ms"`; `"none"` removes
            one. They are not stored.

    Raises:
        StudyError: there is no such database, study or target, or the study has another metric.
        ConfigError: a limit is unknown, or does not apply to the study's metric.
    """
    url = storage or default_url()
    changes = read_changes(_texts(limits), "front")
    handle = Study(study, url, target=target, limits=changes, metric=OwnMetric.of_study(metric, study, url))
    len(handle)  # reads it, so that what is not there is said at once
    return handle


# -- running -----------------------------------------------------------------------------------------------------------


def _run(study: RunningStudy, callbacks: Sequence[Callback], progress: bool | str, run: Run) -> Study:
    """Run a search, report its progress, and return the study."""
    try:
        with (
            python_words(study.resume_arguments()),
            interrupts.handle_interrupts(),
            listen(study, callbacks, progress) as events,
        ):
            done = run(events)
    except KeyboardInterrupt:
        LOG.warning("interrupted; %s", _advice(study))
        raise KeyboardInterrupt("the search was interrupted") from None  # without the frames of what was going on
    now = done.standing
    LOG.info("%s", done.reason)
    if (early := early_end(now)) is not None:
        LOG.warning("%s. Go on with %s", early.text, in_python(early.resume, study.resume_arguments()))
    for text in pick_warnings(now):
        LOG.warning("%s", text)
    if now.details.failures is not None:
        raise RunError(all_failed_text(now))
    return Study(study.name, study.storage, target=study.target, metric=study.metric)


def _advice(study: RunningStudy) -> str:
    """How to continue after an interruption: with all that the study does not store itself."""
    if not exists(study.name, storage=study.storage):
        return "nothing was stored yet"
    return f"{resume_call(study.name, study.resume_arguments())} continues the study"


@contextmanager
def _inputs_taken_back(config: SearchConfig) -> Iterator[None]:
    """Remove the written inputs of a new study if it is refused."""
    try:
        yield
    except InputError:
        if not exists(config.study, storage=config.storage):
            remove_inputs(config.study, config.storage)
        raise


def _refuse_import_of_script(what: str) -> None:
    """Refuse a search in a process of `multiprocessing` that imports the script only to find its functions.

    Raises:
        ConfigError: this is such a process.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        script = getattr(sys.modules.get("__mp_main__"), "__file__", None) or "the script"
        raise ConfigError(
            f"bitfront.{what} was called while a process of multiprocessing imports {script}. Put the code of the "
            "script "
            "below `if __name__ == '__main__':`."
        )


# -- what was given ----------------------------------------------------------------------------------------------------


def _texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as on the command line: texts, lists of texts, True for flags, and None where nothing is given."""
    return {name: _text(value) for name, value in options.items()}


def _text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_text(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):  # of a table of trials
        value = value.item()
    if isinstance(value, float):
        return f"{value:.17f}".rstrip("0").rstrip(".") if abs(value) < 1 else repr(value)  # no exponents
    return value


def _read_sampler(sampler: Any) -> tuple[str | None, BaseSampler | None]:
    """The name of a sampler for a configuration, and the sampler itself if it is an object of Python.

    Raises:
        ConfigError: it is no sampler.
    """
    if sampler is None or isinstance(sampler, str):
        return sampler, None
    if isinstance(sampler, type) and issubclass(sampler, SamplerKind):
        return f"{sampler.__module__}:{sampler.__qualname__}", None
    if isinstance(sampler, BaseSampler):
        return f"{Handed.__module__}:{Handed.__qualname__}", sampler
    raise ConfigError(f"sampler: expected a name or an Optuna sampler, got {type(sampler).__name__}.")


def _name_of(model: object) -> str:
    """The name of a study: that of the model's file, or of its graph."""
    if isinstance(model, str | Path):
        return Path(model).stem
    return getattr(getattr(model, "graph", None), "name", "") or "model"


def _name_and_storage(study: str | Study, storage: str | None) -> tuple[str, str]:
    if isinstance(study, Study):
        return study.name, storage or study.storage
    return study, storage or default_url()


def _known(name: str, url: str) -> StudyError:
    return StudyError(
        f"searching as study {name!r}: there is already a study of this name in {mask_password(url)}. Look at it: "
        f"bitfront.load({name!r}). Continue it: if_exists='resume'. Start again: if_exists='replace'. Or give another "
        "name: study='…'."
    )


def _changes(config: SearchConfig, texts: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a search that change the study that it continues.

    Raises:
        StudyError: an option that cannot change differs from that of the study.
    """
    named = [option_table()[name.replace("_", "-")] for name, value in texts.items() if value is not None]
    resumed = {row.name for row in options_of("resume") if row.key not in NAMED_AGAIN}
    with Store.open(config.storage, write=False) as store:
        stored = store.studies.load(config.study).config
    wanted = config.to_json()
    kept = [row for row in named if row.name not in resumed | {"study", "storage"}]
    other = [row.name.replace("-", "_") for row in kept if stored.get(row.key) != wanted.get(row.key)]
    if other:
        raise StudyError(
            f"continuing study {config.study!r}: it was made with another {' and another '.join(other)}. Leave that "
            "out, start again with if_exists='replace', or give another name: study='…'."
        )
    return {row.key: _value(config, row) for row in named if row.name in resumed}


def _value(config: SearchConfig, row: Option) -> Any:
    field_value = getattr(config, row.field)
    return field_value.get(row.item) if row.item else field_value
