"""The search space: the precisions that each group may have on a target, and a sampler's variables and codes."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from search.errors import ConfigError
from search.graph.element_types import is_float
from search.graph.model import Group, Model
from search.space.rules import KeepRule
from search.values import (
    ATTENTION,
    FREE,
    RECOVERED_FIRST,
    REFERENCE,
    Assignment,
    Capability,
    Precision,
    Ranges,
    digest_of,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


_LEAST_SHARE = 0.05  # of a model's multiply-adds, in a precision that is for products alone
_FEW_CHANNELS, _MOST_VOLUME = 16, 32  # of convolutions in FP8 that NVIDIA's ModelOpt leaves out
_FACTORS = frozenset({"BatchNormalization", "Div", "Mul"})  # whose constants must not be cut off


@dataclass(frozen=True)
class Choice:
    """One precision of one group; `reason` says why it is not offered, and is empty if it is."""

    precision: Precision
    offered: bool
    reason: str = ""


@dataclass(frozen=True)
class Variable:
    """One decision of the sampler: an index into `precisions`, which all `groups` share.

    `precisions` cannot change after a study is made, because Optuna refuses a study whose distributions change.
    """

    id: str
    groups: tuple[str, ...]
    precisions: tuple[Precision, ...]


@dataclass(frozen=True)
class Space:
    """All that may be tried on one target.

    Attributes:
        choices: every precision of every group, with the reason if it is not offered.
        variables: the decisions of the sampler; groups with only one offered precision have none.
    """

    choices: Mapping[str, tuple[Choice, ...]]
    variables: tuple[Variable, ...]

    @property
    def digest(self) -> str:
        """64 hex digits; changes when any decision or offered precision does."""
        offered = {group: [c.precision.id for c in choices if c.offered] for group, choices in self.choices.items()}
        return digest_of({"offered": offered, "variables": [[v.id, list(v.groups)] for v in self.variables]})

    @property
    def size(self) -> int:
        """The number of possible assignments."""
        return math.prod(len(variable.precisions) for variable in self.variables)

    @cached_property
    def precisions(self) -> tuple[Precision, ...]:
        """All precisions that are offered to some group."""
        return tuple(sorted({c.precision for choices in self.choices.values() for c in choices if c.offered}))

    def assignment(self, codes: Mapping[str, int]) -> Assignment:
        """The assignment of all groups for the codes of a sampler, given by variable id."""
        wanted = {group: v.precisions[codes[v.id]] for v in self.variables for group in v.groups}
        return self.nearest(wanted)

    def effect(self, variable: Variable, code: int) -> dict[str, Precision]:
        """What one code gives the groups of its variable."""
        return {group: _nearest(self.choices[group], variable.precisions[code]) for group in variable.groups}

    def codes(self, assignment: Assignment) -> dict[str, int]:
        """The codes of an assignment by variable id; a block takes the lowest precision of its groups."""
        return {v.id: v.precisions.index(max(assignment[group] for group in v.groups)) for v in self.variables}

    def uniform(self, precision: Precision) -> Assignment:
        """The assignment with all groups in `precision`, or in the next higher one that is offered."""
        return self.nearest(dict.fromkeys(self.choices, precision))

    @property
    def coarsest(self) -> Assignment:
        """The assignment with all groups in the precision that is recovered, or the next finer one that is offered."""
        return self.uniform(self._coarsest)

    @property
    def _coarsest(self) -> Precision:
        return min(self.precisions, key=RECOVERED_FIRST.index)

    def nearest(self, wanted: Mapping[str, Precision]) -> Assignment:
        """The assignment with wanted precisions, or the next higher ones that are offered; FP32 for other groups."""
        return Assignment({g: _nearest(choices, wanted.get(g, REFERENCE)) for g, choices in self.choices.items()})

    @cached_property
    def baselines(self) -> Mapping[str, Assignment]:
        """The uniform assignments by label, without duplicates: FP32 first, that of the recovered precision last.

        Without those of precisions between the finest and the coarsest that most groups are not offered: products of a
        network of convolutions in INT8-DYNAMIC are nearly all FP32, and tell nothing that is worth a build.
        """
        labels: dict[Assignment, str] = {}
        for precision in sorted(self.precisions, key=RECOVERED_FIRST.index, reverse=True):
            assignment = self.uniform(precision)
            run = sum(each is precision for each in assignment.values())
            if precision in (REFERENCE, self._coarsest) or 2 * run >= len(assignment):
                labels.setdefault(assignment, precision.label)
        return {label: assignment for assignment, label in labels.items()}

    def lower_pairs(self) -> list[tuple[str, Precision]]:
        """All pairs of a group id and a precision below FP32 that it is offered."""
        return [
            (group, choice.precision)
            for group, choices in self.choices.items()
            for choice in choices
            if choice.offered and choice.precision is not REFERENCE
        ]

    def size_without(self, pairs: Set[tuple[str, Precision]]) -> int:
        """The number of assignments without those pairs of group and precision."""
        return math.prod(len(self._codes_without(variable, pairs)) for variable in self.variables)

    def _codes_without(self, variable: Variable, pairs: Set[tuple[str, Precision]]) -> list[int]:
        return [
            code
            for code, precision in enumerate(variable.precisions)
            if not any((group, _nearest(self.choices[group], precision)) in pairs for group in variable.groups)
        ]


def make_space(
    model: Model,
    capability: Capability,
    ranges: Ranges | None = None,
    keep: Sequence[KeepRule] = (),
    granularity: str = "group",
) -> Space:
    """Find the precisions that each group may run in.

    Args:
        ranges: the observed values, which decide whether FP16 can hold a group; None if nothing was calibrated yet.
        keep: the user's rules; two rules for one group with different precisions are refused.
        granularity: `group`, or `block` for one decision per repeated structure.

    Raises:
        ConfigError: a rule matches no group, contradicts another, or asks for a precision that the target or the group
            cannot run.
    """
    kept = _match_keep_rules(model.groups, capability, keep)
    natural = {
        g.id: tuple(_choice(g, p, model, capability, ranges) for p in capability.precisions) for g in model.groups
    }
    for precision in capability.precisions:
        if precision.quantized and not precision.calibrated:
            natural = _only_for_much(precision, model.groups, natural)
    choices = {g.id: _apply_rule(g, natural[g.id], kept[g.id]) if g.id in kept else natural[g.id] for g in model.groups}
    return Space(choices, _variables(model.groups, choices, granularity))


def _choice(group: Group, precision: Precision, model: Model, capability: Capability, ranges: Ranges | None) -> Choice:
    reason = capability.why_not(precision, group.op)
    if reason:
        return Choice(precision, False, reason)
    if precision.quantized:
        reason = _why_not_quantized(precision, group, model, capability, ranges)
    if not reason and math.isfinite(precision.largest):
        reason = _why_not_held(precision, group, model, ranges)
    reason = reason or _why_too_small(precision, group, model, capability)
    return Choice(precision, not reason, reason)


def _only_for_much(
    precision: Precision, groups: Sequence[Group], choices: Mapping[str, tuple[Choice, ...]]
) -> dict[str, tuple[Choice, ...]]:
    """The choices without a precision that only a little of the model's work could run in, as the head of a CNN."""
    work = {group.id: group.multiply_adds for group in groups}
    run = sum(work[group] for group, some in choices.items() for c in some if c.precision is precision and c.offered)
    share = run / max(sum(work.values()), 1.0)
    if share >= _LEAST_SHARE:
        return dict(choices)
    reason = f"layers that can take it are {share:.1%} of the multiply-adds, below {_LEAST_SHARE:.0%}: it gains nothing"
    return {
        group: tuple(Choice(precision, False, reason) if c.precision is precision and c.offered else c for c in some)
        for group, some in choices.items()
    }


