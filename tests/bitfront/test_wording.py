"""Messages of the library in the words of Python."""

from __future__ import annotations

import pytest

from bitfront.wording import in_python


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("--max-drop 1% for the metric sqnr", 'max_drop="1%" for the metric sqnr'),
        ("--max-drop 0.5: give less", "max_drop=0.5: give less"),
        ("Give it with --batch 8; or --time-limit 30m", 'Give it with batch=8; or time_limit="30m"'),
        ("limits nothing; write 1%", 'limits nothing; write "1%"'),
        ("there is no such option; did you mean max-drop?", "there is no such option; did you mean max_drop?"),
        ("there is no such option; there are time-limit, seed", "there is no such option; there are time_limit, seed"),
        ("give --metric agreement or --metric file.py:function", 'give metric="agreement" or metric file.py:function'),
        ("--pick bets: there is no such pick", "pick bets: there is no such pick"),
        ("`bitfront resume s --trials 9` continues it", "`bitfront resume s --trials 9` continues it"),
        ("2 things are wrong:\n  --max-drop: a\n  --batch: b", "2 things are wrong:\n  max_drop: a\n  batch: b"),
        ("files in a--b", "files in a--b"),
    ],
)
def test_options_are_named_as_in_python(text: str, python: str) -> None:
    assert in_python(text) == python
