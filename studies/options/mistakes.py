"""Running several checks, and reporting all mistakes in one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from search.errors import ConfigError, InputError


def run_checks(*checks: Callable[[], object]) -> None:
    """Run every check, also those behind one that refuses, and raise together what they refused.

    Raises:
        InputError: the error itself where one check refused, else a ConfigError that lists the messages in order.
    """
    found = filter(None, map(_refusal_of, checks))
    refusals = {str(error): error for error in found}  # two options may name the same file that is not there
    if len(refusals) == 1:
        raise next(iter(refusals.values()))
    if refusals:
        listed = "\n".join("  - " + message.replace("\n", "\n    ") for message in refusals)
        raise ConfigError(f"{len(refusals)} things are wrong:\n{listed}")


def _refusal_of(check: Callable[[], object]) -> InputError | None:
    try:
        check()
    except InputError as error:
        return error
    return None


def raise_mistakes(problems: Sequence[str]) -> None:
    """Raise one ConfigError that lists the problems, each of one or more lines; nothing if there are none."""
    lines = [line for problem in problems for line in problem.split("\n")]
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise ConfigError(f"{len(lines)} things are wrong with the options:\n{listed}")