def _why_not_quantized(
    precision: Precision, group: Group, model: Model, capability: Capability, ranges: Ranges | None
) -> str:
    if group.pinned:
        return group.pinned
    if not group.weights and (reason := capability.why_not(precision, ATTENTION)):
        return reason
    if not precision.calibrated and len(group.weight_shape) != 2:
        return f"its weight is no matrix, but has {len(group.weight_shape)} axes"
    if precision.calibrated and not precision.recovered and (reason := _why_not_narrow(group)):
        return reason
    if precision.blocks and (reason := _why_not_in_blocks(precision, group, model, capability)):
        return reason
    if precision.calibrated and ranges is not None:
        missing = [name for name in (*group.inputs, *group.skips, group.output) if name not in ranges.tensors]
        if missing:
            return f"calibration has no range for tensor {missing[0]}"
    return ""


def _why_too_small(precision: Precision, group: Group, model: Model, capability: Capability) -> str:
    """Why a product or a convolution is too small for a precision to gain anything; empty if it is not."""
    if precision is REFERENCE or group.op in FREE:
        return ""
    if group.op in ("Gemm", "MatMul"):
        # A product of activations has its K in the last axis of the first of them.
        sizes = [*group.weight_shape[-2:]] or [*model.shapes.get(group.inputs[0], ())[-1:], *group.shape[-1:]]
        limit, what = capability.size(precision, "min_matmul_size"), "K or N"
    else:
        # Of the whole tensors: a depthwise kernel has one channel per group, and as many groups as channels.
        sizes = [*model.shapes.get(group.inputs[0], ())[1:2], *group.shape[1:2]] or [*group.weight_shape[:1]]
        limit, what = capability.size(precision, "min_channels"), "channels"
    smallest, name = min(sizes, default=0), precision.label.upper()
    return f"{smallest} {what} is below {limit}, where {name} gains nothing on this target" if smallest < limit else ""


