"""The objects that a run holds open, from joining a study to leaving it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import Model
from search.space.choices import Space
from search.values import REFERENCE, Assignment
from studies.crew.crew import Crew
from studies.judging.search_events import SearchEvents
from studies.options.config import SearchConfig
from studies.run.pace import Pace
from studies.run.pipeline.build_hold import BuilderProcess, BuildHold
from studies.trials.ledger import Ledger


@dataclass(frozen=True)
class Problem:
    """What is searched: a model, what each group of it may take, and the options of the run."""

    config: SearchConfig
    space: Space
    model: Model

    @property
    def layer_names(self) -> dict[str, str]:
        """Group id → name of its weighted layer."""
        return {group.id: group.name for group in self.model.groups}


@dataclass(frozen=True)
class Bench:
    """Where candidates are built and measured.

    Attributes:
        keeper: of the process that owns the device.
        folder: of this run alone; engines are built here before they are kept.
        engine_file: what an exported engine is called.
        builders: processes that only build, beside the keeper's.
        hold: entered while a latency is measured, so that no engine is built beside that.
    """

    keeper: EvaluatorProcess
    folder: Path
    engine_file: str
    builders: tuple[BuilderProcess, ...] = ()
    hold: BuildHold = field(default_factory=BuildHold)

    def builder_of(self, assignment: Assignment) -> EvaluatorProcess:
        """The process that has learnt most of what an assignment is built from, for a build outside the pipeline."""
        if set(assignment.values()) == {REFERENCE} or not self.builders:
            return self.keeper
        knowing = [builder for builder in self.builders if assignment in builder.known]
        return (knowing or self.builders)[0].process


@dataclass
class Work:
    """What a run holds open, by what it is for; most functions are handed only the parts that they use.

    Attributes:
        crew: this process, a worker of the target, among the others.
        events: told what happens.
        pace: of a run that may have a time limit.
    """

    problem: Problem
    ledger: Ledger
    bench: Bench
    crew: Crew
    events: SearchEvents
    pace: Pace = field(default_factory=Pace)
