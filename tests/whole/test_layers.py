"""The layers of tests: what they name is there, and the README's promise is one of them."""

from __future__ import annotations

from collections import Counter

from tests.support.layers import SECOND_LAYER, SLOW_PLACES, SLOW_TESTS, SLOWEST
from tests.support.paths import ROOT

FILES = Counter(path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_file_of_a_layer_is_there_and_has_its_name_alone() -> None:
    assert {name: FILES[name] for name in SECOND_LAYER if FILES[name] != 1} == {}
    assert [name for name in SLOWEST if not FILES[name]] == []
    texts = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in SLOW_TESTS if f"def {name}(" not in texts] == []
    assert [place for place in SLOW_PLACES if not (ROOT / "tests" / place).exists()] == []
