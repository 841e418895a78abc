"""What is made of the evaluations of several searches of one network: shares of a hypervolume, tables, a picture."""

from __future__ import annotations

import json
import math
import shutil
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import DOCS, ROOT
from benchmarks.h200 import fronts, fronts_figure, publish, tables

SECTIONS = ("h200", "h200 fronts")
UNIFORM = {"ff": (1.0, 0.0), "hh": (0.5, 0.0), "ii": (0.25, 0.10)}


def row(mix: str, ms: float, loss: float, source: str, trial: int, **more: Any) -> dict[str, Any]:
    made = {"a": mix, "got": mix, "lat": ms, "loss": loss, "samples": 100, "total": 100}
    return {**made, "source": source, "trial": trial, "wall": 10.0 * (trial + 1), **more}


def search(source: str, *mixes: dict[str, Any], slower: float = 1.0) -> list[dict[str, Any]]:
    """The uniform assignments and what follows."""
    labels = dict(zip(UNIFORM, ("fp32", "fp16", "int8"), strict=True))
    uniform = [
        row(mix, slower * ms, loss, source, trial, role=f"baseline:{labels[mix]}")
        for trial, (mix, (ms, loss)) in enumerate(UNIFORM.items())
    ]
    return [*uniform, *mixes]


ROWS = [
    *search("fresh", row("hi", 0.30, 0.0, "fresh", 3)),
    *search("tpe", row("fi", 0.60, 0.05, "tpe", 3), row("hi", 0.315, 0.0, "tpe", 4), slower=1.02),
]


def test_shares_of_the_best_known_front() -> None:
    found = fronts.judged("resnet18", ROWS)
    reference_ms, reference_loss = 1.02 * 1.01, 1.05 * 0.10
    assert found["reference"] == {"ms": pytest.approx(reference_ms), "loss": pytest.approx(reference_loss)}
    # By hand: (0.25 ms, 0.10) and (0.30 ms, 0): the rest is dominated.
    fast, good = math.log(reference_ms / 0.25), math.log(reference_ms / 0.30)
    best = good * reference_loss + (fast - good) * (reference_loss - 0.10)
    assert found["best"]["volume"] == pytest.approx(best)
    assert [point[:2] for point in found["best"]["points"]] == [[0.25, 0.1], [0.3, 0.0]]
    fresh, tpe = found["searches"]["fresh"], found["searches"]["tpe"]
    assert fresh["share"] == 1.0
    half = math.log(reference_ms / 0.5) * reference_loss
    assert dict(fresh["trials"])[2] == pytest.approx(half / best, abs=1e-5)
    assert tpe["share"] < 1.0
    assert (tpe["evaluations"], tpe["wanted"], tpe["wall_s"]) == (5, 200, 50.0)
    assert [at for at, _ in tpe["trials"]] == [1, 2, 3, 5], "a dominated mix gains nothing"


def test_the_same_mixes_in_several_processes() -> None:
    again = fronts.measured_again(ROWS)
    assert again["mixes"] == 4
    assert again["most"] == pytest.approx(0.05)
    assert again["between"] == {"tpe / fresh": {"mixes": 4, "median": pytest.approx(1.02)}}
    found = fronts.judged("resnet18", ROWS)
    assert found["searches"]["tpe"]["pooled"] == 1.0, "with each mix's median both searches found the same"
    assert fronts.measured_again(ROWS[:4]) == {"mixes": 0}


@pytest.mark.parametrize(
    "changes",
    [{"samples": 32}, {"got": "ff"}, {"lat": None, "failed": ["build", "refused", "no"]}],
    ids=["stopped early", "not obeyed", "failed"],
)
def test_what_may_not_stand_on_a_front(changes: dict[str, Any]) -> None:
    wonder = {k: v for k, v in row("hi", 0.01, 0.0, "fresh", 3, **changes).items() if v is not None}
    assert not fronts.counts(wonder)
    found = fronts.judged("resnet18", search("fresh", wonder))
    assert found["best"]["points"][0][0] == 0.25
    assert fronts.counts(row("hi", 0.3, 0.0, "fresh", 3, got="??")), "inside a fused region it cannot be seen"


def test_what_is_stored_is_written_into_the_page_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "data" / "resnet18.json").write_text(json.dumps({"rows": ROWS}))
    (tmp_path / "data" / "vit_small.json").write_text(json.dumps({"rows": search("study")}))
    page = tmp_path / "page.md"
    page.write_text("".join(f"a\n<!-- {name} begin: so -->\nold\n<!-- {name} end -->\nb\n" for name in SECTIONS))
    publish.main(["--into", str(tmp_path), "--page", str(page)])
    found = json.loads((tmp_path / "results" / "fronts_h200.json").read_text())
    assert list(found) == ["resnet18"], "a network with one search has nothing to be held against"
    written = page.read_text()
    assert written.startswith("a\n")
    assert written.endswith("b\n")
    assert "old" not in written
    assert "| ResNet-18, TPE, multivariate | 5 of 200 |" in written
    drawn = xml.etree.ElementTree.fromstring((tmp_path / "fronts.svg").read_text())
    assert len(drawn.findall("{*}polyline")) >= 5, "a front and four curves"


def test_the_page_and_the_picture_are_those_of_the_kept_rows(tmp_path: Path) -> None:
    into, page = tmp_path / "benchmarks", tmp_path / "benchmarks.md"
    for folder in ("data", "results"):
        shutil.copytree(ROOT / "benchmarks" / folder, into / folder)
    shutil.copy(DOCS, page)
    publish.main(["--into", str(into), "--page", str(page)])
    assert page.read_text() == DOCS.read_text()
    assert (tmp_path / "fronts.svg").read_text() == DOCS.with_name("fronts.svg").read_text()
    kept, made = (folder / "results" / "fronts_h200.json" for folder in (ROOT / "benchmarks", into))
    assert made.read_text() == kept.read_text()


def test_a_picture_of_a_single_level_front_can_be_drawn() -> None:
    flat = {"resnet18": search("fresh", row("hi", 0.2, 0.0, "fresh", 3)) + search("tpe", row("hi", 0.2, 0.0, "tpe", 3))}
    found = {"resnet18": fronts.judged("resnet18", flat["resnet18"])}
    assert len(found["resnet18"]["best"]["points"]) == 1
    assert fronts_figure.svg(found, flat, tables.NAMES).count("<circle") >= 1
