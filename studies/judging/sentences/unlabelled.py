"""The warning that limits of the accuracy mean something else, because the data have no labels."""

from __future__ import annotations

from studies.options.limits import Limit, Limits, MetricScale


def unlabelled_text(limits: Limits, metric: MetricScale) -> str:
    """What the limits mean where FP32 itself is compared with; empty if there are none, or for another metric.

    Args:
        metric: chosen by default for data without labels.
    """
    meant = [_explain_limit(limit, bound, metric) for limit, bound in limits.rows() if limit.bounds_accuracy]
    if not meant or not (metric.relative and metric.ratio):
        return ""
    return (
        f"WARNING: the data have no labels, so nobody knows which answers are right. {' '.join(meant)} To limit the "
        "loss of accuracy, add an array 'labels' with the class number of every sample to the data, or sort an image "
        f"folder into one sub-folder per class. If you mean the limit that way, --metric {metric.name} says so"
    )


def _explain_limit(limit: Limit, bound: float, metric: MetricScale) -> str:
    shares = f"at most {metric.text(bound)}" if limit.difference else f"at most {metric.text(1 - bound)}"
    return f"Your limit --{limit.option} now means that {shares} of the samples get another answer than from FP32."
