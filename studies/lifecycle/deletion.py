"""Deleting a study with all that belongs to it, and taking back one that was not to be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import optuna

from search.errors import BitfrontError, InputError
from studies.artifacts.leftovers import clear, drop
from studies.artifacts.locations import inputs_folder, open_artifacts
from studies.judging.study_lookup import read_studies
from studies.options.config import SearchConfig
from studies.run.session.data_caches import check_artifacts
from studies.run.session.join import hold_unused
from studies.store.store import Store, close_optuna, optuna_storage


def remove_inputs(name: str, storage: str) -> None:
    """Remove the files of a model and of data that were given in memory; where there are none, nothing happens."""
    folder = inputs_folder(name, storage)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # of other studies
        folder.parent.rmdir()


def delete_study(name: str, url: str) -> None:
    """Delete a study with its evaluations and engines."""
    with Store.open(url) as store:
        study = store.studies.load(name)
        names = {target.optuna_study for target in store.targets.of_study(study.id)}
        config = SearchConfig.from_json(study.config, url, lenient=True)  # limits of a package that is gone, too
        check_artifacts(config)
        artifacts = open_artifacts(config)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with hold_unused(store, study, config):
            # Our rows go last: until then the study is listed, and deleting it again finishes what was cut off.
            database = optuna_storage(url)
            for optuna_name in names & {s.study_name for s in database.get_all_studies()}:
                optuna.delete_study(study_name=optuna_name, storage=database)
            close_optuna(database)
            drop(store, artifacts, store.files.release_study(study.id))
            clear(store, artifacts, own=config.artifacts is None)
            drop(store, artifacts, store.studies.delete(name))
            remove_inputs(name, url)


@contextmanager
def taken_back(config: SearchConfig) -> Iterator[None]:
    """A study that is new, where its inputs are refused after all, say by calibration: there is nothing to resume."""
    try:
        yield
    except InputError:
        with suppress(BitfrontError):  # the first error says more; and a study that others work on is theirs
            made = [study for study in read_studies(config.storage) if study.name == config.study]
            if made and not made[0].ok + made[0].failed + made[0].running:
                delete_study(config.study, config.storage)
        raise