def _why_not_narrow(group: Group) -> str:
    """Why a convolution gains nothing in narrow floats; empty if it may, or is a product."""
    volume, channels = math.prod(group.weight_shape[2:]), min(group.weight_shape[:2], default=0)
    if group.op != "Conv" or (volume <= _MOST_VOLUME and channels > _FEW_CHANNELS):
        return ""
    return f"convolutions of up to {_FEW_CHANNELS} channels or more than {_MOST_VOLUME} places have no fast kernel"


def _why_not_in_blocks(precision: Precision, group: Group, model: Model, capability: Capability) -> str:
    """Why weights alone in blocks are of no use to a product; empty if they may be."""
    attributes = model.graph.graph.node(group.anchors[0]).attributes
    depth, width = group.weight_shape[::-1] if attributes.get_int("transB", 0) else group.weight_shape
    if attributes.get_int("transA", 0):
        return "its first factor is transposed, which kernels for blocks do not take"
    if not precision.block(depth):
        return f"blocks of {' or '.join(map(str, precision.blocks))} do not divide its K of {depth}"
    rows, most_rows = math.prod(group.shape) // width, capability.size(precision, "most_rows")
    if rows <= most_rows:
        return ""
    return f"it multiplies {rows} rows at once, and above {most_rows} its weights are not what takes time"


def _why_not_held(precision: Precision, group: Group, model: Model, ranges: Ranges | None) -> str:
    """Why a precision cannot hold a group's constants and values; empty if it can, as FP32 can."""
    if precision is REFERENCE:
        return ""
    above = f"above {precision.name}'s largest number {precision.largest:.6g}"
    for name in _constants(group, model):
        tensor = model.graph.graph.initializers[name].const_value
        assert tensor is not None
        largest = float(np.abs(tensor.numpy()).max(initial=0))
        if largest > precision.largest:
            return f"constant {name} holds {largest:.3g}, {above}"
    for name in (*group.inputs, *group.skips, *group.tensors):
        seen = ranges.observed.get(name) if ranges is not None else None
        if seen is not None and seen.magnitude > precision.largest:
            return f"tensor {name} reaches {seen.magnitude:.3g}, {above}"
    return ""


def _constants(group: Group, model: Model) -> list[str]:
    """Weights, biases and factors of a group's nodes; not bounds and masks, which may be cut off."""
    every = [model.graph.graph.node(name) for name in group.nodes]
    nodes = [node for node in every if node.name in group.anchors or node.op_type in _FACTORS]
    values = [value for node in nodes for value in node.inputs if value is not None and value.is_initializer()]
    return [value.name or "" for value in values if is_float(value)]


