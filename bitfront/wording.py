"""Messages in the words of Python: the library that this package calls names options as the command line does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from search.errors import BitfrontError

_COMMAND = re.compile(r"(`[^`]*`|^ +bitfront .*$)", re.MULTILINE)  # what is typed in a shell stays as it is
_METRICS = "top1|top5|agreement|cosine|sqnr|mse|miou|map"
_RULES = (
    (re.compile(r"did you mean ([\w-]+)\?"), lambda found: f"did you mean {_name(found[1])}?"),
    (re.compile(r"(there is no such option; there are )(.*)"), lambda found: found[1] + _name(found[2])),
    (re.compile(r"(?<![\w-])--no-([a-z][a-z-]*)"), lambda found: f"no_{_name(found[1])}=True"),
    (re.compile(rf"(?<![\w-])--(metric) ({_METRICS})\b"), lambda found: f'{_name(found[1])}="{found[2]}"'),
    (re.compile(r"(?<![\w-])--([a-z][a-z-]*) (\d+)(?![\w.%])"), lambda found: f"{_name(found[1])}={found[2]}"),
    (re.compile(r"(?<![\w-])--([a-z][a-z-]*) (\d+\.\d+)(?![\w%])"), lambda found: f"{_name(found[1])}={found[2]}"),
    (re.compile(r"(?<![\w-])--([a-z][a-z-]*) (\d[\w.]*%?)"), lambda found: f'{_name(found[1])}="{found[2]}"'),
    (re.compile(r"(?<![\w-])--([a-z][a-z-]*)"), lambda found: _name(found[1])),
    (re.compile(r"\bwrite (\d[\d.]*(?:%|ms))(?: or (\d[\d.]*us))?"), lambda found: _quoted(found[1], found[2])),
)


@contextmanager
def python_words() -> Iterator[None]:
    """Within this block, let errors name options as `bitfront.search` takes them."""
    try:
        yield
    except BitfrontError as error:
        error.args = (in_python(str(error)), *error.args[1:])
        raise


def in_python(text: str) -> str:
    """A message with `max_drop="1%"` in place of `--max-drop 1%`. Commands in it stay as they are."""
    parts = _COMMAND.split(text)
    return "".join(part if place % 2 else _rewritten(part) for place, part in enumerate(parts))


def _rewritten(text: str) -> str:
    for pattern, write in _RULES:
        text = pattern.sub(write, text)
    return text


def _name(option: str) -> str:
    return option.replace("-", "_")


def _quoted(first: str, second: str | None) -> str:
    return f'write "{first}"' + (f' or "{second}"' if second else "")
