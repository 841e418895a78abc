"""The shipped capabilities files, and a backend that offers only what a user's own allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.engine import Backend, Builder, Session
from evaluators.lowering.placement import Placement
from search.errors import ConfigError
from search.graph.model import Model
from search.space.capability_file import read_capability_file
from search.space.capability_rules import CapabilityRules
from search.values import Capability, Ranges, Target

_DIGITS = 12


class RestrictedBackend:
    """A backend with less to offer; all else is done by the one inside.

    Args:
        inside: open, and quantizing as the rules ask for.
        rules: of the user's file. Their digest is part of the target, as evaluations under other rules do not compare.

    Raises:
        ConfigError: the rules ask for more than the backend runs, or for another kind of quantization.
    """

    def __init__(self, inside: Backend, rules: CapabilityRules) -> None:
        self.inside = inside
        self.quick_profile = inside.quick_profile
        self._rules = rules
        target = inside.target()
        name = f"backend {target.backend} on {target.device}"
        self._capability = rules.narrow(inside.capability(), name)
        if rules.symmetric is not None and rules.symmetric is not inside.placement.symmetric:
            kind = "with zero point 0" if inside.placement.symmetric else "with a zero point"
            raise ConfigError(
                f"--capabilities {rules.name}: [int8] has symmetric = {str(rules.symmetric).lower()}, but {name} "
                f"always quantizes activations {kind}. Remove the line."
            )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inside.notes

    @property
    def placement(self) -> Placement:
        return self.inside.placement

    @property
    def lock_name(self) -> str:
        return self.inside.lock_name

    def target(self) -> Target:
        target = self.inside.target()
        return replace(target, options={**target.options, "capabilities": self._rules.digest[:_DIGITS]})

    def capability(self) -> Capability:
        return self._capability

    def knobs(self) -> Mapping[str, str]:
        return self.inside.knobs()

    def device_state(self) -> Mapping[str, Any]:
        return self.inside.device_state()

    def set_options(self, options: Mapping[str, Any]) -> None:
        self.inside.set_options(options)

    def check(self) -> None:
        self.inside.check()

    def float_session(self, model: Model) -> Session:
        return self.inside.float_session(model)

    def builder(self, model: Model, ranges: Ranges) -> Builder:
        return self.inside.builder(model, ranges)


def without_rules(backend: Backend) -> Backend:
    """The backend itself, inside what a capabilities file leaves of it."""
    return backend.inside if isinstance(backend, RestrictedBackend) else backend


_FOLDER = Path(__file__).parent


def shipped_capability(name: str, *layers: str) -> Capability:
    """What a backend runs natively.

    Args:
        name: of the shipped file that says all of it, without its ending.
        layers: of shipped files that leave less of it, in their order.
    """
    capability = read_capability_file(_FOLDER / f"{name}.toml").whole()
    for layer in layers:
        capability = read_capability_file(_FOLDER / f"{layer}.toml").narrow(capability, name)
    return replace(capability, withheld={}, withheld_by="")
