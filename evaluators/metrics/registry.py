"""Metrics by name. A built-in metric is a member of `METRICS` in the file that computes it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from evaluators.metrics import average_precision, classification, distances, mean_iou
from evaluators.metrics.contract import Metric
from evaluators.metrics.own.handed_metric import find_metric, is_handed
from evaluators.metrics.own.imported_metric import import_metric
from search.errors import ConfigError

BUILT_IN: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *classification.METRICS,
        *distances.METRICS,
        *mean_iou.METRICS,
        *average_precision.METRICS,
    )
}


def get_metric(name: str, decoder: str | None = None) -> Metric:
    """Find a metric by built-in name or `package.module:attribute` (the current folder is searched too).

    `NAME@DIGEST` is a function that this process was handed, see `own.handed_metric`.

    The attribute is a function `(outputs: dict[str, ndarray], labels) -> (n,) float`, or a class with
    `update(outputs, labels)` and `compute() -> float`. Either may carry the attributes `unit` (default ""),
    `higher_is_better` (True), `ratio` (False) and `needs_labels` (True: a metric that forgets to say so fails
    before the first trial for want of labels, not in the middle of a search).

    Args:
        decoder: what gives boxes to a metric that reads boxes, see `detections.get_decoder`; None for the default.

    Raises:
        ConfigError: no such metric, decoder, module or attribute, the attribute is not a metric, the metric reads no
            boxes, or it is a function that another process was handed.
    """
    if decoder is not None:
        return average_precision.make_decoding_metric(name, decoder)
    if is_handed(name):
        return find_metric(name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, attribute = name.rpartition(":")
    if not colon or not module or not attribute:
        close = difflib.get_close_matches(name.lower(), BUILT_IN, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ConfigError(
            f"metric {name!r} is unknown.{hint} "
            f"There are {', '.join(BUILT_IN)}; a metric of your own is given as package.module:attribute."
        )
    return import_metric(name)
