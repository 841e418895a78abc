"""Of a metric that compares with FP32 every view shows the value itself: its loss is one against a bound of 100 dB."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bitfront
from studies.judging.sentences.evaluations import finished_text
from studies.options.limits import MetricScale
from studies.store.store import Store
from tests.support.command_line import RECOVER, invoke, ok, quick, write_inputs
from tests.support.networks import mobile_cnn

DECIBELS = r"sqnr (-?\d[\d.]*)( ± [\d.]+)? dB"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a study, an export and a report, and what the search printed."""
    folder = tmp_path_factory.mktemp("relative")
    write_inputs(folder, mobile_cnn())
    words = ("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 3, "--metric", "sqnr")
    with pytest.MonkeyPatch.context() as patch, quick():
        patch.chdir(folder)
        patch.setenv(RECOVER, "ranges")
        result = invoke(*words, "--accuracy-limit", "5dB", "--deliver", "put")
        assert result.exit_code == 0, result.output
        return folder, result.output


@pytest.fixture
def here(searched: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched[0])
    return searched[0]


def test_the_end_of_a_search_has_no_loss(searched: tuple[Path, str], here: Path) -> None:
    end = searched[1].partition("evaluations are done")[2]
    assert re.search(r"^step +sqnr +95 % interval +(latency|seconds)", end, re.MULTILINE), end
    assert re.search(rf"^Best.*; {DECIBELS}.* on the final samples\.$", end, re.MULTILINE), end
    assert re.search(rf"^on the final split: {DECIBELS}", end, re.MULTILINE), end
    assert not re.search(r"\bloss\b", end), end


def test_show_status_and_python_have_no_loss(here: Path) -> None:
    shown = ok("show", "s", 1)
    for split in ("search", "final"):
        assert re.search(rf"^{split}: {DECIBELS}.* on \d+ of", shown, re.MULTILINE), shown
    assert not re.search(r"\bloss\b", re.sub(r"^forecast.*", "", shown, flags=re.MULTILINE)), shown
    status = ok("status", "s")
    assert re.search(rf"^best.*{DECIBELS}, final {DECIBELS}", status, re.MULTILINE), status
    assert "loss" not in status
    told = repr(bitfront.load("s").trials[1])
    assert re.search(DECIBELS, told), told
    assert "loss" not in told


def test_report_and_readme_have_no_loss(here: Path) -> None:
    page = Path("put/report.html").read_text(encoding="utf-8")
    assert 'data-label="sqnr after"' in page
    assert 'data-label="sqnr, search data"' in page
    assert not re.search(r'data-label="(loss|won back)', page)
    assert "of the loss against FP32" not in page
    assert re.search(r'"ticktext": ?\["\d[\d.]* dB"', page), "the axis has values"
    assert '"loss of sqnr' not in page
    readme = Path("put/engine/README.md").read_text(encoding="utf-8")
    assert re.search(r"sqnr on the final data, which the search never saw \| [\d.]+ dB", readme)
    assert not re.search(r"loss -?\d", readme)


def test_what_other_workers_did_is_told_by_its_value(here: Path) -> None:
    with Store.open("sqlite:///bitfront.db") as store:
        study = store.studies.load("s")
        metric = MetricScale.of(study.metric)
        rows = store.statistics.finished_since(store.targets.of_study(study.id)[0].id, 3600)
    assert all(re.search(rf"ms, {DECIBELS}", finished_text(row, metric)) for row in rows)
