"""`bitfront renew`: brightness is mended, the old study stays, what does not pass replaces nothing; bad input."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import DATABASE, invoke, ok, three_layers, write_inputs
from tests.support.networks import save

SAMPLES = 300


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of dim data that was renewed on bright data, exported where it passed."""
    folder = tmp_path_factory.mktemp("renew")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, samples=2 * SAMPLES)
        both = np.load("data.npz")
        images, labels = both["image"], both["labels"]
        np.savez("data.npz", image=images[:SAMPLES] / 8, labels=labels[:SAMPLES])
        np.savez("same.npz", image=images[SAMPLES:] / 8, labels=labels[SAMPLES:])
        np.savez("bright.npz", image=images[SAMPLES:], labels=labels[SAMPLES:])
        (folder / "broken.npz").write_bytes(b"PK broken")
        save(three_layers(seed=3), folder / "other.onnx")
        words = ["search", "model.onnx", "--data", "data.npz", "--trials", 4, "--sampler", "random", "--quiet"]
        ok(*words, "--study", "s", "--metric", "mse", "--max-memory", "1GB")
        (folder / "before.json").write_text(ok("front", "s", "--json"))
        found = invoke("renew", "s", "--data", "bright.npz", "--out", "exported", "--json")
        assert found.exit_code == 0, f"{found.output}\n{found.exception!r}"
        (folder / "renewed.json").write_text(found.stdout)
    return folder


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched)
    return searched


@pytest.fixture
def copied(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change."""
    monkeypatch.chdir(shutil.copytree(searched, tmp_path / "copy"))
    return tmp_path / "copy"


def rows(query: str) -> list[Any]:
    with sqlite3.connect(DATABASE) as connection:
        return connection.execute(query).fetchall()


def test_brightness_is_mended(here: Path) -> None:
    found = json.loads((here / "renewed.json").read_text())
    assert found["verdict"] == "holds"
    assert (found["study"], found["renewed_from"]) == ("s-renewed", "s")
    (best,) = [mix for mix in found["mixes"] if mix["best"]]
    assert best["loss_now"] < best["loss_before"] / 4
    assert best["check"]["high"] <= 0


def test_every_mix_of_the_front_is_built_anew_and_judged(here: Path) -> None:
    found = json.loads((here / "renewed.json").read_text())
    front = json.loads((here / "before.json").read_text())
    shown = [row for row in front["rows"] if row["on_front"] or row["picks"]]
    wanted = {row["trial"] for row in shown if "int8" in row["mix"]}  # floats do not depend on ranges
    assert wanted
    assert {mix["trial"] for mix in found["mixes"]} == wanted
    assert all(mix["renewed"] is not None for mix in found["mixes"])
    level = {mix["check"]["level"] for mix in found["mixes"]}
    assert level == {0.01 / len(found["mixes"])}


def test_the_new_study_is_linked_to_the_old_which_stays_as_it_was(here: Path) -> None:
    ((old, new),) = rows(
        "select b.name, a.name from bf_study a join bf_study b on a.renewed_from = b.id where a.name = 's-renewed'"
    )
    assert (old, new) == ("s", "s-renewed")
    assert ok("front", "s", "--json") == (here / "before.json").read_text()
    assert json.loads(ok("status", "s-renewed", "--json"))["renewed_from"] == "s"
    assert "renews s" in ok("status", "s-renewed")


def test_what_passes_is_exported(here: Path) -> None:
    manifest = json.loads((here / "exported/manifest.json").read_text())
    assert manifest["study"] == "s-renewed"
    assert manifest["trial"] == json.loads((here / "renewed.json").read_text())["best"]


def test_what_does_not_pass_replaces_nothing(here: Path) -> None:
    """On data like those before, the renewed mix is no better: that it is no worse at all cannot be told."""
    found = invoke("renew", "s", "--data", "same.npz", "--study", "again", "--out", "nothing")
    assert found.exit_code in (1, 3), found.output
    assert "stay with s" in found.stdout
    assert not (here / "nothing").exists()


def test_it_is_gone_on_with_by_the_same_call(copied: Path) -> None:
    found = invoke("renew", "s", "--data", "bright.npz", "--json")
    assert found.exit_code == 0, found.output
    assert rows("select count(*) from bf_study where name like 's-renewed%'") == [(1,)]
    assert json.loads(found.stdout)["best"] == json.loads((copied / "renewed.json").read_text())["best"]


def test_the_link_goes_with_the_old_study(copied: Path) -> None:
    ok("delete", "s", "--yes")
    assert rows("select renewed_from from bf_study where name = 's-renewed'") == [(None,)]
    assert json.loads(ok("status", "s-renewed", "--json"))["renewed_from"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s"], "Add --data DATA"),
        (["s", "--data", "broken.npz"], "not a readable .npz archive"),
        (["s", "--data", "same.npz"], "what it was made of has changed"),
        (["s", "--data", "same.npz", "--study", "s"], "there is a study 's' already, which does not renew it"),
        (["s", "--data", "same.npz", "--study", "new", "--model", "other.onnx"], "has other content than the study's"),
        (["s", "--data", "same.npz", "--study", "new", "--max-drop", "1%"], "a percentage means nothing"),
        (["s", "--data", "same.npz", "--study", "new", "--out", "exported"], "the folder is not empty"),
        (["nobody", "--data", "same.npz"], "There is no study 'nobody'"),
    ],
)
def test_bad_input_is_refused_in_one_message_and_makes_no_study(here: Path, words: list[str], said: str) -> None:
    before = rows("select name from bf_study order by id")
    found = invoke("renew", *words)
    assert found.exit_code == 2, found.output
    assert found.stderr.count("error:") == 1
    assert said in found.stderr
    assert rows("select name from bf_study order by id") == before
