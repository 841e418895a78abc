"""The mix of a trial in names of layers and precisions, for Optuna's own tools, which show only `g000 = 0`."""

from __future__ import annotations

from collections.abc import Mapping

from search.values import Assignment, Precision
from studies.judging.sentences.evaluations import mix_text

MIX, LAYERS = "mix", "layers"
_MOST_CHARACTERS = 4_000  # of one attribute: Optuna reads those of all trials whenever it is asked for trials


def trial_labels(assignment: Assignment, names: Mapping[str, str]) -> dict[str, str]:
    """User attributes of a trial.

    Args:
        names: group id → name of its layer.

    Returns:
        `mix`, as `5 int8, 2 fp32`, and `layers`, as `INT8: conv1, conv2; FP32: fc`; without the latter where it is
        longer than 4,000 characters.
    """
    layers = layers_text(assignment, names)
    return {MIX: mix_text(assignment)} | ({LAYERS: layers} if len(layers) <= _MOST_CHARACTERS else {})


def layers_text(assignment: Assignment, names: Mapping[str, str]) -> str:
    """Every layer by its precision, the coarsest precision first."""
    by_precision: dict[Precision, list[str]] = {}
    for group, precision in assignment.items():
        by_precision.setdefault(precision, []).append(names.get(group, group))
    parts = (f"{precision.label.upper()}: {', '.join(by_precision[precision])}" for precision in sorted(by_precision))
    return "; ".join(reversed(list(parts)))
