"""A machine on which nothing that is measured alone is steady, and what is measured in turn is."""

from __future__ import annotations

from typing import Any

from evaluators.measure import latency
from search.values import Latency

measure_once = latency._measure_once


def once(session: Any, baseline: Any, plan: Any) -> Latency:
    return latency.replace(measure_once(session, baseline, plan), warnings=("planted",))


latency._measure_once = once
