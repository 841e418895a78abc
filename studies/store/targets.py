"""Targets of one study: which is meant, which this host is, and what each was told that the study was not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search.errors import StudyError
from search.values import Target, flatten
from studies.options.config import SearchConfig, option_table
from studies.store import suggestions
from studies.store.records import StudyRecord, TargetRecord

if TYPE_CHECKING:
    from studies.store.store import Store

PREFIX = 12  # hex digits of a fingerprint that are shown
_LEAST_PREFIX = 4
# Where files lie is told of the whole study; the rest of these belongs to no target.
FILES = ("model", "data", "calibration_data", "final_data", "calibration_cache")
_OF_THE_HOST = ("device", "artifacts")
_OF_THE_STUDY = frozenset({*FILES, "study", "artifacts", "quiet"})


def choose(targets: Sequence[TargetRecord], wanted: str | None, study: str) -> TargetRecord:
    """The target that `--target` names.

    Args:
        targets: of the study, in their order; at least one.
        wanted: its number in the list, from 1; the start of its fingerprint, at least four digits; or a part of its
            name, in whatever case. None for the first.

    Raises:
        StudyError: none or several fit; lists them all.
    """
    if wanted is None:
        return targets[0]
    if wanted.isdigit() and len(wanted) < _LEAST_PREFIX:
        found = [targets[int(wanted) - 1]] if 1 <= int(wanted) <= len(targets) else []
    else:
        found = _fitting(targets, wanted.strip().lower())
    if len(found) == 1:
        return found[0]
    problem = "no target fits" if not found else f"{len(found)} targets fit"
    raise StudyError(
        f"--target {wanted}: expected one target of study {study!r}, and {problem}. Give a number, the start of a "
        "fingerprint, or a part of a name that only one has:\n" + "\n".join(listed(targets))
    )


def _fitting(targets: Sequence[TargetRecord], wanted: str) -> list[TargetRecord]:
    if not wanted:
        return []
    if len(wanted) >= _LEAST_PREFIX:
        by_fingerprint = [target for target in targets if target.target.fingerprint.startswith(wanted)]
        if by_fingerprint:
            return by_fingerprint
    shown = names([record.target for record in targets])
    return [target for target, name in zip(targets, shown, strict=True) if wanted in name.lower()]


def names(targets: Sequence[Target]) -> list[str]:
    """Each target in a few words: backend and device, and, where two of these are alike, what sets them apart."""
    heads = [f"{target.backend} on {target.device}" for target in targets]
    return [_name(targets, heads, row) for row in range(len(targets))]


def _name(targets: Sequence[Target], heads: Sequence[str], row: int) -> str:
    alike = [flatten(target.to_json()) for target, head in zip(targets, heads, strict=True) if head == heads[row]]
    mine = flatten(targets[row].to_json())
    apart = [key for key, value in mine.items() if any(other.get(key) != value for other in alike)]
    return ", ".join([heads[row], *(f"{word_of(key)} {mine[key]}" for key in apart)])


def word_of(key: str) -> str:
    """`versions.compute_capability` as people say it: `compute capability`."""
    return key.rpartition(".")[2].replace("_", " ")


def listed(targets: Sequence[TargetRecord]) -> list[str]:
    """A line for each target: number, fingerprint, name."""
    shown = names([record.target for record in targets])
    rows = zip(targets, shown, strict=True)
    return [f"  {n}  {t.target.fingerprint[:PREFIX]}  {name}" for n, (t, name) in enumerate(rows, 1)]


def rows(targets: Sequence[TargetRecord]) -> list[dict[str, Any]]:
    """The same as plain values, for JSON."""
    shown = names([record.target for record in targets])
    return [
        {"number": n, "fingerprint": t.target.fingerprint, "name": name, **t.target.to_json()}
        for n, (t, name) in enumerate(zip(targets, shown, strict=True), 1)
    ]


def own(targets: Sequence[TargetRecord], here: Target) -> TargetRecord | None:
    """The study's target that this host is; None where it is none of them."""
    return next((record for record in targets if record.target.fingerprint == here.fingerprint), None)


def foreign(study: str, targets: Sequence[TargetRecord], here: Target) -> StudyError:
    """That a host is another target than those it may work on, with all that differs and the ways out."""
    lines = [f"running study {study!r}: this host is another target than the study's:"]
    lines.append(f"  here  {here.fingerprint[:PREFIX]}  {here.backend} on {here.device}")
    for line, record in zip(listed(targets), targets, strict=True):
        lines.append(line)
        lines += [f"       {difference}" for difference in differences(record.target, here)]
    return StudyError(
        "\n".join(lines) + "\nNumbers of two targets never mix. Run where the study's own target is, with the options "
        "that it was given, which --target takes over; or give the study a new one, with evaluations of its own: "
        f"`{suggestions.command('worker', study, '--new-target')}`. That reuses ranges and sensitivities, and starts "
        "from what the other targets measured."
    )


def differences(theirs: Target, here: Target) -> list[str]:
    """What differs, a line each: `compute capability: 9.0 there, 8.9 here`."""
    there, now = flatten(theirs.to_json()), flatten(here.to_json())
    keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
    return [f"{word_of(key)}: {there.get(key, 'none')} there, {now.get(key, 'none')} here" for key in keys]


# -- what a target was told --------------------------------------------------------------------------------------------


def config_of(study: StudyRecord, target: TargetRecord | None, url: str | None = None) -> SearchConfig:
    """What runs of a study on a target were asked to do: the study's options with the target's own over them.

    Args:
        target: None where the study has none yet.
        url: of its database.
    """
    stored = {**study.config, **((target.options if target is not None else None) or {})}
    if target is not None and stored.get("optimization_level") is None:
        stored["optimization_level"] = target.optimization_level  # chosen when it was first worked on
    return SearchConfig.from_json(stored) if url is None else SearchConfig.from_json(stored, url)


def options_of(study: StudyRecord, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What of a resolved configuration a target has to remember, because the study says otherwise."""
    known, told = study.config, json.loads(json.dumps(resolved))
    found = {k: v for k, v in told.items() if k not in _OF_THE_STUDY and (k not in known or known[k] != v)}
    if "device" in found:  # which of several alike is this host's affair
        found["device"] = str(found["device"]).partition(":")[0]
    return found


def remember(
    store: Store, study: StudyRecord, target: TargetRecord, config: SearchConfig, *, moved: bool = True
) -> None:
    """Store what a run was told: of the study for its first target, else of the target alone; where files lie always
    of the study.

    Args:
        study, target: as they were read when the run began; what others were told since then stays.
        moved: files are from now on where the run was told that they are; otherwise that, and which device is meant,
            is the affair of this host.
    """
    from studies.run.session.setup import resolved

    table = option_table()
    given = {table[name].key for name in config.given} - ({*FILES, *_OF_THE_HOST} if not moved else set())
    told = json.loads(json.dumps({name: value for name, value in resolved(config).items() if name in given}))
    first = target.id == store.targets.of_study(study.id)[0].id
    of_study = told if first else {name: told[name] for name in FILES if name in told}
    if of_study:
        store.studies.add_options(study.id, of_study, seen=study.config)
    if not first:
        options = {name: value for name, value in told.items() if name not in _OF_THE_STUDY}
        store.targets.add_options(target.id, options, seen=target.options or {})
