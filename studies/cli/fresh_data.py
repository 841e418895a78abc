"""The verbs that look at fresh data: `drift`."""

from __future__ import annotations

from typing import Any

import typer

from studies.cli.base import out, print_json, print_table, progress_for, verb
from studies.cli.parameters import Json, Storage, Study, WhichTarget
from studies.inspect.drift.shifts import Verdict
from studies.options.read_options import read_changes

_EXIT_CODES = {Verdict.NO_DRIFT: 0, Verdict.DRIFT: 1, Verdict.NOT_JUDGED: 3}


@verb
def drift(
    study: Study, target: WhichTarget = None, storage: Storage = None, as_json: Json = False, **options: Any
) -> None:
    """Whether fresh data still are like those that a study was calibrated on."""
    from studies.inspect.drift.drift_report import COLUMNS
    from studies.verbs import fresh_data

    changes = read_changes(options, "drift")
    with progress_for(as_json) as events:
        found = fresh_data.drift(study, changes.pop("data", ""), changes, storage=storage, target=target, events=events)
    if as_json:
        print_json(found.to_json())
    else:
        print_table(found.cells(), COLUMNS)
        out.print()
        for line in found.lines():
            out.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(_EXIT_CODES[found.verdict])
