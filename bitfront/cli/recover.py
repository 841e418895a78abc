"""The verb that reduces the loss of INT8 of a model without a study: `recover`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bitfront.cli.base import progress_for, verb
from bitfront.cli.parameters import Json
from studies.options.limits import MetricScale
from studies.options.read_options import read_config


@verb
def recover(
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="New or empty folder for the changed model and its INT8 ranges.", metavar="DIR"),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Also build INT8 before and after recovery, and measure both latencies.")
    ] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Reduce the loss of a model in INT8 at no cost in latency, and show what each step wins back."""
    from bitfront.cli.printing.output import print_json, say
    from bitfront.cli.printing.study_results import print_rescue
    from bitfront.verbs import recovery  # it takes a second to import, which help does without

    config = read_config(options)
    with progress_for(as_json) as events:
        found = recovery.recover(config, folder, latency=latency, events=events)
    if as_json:
        print_json("recover", found.to_json())
        return
    print_rescue(found.rows, found.notes, MetricScale.of(found.metric))
    if found.folder is not None:
        say(f"Wrote model.float.onnx and ranges.json to {found.folder}.")
