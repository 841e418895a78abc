"""The mix of one evaluation of a study, in terms of the user's file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from search.graph.model import Model
from search.graph.user_nodes import read_user_nodes
from search.values import Assignment, Ranges
from studies import __version__
from studies.export.handover.mix import Feed, Mix, Source, float_between, match_layers
from studies.run.work import Work
from studies.store import target_names


def gather_mix(work: Work, assignment: Assignment, trial: int) -> Mix:
    """The mix that an assignment of the study is; reads the user's file, and no weights of it.

    Args:
        trial: number of the trial that it was measured in.
    """
    problem, ledger = work.problem, work.ledger
    ranges = ledger.ranges().for_mix(assignment)
    written = Placement.from_json(work.bench.keeper.description.placement)
    placement = replace(written, before_activations=False)  # other tools write Q/DQ, which has none there
    (target,) = target_names.names([ledger.target.target])
    source = Source(ledger.study.name, trial, target, __version__, bool(ranges.recovery.factors))
    model = problem.model
    inputs = tuple(spec.name for spec in model.inputs)
    nodes = read_user_nodes(Path(problem.config.model), model.graph.graph)
    return Mix(
        source=source,
        feed=Feed(inputs, model.batch, ranges.samples),
        layers=match_layers(model.groups, assignment, nodes),
        between=float_between(model.graph.graph, model.groups, assignment, nodes),
        new_names=nodes.new_names,
        lower=partial(_lower, model, assignment, ranges, placement),
        weight_bits=placement.weight_bits,
    )


def _lower(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> ir.Graph:
    return lower(model.scale_constants(ranges.recovery.factors), assignment, ranges, placement).graph