def _match_keep_rules(groups: Sequence[Group], capability: Capability, keep: Sequence[KeepRule]) -> dict[str, KeepRule]:
    kept: dict[str, KeepRule] = {}
    for rule in keep:
        text = f"--keep '{rule.pattern}={rule.precision.label}'"
        if rule.precision not in capability.precisions:
            offered = ", ".join(p.label for p in capability.precisions)
            raise ConfigError(f"{text}: expected a precision of this target, {offered}, got {rule.precision.label}.")
        matched = [group for group in groups if any(re.search(rule.pattern, name) for name in group.nodes)]
        if not matched:
            raise ConfigError(
                f"{text}: the pattern matches no layer name. `bitfront inspect MODEL` lists them; "
                f"the first is {groups[0].name!r}."
            )
        for group in matched:
            other = kept.setdefault(group.id, rule)
            if other.precision != rule.precision:
                raise ConfigError(
                    f"{text}: layer {group.name!r} is already kept in {other.precision.label} by the rule "
                    f"'{other.pattern}={other.precision.label}'. Make the patterns disjoint."
                )
    return kept


def _apply_rule(group: Group, natural: tuple[Choice, ...], rule: KeepRule) -> tuple[Choice, ...]:
    text = f"'{rule.pattern}={rule.precision.label}'"
    rule_choice = next(choice for choice in natural if choice.precision == rule.precision)
    if not rule_choice.offered:
        raise ConfigError(
            f"--keep {text}: layer {group.name!r} cannot run in {rule.precision.label}: {rule_choice.reason}."
        )
    return tuple(
        choice if choice.precision == rule.precision else Choice(choice.precision, False, f"kept by the rule {text}")
        for choice in natural
    )


def _variables(
    groups: Sequence[Group], choices: Mapping[str, tuple[Choice, ...]], granularity: str
) -> tuple[Variable, ...]:
    members: dict[str, list[str]] = {}
    for group in groups:
        if sum(choice.offered for choice in choices[group.id]) > 1:
            members.setdefault(group.block if granularity == "block" else group.id, []).append(group.id)
    variables = []
    for name, ids in members.items():
        offered = sorted({c.precision for group in ids for c in choices[group] if c.offered})
        variables.append(Variable(name, tuple(ids), tuple(offered)))
    return tuple(variables)


def _nearest(choices: Sequence[Choice], wanted: Precision) -> Precision:
    offered = [choice.precision for choice in choices if choice.offered]
    higher = [precision for precision in offered if precision <= wanted]
    return max(higher) if higher else min(offered)


def read_parameters(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters of a trial: those that it was enqueued with, and those that were suggested since."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def codes_in(params: Mapping[str, Any], space: Space) -> dict[str, int] | None:
    """The codes by variable id; None if a parameter is missing or wrong. Parameters without a variable are ignored."""
    codes = {variable.id: _code(params.get(variable.id), variable) for variable in space.variables}
    known = {name: code for name, code in codes.items() if code is not None}
    return known if len(known) == len(codes) else None


def refusal(params: Mapping[str, Any], space: Space) -> str:
    """The reason why nothing can be built from parameters; empty if all of them are codes."""
    wrong = [v for v in space.variables if v.id in params and _code(params[v.id], v) is None]
    if not wrong:
        return ""
    first, others = wrong[0], len(wrong) - 1
    meant = ", ".join(f"{code} {precision.label}" for code, precision in enumerate(first.precisions))
    also = f" ({others} other parameter{'s are' if others > 1 else ' is'} wrong too)" if others else ""
    return (
        f"parameter {first.id} holds {reprlib.repr(params[first.id])}{also}, expected an integer from 0 to "
        f"{len(first.precisions) - 1}: {meant}. `bitfront inspect MODEL` lists the precisions of each group in the "
        "order "
        f"of its codes; parameters that are left out are sampled"
    )


def _code(value: object, variable: Variable) -> int | None:
    """The code of a value. A whole float counts, because tables turn integers into floats; a bool does not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return next((code for code in range(len(variable.precisions)) if code == value), None)
