"""Commands and code to deploy the best mix: how to export it, and how to run the export."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.backends.registry import known_kind
from studies.judging.standing import Standing
from studies.store import suggestions

_FOLDER = "engine"


@dataclass(frozen=True)
class Deployment:
    """A command for a shell, and a program in Python; `code` is empty where the backend has none."""

    command: str
    code: str = ""
    shared: bool = False


def build_deployment(now: Standing, url: str, *, shared: bool) -> Deployment:
    """What exports and runs the recommended mix.

    Args:
        url: of the study's database.
        shared: whether that is a server, whose address and user do not belong into a report.
    """
    words = ("--out", _FOLDER, *now.details.target_option)
    command = suggestions.command("export", now.study.name, *words, storage=None if shared else url)
    return Deployment(command, _code(now), shared)


def _code(now: Standing) -> str:
    target = now.target.target
    kind = known_kind(target.backend)
    return "" if kind is None else kind.deployment_code(target, now.study.model.get("inputs", ()), _FOLDER)
