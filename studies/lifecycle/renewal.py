"""Calibrating the mixes of a study again on fresh data, as a new study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.errors import ConfigError, DataError, StudyError
from search.values import REFERENCE
from studies.artifacts.locations import open_artifacts
from studies.artifacts.shipping import here, put, put_again, ships
from studies.export.export import check_folder
from studies.gate.check import GateLimits, GateVerdict
from studies.gate.renewed.find_pairs import gate_renewal, resolve_drop
from studies.gate.renewed.renewal import Renewal
from studies.judging.search_events import SearchEvents
from studies.judging.standing import Standing
from studies.judging.study_lookup import standing_of
from studies.lifecycle.deletion import taken_back
from studies.lifecycle.delivery import export_study
from studies.options.config import SearchConfig
from studies.options.limits import MetricScale
from studies.options.read_options import change_config
from studies.run.claims.renewed_mixes import count_trials
from studies.run.local_run import run_here
from studies.run.session.data_caches import check_artifacts, study_cache
from studies.run.session.join import target_of
from studies.run.session.setup import Checked, check_inputs
from studies.run.session.study_rows import check_unchanged, create_study, metric_name, resolve_config
from studies.run.session.trusted_functions import check_trusted
from studies.store import suggestions
from studies.store.records import StudyRecord
from studies.store.store import Store
from studies.store.target_names import foreign
from studies.store.target_options import config_of


def renew_study(
    url: str,
    name: str,
    fresh: str,
    changes: Mapping[str, Any],
    *,
    limits: GateLimits,
    out: Path | None,
    target: str | None,
    events: SearchEvents,
) -> Renewal:
    """Calibrate a study's mixes on fresh data, as a new study, and judge them against the old ones.

    The old study does not change. The same call continues an interrupted renewal.

    Args:
        url: of the database.
        fresh: name of the new study.
        changes: `data`, the fresh data, in any form that `search` takes; `model`, where the file has moved.
        limits: what a renewed mix may be worse by.
        out: new or empty folder for the new study's pick `best`, written where that passes; None to write nothing.
        target: which of the study's, which this host has to be; None for the first.
        events: told what happens.

    Raises:
        StudyError: no such study or target, it has no pick, there is another study of the new name, or the model is
            another one.
        DataError: the fresh data cannot be used, or lack the labels that the metric needs.
        ConfigError: a limit means nothing for the metric, or the folder cannot be written.
        RunError: the run could not go on; the same call continues it.
    """
    data = changes.get("data")
    if not data:
        raise ConfigError("renewing a study: expected fresh data to calibrate on. Add --data DATA.")
    if out is not None:
        check_folder(out)
    with Store.open(url) as store:
        before = standing_of(store, name, wanted=target)
        known, config = _plan_renewal(store, url, before, changes, fresh, events)
        with check_inputs(
            config, more=[lambda: check_artifacts(config)], events=events, cache=study_cache(config)
        ) as good:
            _check_inputs(good, before, known)
            resolve_drop(limits, MetricScale.of(good.metric))
            study = _run(store, good, before, known, events)
            own = good.target.fingerprint
            now = standing_of(store, study.name, wanted=own)
            gated = gate_renewal(store, before, now, good, limits, events)
    best = None if now.picks.best is None else int(now.table.trial[now.picks.best])
    done = Renewal(config.study, name, data, now.metric, gated, best)
    if out is None or done.verdict is not GateVerdict.HOLDS:
        return done
    export_study(url, config.study, out, {"trust_functions": True}, target=own, events=events)
    return replace(done, folder=out)


def _run(store: Store, good: Checked, before: Standing, known: StudyRecord | None, events: SearchEvents) -> StudyRecord:
    """Run the new study, or go on with the one that was begun before, which may have been killed as it was made."""
    if known is not None:
        run_here(store, good, known, target_of(store, known, good), events)
        return known
    config = good.config
    files = put(open_artifacts(config), config, events) if ships(config) else ()
    study = create_study(store, good, events, files, renewed_from=before.study)
    put_again(open_artifacts(config), config, files, events)
    with taken_back(good.config):
        run_here(store, good, study, target_of(store, study, good), events)
    return study


def _plan_renewal(
    store: Store, url: str, before: Standing, changes: Mapping[str, Any], fresh: str, events: SearchEvents
) -> tuple[StudyRecord | None, SearchConfig]:
    """A renewal that was begun before, if there is one, and what it is asked to do."""
    name = before.study.name
    if before.picks.best is None:
        raise StudyError(
            f"renewing study {name!r}: it has no pick `best`, so there is nothing to compare a renewed mix with. "
            "Continue "
            f"the study first: `{suggestions.command('resume', name, storage=url)}`."
        )
    if before.point(before.picks.best).baseline == REFERENCE.label:
        raise StudyError(
            f"renewing study {name!r}: its best is FP32 itself, which fresh data do not change. Search on the fresh "
            "data instead, or choose other limits with "
            f"`{suggestions.command('resume', name, storage=url)}`."
        )
    known = next((store.studies.load(fresh) for each in store.studies.summaries() if each.name == fresh), None)
    if known is not None and known.renewed_from != before.study.id:
        raise StudyError(
            f"renewing study {name!r}: there is already a study {fresh!r}, which was not made by renewing it. Give "
            "another name with --as."
        )
    stored = config_of(before.study, before.target, url)
    config = change_config(here(store, before.study, stored, events), changes)
    check_trusted(config)
    trials = count_trials(store, before)
    return known, replace(
        config,
        study=fresh,
        trust_functions=True,  # they were allowed under the old study's name
        calibration_data=None,
        final_data=None,
        calibration_cache=None,
        trials=trials,
        time_limit_s=None,
        patience=None,
    )


def _check_inputs(good: Checked, before: Standing, known: StudyRecord | None) -> None:
    """Refuse another model, target or metric than the study's, and other data than a renewal was begun with."""
    study = before.study
    if good.model.digest != study.model_digest:
        raise StudyError(
            f"renewing study {study.name!r}: the model {good.config.model} has other content than that of the study. "
            "Give "
            "the study's own file; --model gives its path if it has moved."
        )
    if good.target.fingerprint != before.target.target.fingerprint:
        raise foreign(study.name, [before.target], good.target, good.config.storage)
    wanted, metric = metric_name(study.config, study.metric), metric_name(resolve_config(good.config), good.metric)
    if metric != wanted:
        raise DataError(
            f"renewing study {study.name!r}: expected data for its metric {wanted}, but with "
            f"{good.config.data} the metric is {metric}. Add the labels that the study's data have."
        )
    if known is not None:
        check_unchanged(good, known, None)
