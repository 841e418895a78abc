"""Faults that the fake backend simulates, to try how a search handles them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from search.errors import ConfigError
from search.graph.model import Group
from search.values import Assignment, Precision

BUILDS, AUDITS, RUNS = "build", "audit", "run"


@dataclass(frozen=True)
class PlantedFault:
    """`ACTION:REGEX=PRECISION`: what happens where a group whose name or id the pattern is found in has a precision.

    Actions, by when they happen. In the build: `refuse` (naming the group), `refuse-unnamed`, `fail` (an unforeseen
    error), `hang` (for ever), `crash` (of the process), `out-of-memory`, `device-error`. In the audit: `disobey`, the
    group ran in FP32. In the run: `not-finite`, the outputs are NaN.
    """

    action: str
    pattern: str
    precision: Precision

    @classmethod
    def parse(cls, text: str) -> PlantedFault:
        """Read `crash:conv2=int8`.

        Raises:
            ConfigError: it is not of that form, or there is no such action or precision.
        """
        action, colon, rest = text.partition(":")
        pattern, equals, label = rest.rpartition("=")
        try:
            if not (colon and equals and pattern) or action not in ACTIONS:
                raise ValueError(f"the actions are {', '.join(ACTIONS)}")
            re.compile(pattern)
            return cls(action, pattern, Precision.parse(label))
        except (ValueError, re.error) as error:
            raise ConfigError(
                f"option fake-fault: expected ACTION:REGEX=PRECISION, got {text!r}; write it like "
                f"crash:conv2=int8; {error}"
            ) from error

    def find(self, groups: Sequence[Group], assignment: Assignment) -> Group | None:
        """The first group that it hits; None if there is none."""
        pattern = re.compile(self.pattern)
        hit = (g for g in groups if pattern.search(g.name) or pattern.fullmatch(g.id))
        return next((group for group in hit if assignment[group.id] is self.precision), None)

    def happen(self, group: Group) -> None:
        """Do what it does to a build; nothing if it happens at another time."""
        act = ACTIONS[self.action][1]
        if act is not None:
            act(group, f"an invented fault: {group.name} in {self.precision.label}")


def find_groups(faults: Sequence[PlantedFault], when: str, groups: Sequence[Group], assignment: Assignment) -> set[str]:
    """Ids of the groups that faults of a time hit."""
    hits = (fault.find(groups, assignment) for fault in faults if ACTIONS[fault.action][0] == when)
    return {group.id for group in hits if group is not None}


def _refuse(group: Group, message: str) -> None:
    raise RefusedError(message, group.id)


def _refuse_unnamed(group: Group, message: str) -> None:
    raise RefusedError("an invented fault of no particular group")


def _fail(group: Group, message: str) -> None:
    raise RuntimeError(message)


def _hang(group: Group, message: str) -> None:
    print(message, flush=True)  # noqa: T201 - the log of the evaluator process tells what it hangs in
    while True:
        time.sleep(60)


def _crash(group: Group, message: str) -> None:
    print(message, flush=True)  # noqa: T201 - the log tells what it died of
    os.kill(os.getpid(), signal.SIGKILL)


def _run_out(group: Group, message: str) -> None:
    raise OutOfMemoryError(message)


def _break_device(group: Group, message: str) -> None:
    raise DeviceError(message)


ACTIONS: Mapping[str, tuple[str, Callable[[Group, str], None] | None]] = {
    "refuse": (BUILDS, _refuse),
    "refuse-unnamed": (BUILDS, _refuse_unnamed),
    "fail": (BUILDS, _fail),
    "hang": (BUILDS, _hang),
    "crash": (BUILDS, _crash),
    "out-of-memory": (BUILDS, _run_out),
    "device-error": (BUILDS, _break_device),
    "disobey": (AUDITS, None),
    "not-finite": (RUNS, None),
}
