"""A search that ended before it had all its evaluations: how many of how many, why, and how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.judging.standing import Standing
from studies.store import suggestions
from studies.store.records import NO_PROSPECT, REQUEST, TIME_LIMIT
from studies.store.target_options import config_of

_INTERRUPTED = "interrupted"  # the state of a study that was cut off
# What is stored of why a search ended → in words, behind "because".
REASONS: Mapping[str, str] = {
    TIME_LIMIT: "the time limit was reached",
    REQUEST: "it was asked to stop",
    _INTERRUPTED: "it was interrupted",
    NO_PROSPECT: "no mix is expected to be better by more than can be measured",
}


@dataclass(frozen=True)
class EarlyEnd:
    """How the last search of a study ended before it was complete.

    Attributes:
        done: how many evaluations there are.
        wanted: how many there were to be.
        why: `time_limit`, `request`, `interrupted` or `no_prospect`.
        resume: the command that goes on.
    """

    done: int
    wanted: int
    why: str
    resume: str

    @property
    def text(self) -> str:
        """How many of how many, and why: `THE SEARCH ENDED EARLY, with 2 of 24 evaluations, because …`."""
        why = REASONS.get(self.why, self.why.replace("_", " "))
        how = "The search ended by itself" if self.why == NO_PROSPECT else "THE SEARCH ENDED EARLY"
        return f"{how}, with {self.done} of {self.wanted} evaluations, because {why}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, the text among them."""
        return {**vars(self), "text": self.text}


def early_end(now: Standing) -> EarlyEnd | None:
    """How the last search ended early; None if it is complete or goes on, or another rule of the user's ended it."""
    study, target = now.study, now.target
    done, wanted = now.measures.finished_count, config_of(study, target).trials
    why = {"done": target.stopped_by, _INTERRUPTED: _INTERRUPTED}.get(study.state, "")
    if not why or done >= wanted:
        return None
    words = (*now.details.target_option, *(("--patience", "none") if why == NO_PROSPECT else ()))
    way = suggestions.command("resume", study.name, *words, storage=now.details.storage)
    return EarlyEnd(done, wanted, why, way)
