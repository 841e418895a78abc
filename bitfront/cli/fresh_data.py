"""The verbs for fresh data: `drift` and `renew`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bitfront.cli.base import progress_for, verb
from bitfront.cli.parameters import Json, Storage, Study, WhichTarget
from studies.options.quantities import parse_drop, parse_tolerance
from studies.options.read_options import read_changes

_EXIT_CODES = {"no drift": 0, "drift": 1, "holds": 0, "fails": 1, "not judged": 3}
NewStudy = Annotated[
    str | None, typer.Option("--study", help="Name of the new study. [default: STUDY-renewed]", metavar="NAME")
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        "--max-drop",
        help="Largest allowed loss of accuracy against the old engine, for example 1% or 0.01. [default: 0]",
        metavar="LOSS",
    ),
]
MaxSlowdown = Annotated[
    str | None,
    typer.Option(
        "--max-slowdown",
        help="Largest allowed increase of the latency against the old engine, for example 3%.",
        metavar="SHARE",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="New or empty folder for the new best engine. It is written if the engine passes.", metavar="DIR"
    ),
]


@verb
def drift(
    study: Study, target: WhichTarget = None, storage: Storage = None, as_json: Json = False, **options: Any
) -> None:
    """Test whether fresh data still resemble the data that a study was calibrated on."""
    from bitfront.cli.printing.output import out, print_json, print_table, say
    from bitfront.verbs import fresh_data
    from studies.inspect.drift.drift_report import COLUMNS

    changes = read_changes(options, "drift")
    with progress_for(as_json) as events:
        found = fresh_data.drift(study, changes.pop("data", ""), changes, storage=storage, target=target, events=events)
    if as_json:
        print_json("drift", found.to_json())
    else:
        print_table(found.cells(), COLUMNS)
        out.print()
        for line in found.lines():
            say(line)
    raise typer.Exit(_EXIT_CODES[found.verdict.value])


@verb
def renew(
    study: Study,
    new_study: NewStudy = None,
    max_drop: MaxDrop = None,
    max_slowdown: MaxSlowdown = None,
    folder: Out = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Calibrate the best mixes of a study again on fresh data, as a new study, and judge them against the old."""
    from bitfront.cli.printing.output import out, print_json, print_table, say
    from bitfront.verbs import fresh_data
    from studies.gate.limits import GateLimits
    from studies.gate.renewed.renewal import COLUMNS

    changes = read_changes(options, "renew")
    limits = GateLimits(
        None if max_drop is None else parse_drop(max_drop),
        None if max_slowdown is None else parse_tolerance(max_slowdown, "--max-slowdown"),
    )
    request = fresh_data.RenewalRequest(new_study, limits, folder)
    with progress_for(as_json) as events:
        found = fresh_data.renew(
            study,
            changes.pop("data", ""),
            changes,
            request=request,
            storage=storage,
            target=target,
            events=events,
        )
    if as_json:
        print_json("renew", found.to_json())
    else:
        print_table(found.cells(), COLUMNS)
        out.print()
        for line in found.lines():
            say(line)
        if found.folder is not None:
            say(f"exported trial {found.best} to {found.folder}")
    raise typer.Exit(_EXIT_CODES[found.verdict.value])
