"""Reading a mix from rules or from a file, as an assignment of a model's groups."""

from __future__ import annotations

import difflib
import json
import os.path
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.errors import ConfigError
from search.graph.model import Group
from search.space.choices import Space
from search.values import REFERENCE, Assignment, Precision
from studies.inspect.mix import old_plans

ALL = "all"  # the pattern that every group matches
_RULE = re.compile(r"(.+?)=([\w-]+)\s*(?:,|$)")
_FORMS = (
    "write all=int8 or 'REGEX=fp16,REGEX=int8', or give a JSON file: a manifest, the layers of an engine, or an object "
    "with nodes or groups as keys and precisions as values; or a calibration cache of TensorRT"
)
_MOST_NAMED = 3


@dataclass(frozen=True)
class TargetMix:
    """A mix as the target can run it.

    Attributes:
        assignment: of every group.
        wanted: what was asked for, by group; FP32 for the others.
        notes: which groups cannot run as wanted, and what they run in.
    """

    assignment: Assignment
    wanted: Mapping[str, Precision]
    notes: tuple[str, ...]


def read_mix(text: str, groups: Sequence[Group], space: Space) -> TargetMix:
    """Read `all=int8`, `'REGEX=fp16,REGEX=int8'` or the path of a JSON file.

    Of several rules that match a group the last decides. A pattern is looked for in the names of a group's nodes; `all`
    matches every group, and the id of a group that one. Groups that nothing is said of run in FP32. A group that is not
    offered what is wanted runs in the nearest higher precision, which a note says.

    A file holds what `export` writes as `manifest.json`, what `show --json` or `front --json` print, or a mapping from
    the id of a group or the name of one of its nodes to a precision; or it is of an engine: its layers, as trtexec or
    an export lists them, or the calibration cache that it was built with.

    Raises:
        ConfigError: the text is none of these, a file cannot be read, a pattern, name or precision is unknown, or none
            of the groups of a rule can run as it says.
    """
    notes: tuple[str, ...] = ()
    if os.path.isfile(text):  # not Path.is_file, which fails if a long list of rules is no possible name
        wanted, notes = _read_file(text, groups)
    elif "=" in text:
        wanted = _read_rules(text, groups, space)
    else:
        raise ConfigError(f"--assign {text}: it is neither a file nor a rule; {_FORMS}.")
    assignment = space.nearest(wanted)
    return TargetMix(assignment, wanted, (*notes, *_notes(wanted, assignment, groups, space)))


def _read_rules(text: str, groups: Sequence[Group], space: Space) -> dict[str, Precision]:
    wanted: dict[str, Precision] = {}
    by_id = {group.id: group for group in groups}
    rules, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise ConfigError(f"--assign {text}: expected REGEX=PRECISION, got {text[at:]!r}; {_FORMS}.")
        rules.append((match[1].strip(), match[2]))
        at = match.end()
    for pattern, label in rules:
        rule = f"--assign {pattern}={label}"
        precision = _precision(label, rule)
        matched = [by_id[pattern]] if pattern in by_id else [g for g in groups if _matches(pattern, g, rule)]
        if not matched:
            raise ConfigError(
                f"{rule}: the pattern matches no layer name. `bitfront inspect MODEL` lists them; the first is "
                f"{groups[0].name!r}."
            )
        reasons = [_why_not(group.id, precision, space) for group in matched]
        if all(reasons):
            raise ConfigError(f"{rule}: no layer that it matches can run in {precision.label} here: {reasons[0]}.")
        wanted.update({group.id: precision for group in matched})
    return wanted


def _matches(pattern: str, group: Group, rule: str) -> bool:
    if pattern == ALL:
        return True
    try:
        return any(re.search(pattern, name) for name in group.nodes)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{rule}: expected a regular expression, got {pattern!r}; correct it: {error}") from error


def _precision(label: object, where: str) -> Precision:
    try:
        return Precision.parse(str(label))
    except ValueError as error:
        raise ConfigError(f"{where}: expected a precision, got {label!r}; {error}") from error


# -- files -------------------------------------------------------------------------------------------------------------


def _read_file(path: str, groups: Sequence[Group]) -> tuple[dict[str, Precision], tuple[str, ...]]:
    if old_plans.is_cache(Path(path)):
        return old_plans.read_cache(Path(path), groups)
    if old_plans.is_listing(Path(path)):
        return old_plans.read_listing(Path(path), groups)
    return _read_names(path, groups), ()


def _read_names(path: str, groups: Sequence[Group]) -> dict[str, Precision]:
    owners = {name: group.id for group in groups for name in (*group.nodes, group.id)}
    wanted: dict[str, Precision] = {}
    for name, label in _find_mapping(_load(path), path).items():
        if name not in owners:
            near = difflib.get_close_matches(name, owners, 1)
            advice = f"did you mean {near[0]!r}?" if near else "`bitfront inspect MODEL` lists them."
            raise ConfigError(f"--assign {path}: the model has no group or node {name!r}; {advice}")
        precision = _precision(label, f"--assign {path}: {name}")
        if wanted.setdefault(owners[name], precision) is not precision:
            both = f"{wanted[owners[name]].label} and {precision.label}"
            raise ConfigError(f"--assign {path}: group {owners[name]} is named twice, in {both}; name it once.")
    return wanted


def _load(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_distinct)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--assign {path}: expected a JSON file in UTF-8, got {error}; {_FORMS}.") from error


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; raises ValueError where a key is there twice, of which JSON readers drop the first."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} twice in one object")
    return mapping


def _find_mapping(content: Any, path: str) -> Mapping[str, Any]:
    """Node or group → precision, out of what the program writes or out of a plain mapping."""
    mapping = content if isinstance(content, Mapping) else {}
    best = mapping.get("best")
    mix: Any = mapping
    if isinstance(best, Mapping):  # of `front --json`
        mix = best.get("assignment")
    elif "precision" in mapping and isinstance(mapping["precision"], Mapping):  # of a manifest
        mix = mapping["precision"]
    elif isinstance(rows := mapping.get("groups"), list):  # of `show --json`, or of this verb's own
        mix = {row["group"]: row["asked"] for row in rows if isinstance(row, Mapping) and {"group", "asked"} <= {*row}}
    if not isinstance(mix, Mapping) or not mix or not all(isinstance(label, str) for label in mix.values()):
        raise ConfigError(f"--assign {path}: there is no mix in it; {_FORMS}.")
    return mix


# -- what a target does not offer --------------------------------------------------------------------------------------


def _why_not(group: str, precision: Precision, space: Space) -> str:
    """Why a group is not offered a precision; empty if it is."""
    for choice in space.choices[group]:
        if choice.precision is precision:
            return choice.reason
    offered = ", ".join(precision.label for precision in space.precisions)
    return f"this target runs {offered}, not {precision.label}"


def _notes(wanted: Mapping[str, Precision], got: Assignment, groups: Iterable[Group], space: Space) -> Iterable[str]:
    """One sentence for the groups that differ in the same way for the same reason."""
    alike: dict[tuple[Precision, Precision, str], list[str]] = {}
    for group in groups:
        precision = wanted.get(group.id, REFERENCE)
        if got[group.id] is not precision:
            why = _why_not(group.id, precision, space)
            alike.setdefault((precision, got[group.id], why), []).append(group.name)
    for (precision, instead, why), names in alike.items():
        shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        yield f"{len(names)} of the groups ({shown}) run in {instead.label} instead of {precision.label}: {why}"
