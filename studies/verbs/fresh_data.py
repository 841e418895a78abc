"""What fresh data mean for a study: the verb `drift` as a function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from search.errors import ConfigError
from studies.artifacts.shipping import here
from studies.events import Events, Quiet
from studies.inspect.drift.drift_report import DriftReport
from studies.inspect.drift.find_drift import find_drift
from studies.judging.study_lookup import standing_of
from studies.options.read_options import change_config
from studies.store.store import Store, default_url
from studies.store.target_options import config_of

NOTHING: Mapping[str, Any] = MappingProxyType({})


def drift(
    name: str,
    data: str,
    changes: Mapping[str, Any] = NOTHING,
    *,
    storage: str | None = None,
    target: str | None = None,
    events: Events | None = None,
) -> DriftReport:
    """Whether fresh data still are like those that a study was calibrated on, as `bitfront drift`; stores nothing.

    Args:
        data: the fresh data, in any form that `search` takes; labels may be missing.
        changes: `model`, where the file has moved.
        storage: URL of the database; None for the default one.
        target: which of the study's; None for the first.
        events: told what happens.

    Raises:
        StudyError: no such study or target, it has not been calibrated, or the model is another one.
        DataError: the fresh data cannot be used.
        ArtifactError: the study's ranges or statistics are gone or damaged.
        EvaluatorError: the model or the engine cannot be run.
    """
    if not data:
        raise ConfigError("looking for drift: expected fresh data to look at. Add --data DATA.")
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, wanted=target)
        config = change_config(config_of(now.study, now.target, url), {**changes, "data": data})
        return find_drift(store, now, here(store, now.study, config), events or Quiet())
