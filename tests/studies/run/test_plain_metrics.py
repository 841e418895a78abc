"""Functions that declare neither unit nor ratio: whether a percentage means a share is told by their first scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.metrics.own.imported_metric import make_own_metric
from search.errors import ConfigError, MetricError
from studies.options.config import SearchConfig
from studies.options.read_options import read_config
from studies.run.session.setup import check_inputs
from tests.support.command_line import invoke, ok, write_inputs

METRICS = """
import numpy as np

def hits(outputs, labels):
    return outputs["logits"].argmax(axis=1) == labels

def distance(outputs, labels):
    return np.full(len(labels), 0.37)

def pixels(outputs, labels):
    raise RuntimeError("nothing may run before the limit is refused")

pixels.unit = "px"

def load():
    open("read", "w").close()
    return dict(np.load("data.npz"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plain")
    write_inputs(made, samples=120)
    (made / "own.py").write_text(METRICS)
    return made


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def config(**options: Any) -> SearchConfig:
    return read_config({"model": "model.onnx", "data": "data.npz", "max-drop": "1%", **options})


def test_a_percentage_means_a_share_where_all_scores_are_0_or_1() -> None:
    with check_inputs(config(metric="own.py:hits")) as good:
        assert dict(good.limits) == {"max_drop": 0.01}
        assert good.metric["ratio"]
        good.keeper.close()
        good.keeper.ask("opening a fresh process").setup.knobs()
        assert good.keeper.job.shares
        assert good.keeper.description.metric is not None
        assert good.keeper.description.metric.ratio  # as one that takes over has to know


def test_other_scores_are_refused_with_what_to_declare() -> None:
    with (
        pytest.raises(
            ConfigError,
            match="a percentage has no meaning for values in plain numbers; write --accuracy-limit "
            "VALUE with the value as a plain number, or declare `ratio = True` on the metric",
        ),
        check_inputs(config(metric="own.py:distance", **{"accuracy-limit": "1%"})),
    ):
        pass


def test_a_metric_that_declares_its_unit_is_refused_before_anything_runs() -> None:
    refused = pytest.raises(ConfigError, match="a percentage has no meaning for values in px")
    with refused, check_inputs(config(metric="own.py:pixels", **{"accuracy-limit": "1%"})):
        pass


def test_a_metric_that_cannot_be_imported_is_refused_before_the_data_are_read(here: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"module own\.py has no misses")
    with refused, check_inputs(config(metric="own.py:misses", data="own.py:load")):
        pass
    assert not (here / "read").exists()


def test_a_later_score_that_is_no_share_is_an_error_that_says_what_to_declare() -> None:
    metric = make_own_metric("errors", lambda outputs, labels: labels)
    found = metric.as_shares()
    assert found.scores({}, np.array([0.0, 0.5, 1.0]), count=3).tolist() == [0, 0.5, 1]
    with pytest.raises(MetricError, match=r"taken as shares of one, but sample 6 has 2\. Declare `unit`"):
        found.scores({}, np.array([0.0, 2.0]), count=2, first=5)
    assert metric.scores({}, np.array([0.0, 2.0]), count=2).tolist() == [0, 2]


def test_declared_shares_have_to_be_shares() -> None:
    function = lambda outputs, labels: labels  # noqa: E731
    function.ratio = True  # type: ignore[attr-defined]
    found = make_own_metric("percent", function)
    assert len(found.scores({}, np.array([0.5, 1.0000001]), count=2)) == 2, "shares in float32 are rounded"
    with pytest.raises(MetricError, match=r"declares `ratio = True`, so .* from 0 to 1, but sample 1 has 97\. Declare"):
        found.scores({}, np.array([1.0, 97.0]), count=2)


def test_a_declared_share_over_all_samples_has_to_be_one() -> None:
    class Percent:
        ratio = True

        def update(self, outputs: object, labels: object) -> None:
            pass

        def compute(self) -> float:
            return 97.0

    with pytest.raises(MetricError, match=r"declares `ratio = True`, so .* but compute\(\) gave 97\. Declare"):
        make_own_metric("percent", Percent).accumulator().compute()


def test_a_gate_reads_a_percentage_of_shares_as_points_and_of_other_scores_as_one_of_the_baseline() -> None:
    words = ["gate", "model.onnx", "--against", "model.onnx", "--data", "data.npz", "--max-drop", "50%", "--metric"]
    assert "allows a loss" not in ok(*words, "own.py:hits")
    few = invoke(*words, "own.py:distance")
    assert few.exit_code == 3, "120 samples are too few for a bound"
    assert "--max-drop 50% of the baseline's 0.37 allows a loss of 0.185" in " ".join(few.output.split())


def test_more_calibration_samples_than_there_are_cannot_be_chosen() -> None:
    refused = pytest.raises(ConfigError, match=r"--calibration-select worst:100000: expected at most [0-9]+ samples")
    with refused, check_inputs(config(metric="own.py:hits", **{"calibration-select": "worst:100000"})):
        pass
