"""Names of the targets of a study, and finding the one that is meant or that this host is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search.errors import StudyError
from search.values import Target, flatten
from studies.store import suggestions
from studies.store.records import TargetRecord

PREFIX = 12  # hex digits of a fingerprint that are shown
_LEAST_PREFIX = 4


def choose(targets: Sequence[TargetRecord], wanted: str | None, study: str) -> TargetRecord:
    """The target that `--target` names.

    Args:
        targets: of the study, in their order.
        wanted: its number in the list, from 1; the start of its fingerprint, at least four digits; or a part of its
            name, in whatever case. None for the first.

    Raises:
        StudyError: none or several fit; lists them all.
    """
    if not targets:
        raise StudyError(f"reading study {study!r}: it has no target. Delete it, and make it again.")
    if wanted is None:
        return targets[0]
    if wanted.isdigit() and len(wanted) < _LEAST_PREFIX:
        matches = [targets[int(wanted) - 1]] if 1 <= int(wanted) <= len(targets) else []
    else:
        matches = _find_fitting(targets, wanted.strip().lower())
    if len(matches) == 1:
        return matches[0]
    problem = "no target fits" if not matches else f"{len(matches)} targets fit"
    raise StudyError(
        f"--target {wanted}: expected one target of study {study!r}, but {problem}. Give a number, the start of a "
        "fingerprint, or a part of a name that only one has:\n" + "\n".join(list_targets(targets))
    )


def _find_fitting(targets: Sequence[TargetRecord], wanted: str) -> list[TargetRecord]:
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


def list_targets(targets: Sequence[TargetRecord]) -> list[str]:
    """A line for each target: number, fingerprint, name."""
    shown = names([record.target for record in targets])
    rows = zip(targets, shown, strict=True)
    return [f"  {n}  {t.target.fingerprint[:PREFIX]}  {name}" for n, (t, name) in enumerate(rows, 1)]


def rows(targets: Sequence[TargetRecord]) -> list[dict[str, Any]]:
    """The targets of a study as plain values, for JSON."""
    shown = names([record.target for record in targets])
    return [
        {"number": n, "fingerprint": t.target.fingerprint, "name": name, **t.target.to_json()}
        for n, (t, name) in enumerate(zip(targets, shown, strict=True), 1)
    ]


def own(targets: Sequence[TargetRecord], here: Target) -> TargetRecord | None:
    """The study's target that this host is; None if it is none of them."""
    return next((record for record in targets if record.target.fingerprint == here.fingerprint), None)


def foreign(study: str, targets: Sequence[TargetRecord], here: Target, storage: str) -> StudyError:
    """That a host is another target than those it may work on, with all that differs and the ways out.

    Args:
        storage: URL of the study's database.
    """
    lines = [f"running study {study!r}: expected a target of the study, but this host is another one:"]
    lines.append(f"  here  {here.fingerprint[:PREFIX]}  {here.backend} on {here.device}")
    for line, record in zip(list_targets(targets), targets, strict=True):
        lines.append(line)
        lines += [f"       {difference}" for difference in differences(record.target, here)]
    return StudyError(
        "\n".join(lines)
        + "\nMeasurements of two targets are never mixed. Run on the study's own target, with the options "
        "that it was given, which --target takes over. Or add this host as a new target, with evaluations of its own: "
        f"`{suggestions.command('worker', study, '--new-target', storage=storage)}`. It reuses ranges and "
        "sensitivities, and its forecasts start from the measurements of the other targets."
    )


def differences(theirs: Target, here: Target) -> list[str]:
    """What differs, a line each: `compute capability: 9.0 there, 8.9 here`."""
    there, now = flatten(theirs.to_json()), flatten(here.to_json())
    keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
    return [f"{word_of(key)}: {there.get(key, 'none')} there, {now.get(key, 'none')} here" for key in keys]
