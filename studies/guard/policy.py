"""The engine that the user's policy wants, asked now and then beside the requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from studies.guard.options import FAST, GuardError
from studies.guard.reports import TroubleReports, sentence_of
from studies.guard.state import GuardState

Policy = Callable[[GuardState], str]
Sensor = Callable[[], Mapping[str, float]]

_SOURCE = "policy"


class PolicyKeeper:
    """What the policy and the sensor said last.

    Args:
        engines: names that the policy may give.
        policy: see `Guard`; None to stay with the fast engine.
        sensor: see `Guard`; None for no values.
        every_s: seconds between two calls of both.
        troubles: told if one of them fails; what was known before stays.

    Attributes:
        chosen: name of the engine that the policy wants.
        sensors: values of the sensor.
    """

    def __init__(
        self,
        engines: Collection[str],
        policy: Policy | None,
        sensor: Sensor | None,
        every_s: float,
        troubles: TroubleReports,
    ) -> None:
        self._engines, self._policy, self._sensor = engines, policy, sensor
        self._every_s, self._troubles = every_s, troubles
        self._next = 0.0
        self.chosen = FAST
        self.sensors: dict[str, float] = {}

    def ask(self, state: Callable[[], GuardState]) -> None:
        """Ask the sensor, then the policy, if it is time to.

        Args:
            state: gives the guard's state with the values of the sensor.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        try:
            self._ask(state)
            self._troubles.settle(_SOURCE)
        except Exception as error:
            said = f"asking the sensor and the policy: {sentence_of(error)} The {self.chosen} engine goes on."
            self._troubles.report(_SOURCE, said)

    def _ask(self, state: Callable[[], GuardState]) -> None:
        if self._sensor is not None:
            self.sensors = dict(self._sensor())
        if self._policy is None:
            return
        chosen = self._policy(state())
        if chosen not in self._engines:
            raise GuardError(f"expected one of {', '.join(self._engines)}, got {chosen!r}.")
        self.chosen = chosen
