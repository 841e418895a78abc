"""The verb that makes INT8 of a model lose less without a study: `recover`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bitfront.verbs.command import Typed, prints
from studies.events import Quiet

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verb works with is imported inside it
    from studies.events import Events
    from studies.lifecycle.recovered_model import RecoveredModel
    from studies.options.config import SearchConfig


def recover(
    config: SearchConfig,
    out: Annotated[Path | None, Typed("DIR", "--out")] = None,
    *,
    latency: bool = False,
    events: Events | None = None,
) -> RecoveredModel:
    """Reduce the loss of a model in INT8 at no cost in latency, and show what each step wins back.

    Args:
        config: the model, its data, the target and the steps.
        out: New or empty folder for the changed model and its INT8 ranges.
        latency: Also build INT8 before and after recovery, and measure both latencies.

    Raises:
        InputError: the model, its data or an option cannot be used; `model` is the name of a study.
        EvaluatorError: the model cannot be run, or a step that was named fails.
        ArtifactError: the folder cannot be written, or the float model is not the user's.
    """
    from studies.lifecycle.recovered_model import recover_model

    return recover_model(config, out, latency=latency, events=events or Quiet())


@prints(recover)
def _print_recovered(found: RecoveredModel) -> None:
    from bitfront.printing.output import say
    from bitfront.printing.study_results import print_rescue
    from studies.options.limits import MetricScale

    print_rescue(found.rows, found.notes, MetricScale.of(found.metric))
    if found.folder is not None:
        say(f"Wrote model.float.onnx and ranges.json to {found.folder}.")
