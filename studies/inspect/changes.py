"""Changes since a study was made: of its target, its data and the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search.values import flatten
from studies import environment
from studies.run.session.setup import Checked
from studies.store.records import StudyRecord, TargetRecord

# What differs between two runs on one machine, or says nothing about results.
_UNTOLD = frozenset({"memory_bytes", "cpu.usable_threads", "container"})


def find_changes(study: StudyRecord, target: TargetRecord, good: Checked) -> Iterator[str]:
    """Sentences on what is not as it was when a study was made: target, data and environment."""
    yield from (f"target {line}" for line in differences(target.target.to_json(), good.target.to_json()))
    now = good.data
    for name, key in (("data", "digest"), ("final data", "final_digest")):
        if now[key] != study.data.get(key):
            yield f"the {name} have other content than those of the study, so the comparison uses other samples"
    if not study.environment:
        yield "no environment was recorded with the study, so it cannot be compared with this one"
        return
    yield from (f"environment {line}" for line in differences(study.environment, environment.collect()))


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two JSON objects: `packages.onnx: was 1.17, is 1.18`."""
    before, after = flatten(recorded), flatten(now)
    keys = sorted((before.keys() | after.keys()) - _UNTOLD)
    return [
        f"{key}: was {_value(before.get(key))}, is {_value(after.get(key))}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(map(str, value.values()))
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return "not there" if value in (None, "") else str(value)
