"""`bitfront resume --as`: brightness is mended, the old study stays, what does not pass replaces nothing; bad input."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.command_line import DATABASE, copy_finished, invoke, ok, run_sql, three_layers, write_inputs
from tests.support.crashes.kill_and_resume import rows as stored_rows
from tests.support.crashes.kill_and_resume import started, wait_for_end
from tests.support.networks import save

pytestmark = pytest.mark.slow

SAMPLES = 1020  # of which 306 are final: without bounds on scores, fewer than 300 give no verdict


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
        np.savez("unlabelled.npz", image=images[SAMPLES:])
        words = ["search", "model.onnx", "--data", "data.npz", "--trials", 4, "--sampler", "random", "--quiet"]
        ok(*words, "--study", "s", "--metric", "mse", "--max-memory", "1GB")
        ok(*words[:4], "--trials", 2, "--quiet", "--study", "labelled", "--backend", "fake")
        (folder / "before.json").write_text(ok("front", "s", "--json"))
        found = invoke("resume", "s", "--as", "s-renewed", "--data", "bright.npz", "--out", "exported", "--json")
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
    ((old, new),) = run_sql(
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
    found = invoke("resume", "s", "--data", "same.npz", "--as", "again", "--out", "nothing")
    assert found.exit_code in (1, 3), found.output
    assert "keep the engine of s" in found.stdout
    assert not (here / "nothing").exists()


def test_the_best_mixes_are_also_timed_where_a_slowdown_is_bounded(copied: Path) -> None:
    """The planted clock times both alike; their tie band of 1 % is more than the second limit."""
    roomy = invoke("resume", "s", "--as", "s-renewed", "--data", "bright.npz", "--max-slowdown", "20%", "--json")
    assert roomy.exit_code == 0, roomy.output
    latency = json.loads(roomy.stdout)["latency"]
    assert (latency["verdict"], latency["limit"]) == ("holds", 0.2)
    tight = invoke(
        "resume", "s", "--as", "s-renewed", "--data", "bright.npz", "--max-slowdown", "0.1%", "--out", "nothing"
    )
    assert tight.exit_code == 3, tight.output
    assert "latency: not judged" in tight.stdout
    assert not (copied / "nothing").exists()


def test_a_study_whose_best_is_fp32_is_not_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened, built or measured for that: FP32 has no ranges that fresh data could change."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    with sqlite3.connect(DATABASE) as database:
        database.execute(
            "update bf_evaluation set loss = 0.9, loss_low = 0.9, loss_high = 0.9, loss_upper = 0.9 "
            "where role <> 'baseline:fp32'"
        )
    refused = invoke("resume", "small", "--as", "new", "--data", "there is none.npz")
    assert refused.exit_code == 2, refused.output
    assert "renewing study 'small': its best is FP32 itself" in " ".join(refused.stderr.split())
    assert json.loads(ok("status", "--json"))["studies"][0]["name"] == "small"
    assert len(json.loads(ok("status", "--json"))["studies"]) == 1


def test_a_renewal_that_is_killed_is_gone_on_with_by_the_same_call(copied: Path) -> None:
    """Whether the kill comes early, late or after the end: the next call ends with the same whole study."""
    count = "select count(*) from bf_evaluation where status <> 'running'"
    before = run_sql(count)[0][0]
    words = ["resume", "s", "--data", "bright.npz", "--as", "killed"]
    with started(*words, "--json", cwd=copied) as process:
        while process.poll() is None and stored_rows(copied, count) in ([], [(before,)]):
            time.sleep(0.05)
        left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        wait_for_end([child.pid for child in left])
    again = invoke(*words, "--json")
    assert again.exit_code == 0, f"{again.output}\n{again.exception!r}"
    found = json.loads(again.stdout)
    whole = json.loads((copied / "renewed.json").read_text())
    assert [mix["trial"] for mix in found["mixes"]] == [mix["trial"] for mix in whole["mixes"]]
    assert found["verdict"] == "holds"
    of_study = (
        "from bf_evaluation e join bf_study_target t on e.study_target_id = t.id join bf_study s on t.study_id = s.id "
        "where s.name = 'killed'"
    )
    assert run_sql(f"select count(*) {of_study} and e.status = 'running'") == [(0,)]
    assert run_sql(f"select count(*) - count(distinct e.digest) {of_study}") == [(0,)]


def test_it_is_gone_on_with_by_the_same_call(copied: Path) -> None:
    found = invoke("resume", "s", "--as", "s-renewed", "--data", "bright.npz", "--json")
    assert found.exit_code == 0, found.output
    assert run_sql("select count(*) from bf_study where name like 's-renewed%'") == [(1,)]
    assert json.loads(found.stdout)["best"] == json.loads((copied / "renewed.json").read_text())["best"]


def test_the_link_goes_with_the_old_study(copied: Path) -> None:
    ok("delete", "s", "--yes")
    assert run_sql("select renewed_from from bf_study where name = 's-renewed'") == [(None,)]
    assert json.loads(ok("status", "s-renewed", "--json"))["renewed_from"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s", "--as", "new"], "Add --data DATA"),
        (["s", "--max-slowdown", "1%"], "--max-slowdown: this option goes with --as"),
        (["s", "--as", "new", "--data", "same.npz", "--trials", "9"], "--trials: this option does not go with --as"),
        (["s", "--as", "new", "--data", "broken.npz"], "not a readable .npz archive"),
        (["s", "--as", "s-renewed", "--data", "same.npz"], "what it was made of has changed"),
        (
            ["s", "--data", "same.npz", "--as", "s"],
            "there is already a study 's', which was not made by renewing it",
        ),
        (
            ["s", "--data", "same.npz", "--as", "new", "--model", "other.onnx"],
            "has other content than that of the study",
        ),
        (["s", "--data", "same.npz", "--as", "new", "--max-drop", "1%"], "a percentage has no meaning"),
        (["s", "--data", "same.npz", "--as", "new", "--out", "exported"], "the folder is not empty"),
        (["labelled", "--as", "new", "--data", "unlabelled.npz"], "Add the labels that the study's data have"),
        (["nobody", "--as", "new", "--data", "same.npz"], "There is no study 'nobody'"),
    ],
)
def test_bad_input_is_refused_in_one_message_and_makes_no_study(here: Path, words: list[str], said: str) -> None:
    before = run_sql("select name from bf_study order by id")
    found = invoke("resume", *words)
    assert found.exit_code == 2, found.output
    assert found.stderr.count("error:") == 1
    assert said in found.stderr
    assert run_sql("select name from bf_study order by id") == before
