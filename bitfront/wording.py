"""Messages in the words of Python: the library that this package calls names options as the command line does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from search.errors import BitfrontError

_COMMAND = re.compile(r"(`[^`]*`|^ +bitfront .*$)", re.MULTILINE)  # what is typed in a shell stays as it is
_OPTION = r"(?: --[a-z][a-z-]*(?: (?!--)[^\s`]+)?)"
_RESUME = re.compile(rf"\bbitfront resume ((?:'[^'\n]*'|[^\s`-][^\s`]*){_OPTION}*)(?=`|$)", re.MULTILINE)
_NUMBER = re.compile(r"\d+(\.\d+)?")
_PLACEHOLDER = re.compile(r"[A-Z]+")  # `TIME`, where the user is to choose
_METRICS = "top1|top5|agreement|cosine|sqnr|mse|miou|map"
_WITH_VALUE = re.compile(
    rf"(?<![\w-])--([a-z][a-z-]*)(?: (\d+(?:\.\d+)*[A-Za-z\d]*%?|(?<=--metric )(?:{_METRICS})\b))?"
)
_RULES = (
    (re.compile(r"did you mean ([\w-]+)\?"), lambda match: f"did you mean {_name(match[1])}?"),
    (re.compile(r"(there is no such option; there are )(.*)"), lambda match: match[1] + _name(match[2])),
    (_WITH_VALUE, lambda match: _write_argument(*match.groups())),
    (re.compile(r"\bwrite (\d[\d.]*(?:%|ms))(?: or (\d[\d.]*us))?"), lambda match: _quote(match[1], match[2])),
)


@contextmanager
def python_words(given: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within this block, let errors name options as `bitfront.search` takes them.

    Args:
        given: what a call of `bitfront.resume` has to be given besides the study, see `resume_call`.
    """
    try:
        yield
    except BitfrontError as error:
        error.args = (in_python(str(error), given), *error.args[1:])
        raise


def in_python(text: str, given: Mapping[str, str] | None = None) -> str:
    """A message with `max_drop="1%"` in place of `--max-drop 1%`.

    The command `bitfront resume` becomes the call in Python that does the same. Other commands stay as they are.

    Args:
        given: what that call has to be given besides the study, see `resume_call`.
    """
    text = _RESUME.sub(lambda match: _write_resume_call(match[1], given or {}), text)
    parts = _COMMAND.split(text)
    return "".join(part if place % 2 else _apply_rules(part) for place, part in enumerate(parts))


def resume_call(study: str, given: Mapping[str, str]) -> str:
    """The call of `bitfront.resume` that continues a study.

    Args:
        study: the name of the study.
        given: the other arguments by name, as they are written in Python: `{"metric": "psnr"}`.
    """
    return f"bitfront.resume({', '.join([repr(study), *(f'{name}={value}' for name, value in given.items())])})"


def _write_resume_call(words: str, given: Mapping[str, str]) -> str:
    """The call for what follows `bitfront resume` in a command."""
    study, *options = shlex.split(words)
    found: dict[str, str] = {}
    for word in options:
        if word.startswith("--"):
            found[_name(word.removeprefix("--"))] = "True"
        else:
            found[[*found][-1]] = _value(word)
    return resume_call(study, {**given, **found})


def _value(word: str) -> str:
    if _PLACEHOLDER.fullmatch(word):
        return "'...'"
    return word if word.isdecimal() else repr(word)


def _apply_rules(text: str) -> str:
    for pattern, write in _RULES:
        text = pattern.sub(write, text)
    return text


def _write_argument(option: str, value: str | None) -> str:
    """`max_drop="1%"`, `trials=40`, `no_cache=True`, or the name alone of an option without a value."""
    if option.startswith("no-"):
        return f"{_name(option)}=True"
    if value is None:
        return _name(option)
    return f"{_name(option)}={value}" if _NUMBER.fullmatch(value) else f'{_name(option)}="{value}"'


def _name(option: str) -> str:
    return option.replace("-", "_")


def _quote(first: str, second: str | None) -> str:
    return f'write "{first}"' + (f' or "{second}"' if second else "")
