"""What messages say of labels that a metric cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.metrics.mean_iou import MeanIoU
from evaluators.metrics.registry import get_metric
from search.errors import DataError, MetricError

SCORES = np.zeros((4, 3), np.float32)
BY_NAME = """
def missed(outputs, labels):
    wanted = labels["price"]
    return outputs["y"][:, 0] - wanted
"""


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            np.zeros((4, 3), np.float32),
            r"Here labels is one array, float32 of shape \(n, 3\); several labels, .*'labels\.NAME'",
        ),
        (np.zeros(4, [("cost", np.float32)]), r"Here labels\['cost'\] is float32 of shape \(n,\)\."),
        (
            np.zeros(4, [("cost", np.float32)]),
            r"asks for the label 'price', and the data have 'labels\.cost': correct the name in the metric, or name "
            r"the array 'labels\.price' in the data",
        ),
        (np.zeros((4, 3), np.float32), r"asks for the label 'price', and the data have one array 'labels'"),
        (None, "The data have no labels, so labels is None"),
    ],
)
def test_an_error_of_an_own_metric_names_its_line_and_tells_what_the_labels_are(
    tmp_path: Path, labels: Any, says: str
) -> None:
    (tmp_path / "missing_price.py").write_text(BY_NAME)
    metric = get_metric(f"{tmp_path}/missing_price.py:missed")
    with pytest.raises(MetricError, match=says) as caught:
        metric.scores({"y": SCORES}, labels, count=4)
    assert 'It was raised at missing_price.py, line 3: `wanted = labels["price"]`.' in str(caught.value)


def test_an_own_metric_that_asks_for_an_output_that_is_not_there_is_told_their_names(tmp_path: Path) -> None:
    (tmp_path / "other_output.py").write_text("def score(outputs, labels):\n    return outputs['logits'][:, 0]\n")
    metric = get_metric(f"{tmp_path}/other_output.py:score")
    with pytest.raises(MetricError, match=r"KeyError .*'logits'.* The outputs of the model are 'y', 'z'\."):
        metric.scores({"y": SCORES, "z": SCORES}, np.zeros(4, int), count=4)


def test_an_own_metric_that_takes_the_outputs_for_an_array_is_told_how_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "an_array.py").write_text(
        "import numpy\ndef score(outputs, labels):\n    return numpy.mean(outputs, 1)\n"
    )
    metric = get_metric(f"{tmp_path}/an_array.py:score")
    with pytest.raises(MetricError, match=r"Here outputs\['y'\] is float32 of shape \(n, 3\)\."):
        metric.scores({"y": SCORES}, None, count=4)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros((2, 3, 4, 5), "u1"), r"shape \(n, 4, 5\), got uint8 of shape \(n, 3, 4, 5\)\. .*\.argmax\(1\)"),
        (np.zeros((2, 4, 5, 3), "u1"), r"got uint8 of shape \(n, 4, 5, 3\)\. .*\.argmax\(-1\)"),
        (np.zeros((2, 4, 5), np.float32), r"got float32 of shape \(n, 4, 5\)\. .*\.astype\(\"int64\"\)"),
        (np.full((2, 4, 5), 3), "label 3 is neither one of 3 classes, which are numbered from 0 to 2"),
    ],
)
def test_class_maps_in_another_form_are_refused_with_what_to_do(labels: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        MeanIoU().update({"y": np.zeros((2, 3, 4, 5), np.float32)}, labels)
