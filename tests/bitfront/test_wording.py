"""Messages of the library in the words of Python."""

from __future__ import annotations

import pytest

from bitfront.wording import in_python, python_words
from search.errors import BitfrontError


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
        ("`bitfront resume s --trials 9` continues it", "`bitfront.resume('s', trials=9)` continues it"),
        ("More time: bitfront resume m --time-limit TIME", "More time: bitfront.resume('m', time_limit='...')"),
        ("`bitfront resume 'a b' --time-limit 5m --quiet`", "`bitfront.resume('a b', time_limit='5m', quiet=True)`"),
        ("continue it with `bitfront resume`", "continue it with `bitfront resume`"),
        ("`bitfront show s 3 --storage u` says why", "`bitfront show s 3 --storage u` says why"),
        ("2 things are wrong:\n  --max-drop: a\n  --batch: b", "2 things are wrong:\n  max_drop: a\n  batch: b"),
        ("files in a--b", "files in a--b"),
    ],
)
def test_options_are_named_as_in_python(text: str, python: str) -> None:
    assert in_python(text) == python


def test_how_to_resume_has_what_the_study_does_not_store() -> None:
    given = {"metric": "psnr", "storage": "'sqlite:///else.db'"}
    text = "1 finalist is not confirmed; `bitfront resume s --storage sqlite:///else.db` confirms it"
    call = "bitfront.resume('s', metric=psnr, storage='sqlite:///else.db')"
    assert in_python(text, given) == f"1 finalist is not confirmed; `{call}` confirms it"
    says = r"More time: bitfront\.resume\('s', metric=psnr, .*, time_limit='\.\.\.'\)$"
    with pytest.raises(BitfrontError, match=says), python_words(given):
        raise BitfrontError("More time: bitfront resume s --time-limit TIME")
