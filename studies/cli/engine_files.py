"""The verb that looks into engine files: `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from search.errors import ConfigError
from studies.cli.base import out, print_csv, print_json, print_table, verb
from studies.cli.parameters import Csv, Json
from studies.inspect import engine_report
from studies.verbs import engine_files

File = Annotated[
    Path, typer.Argument(help="Plan, trtexec's layer JSON, ONNX file, or exported folder.", metavar="FILE")
]
Profile = Annotated[
    Path | None, typer.Option("--profile", help="Times by layer, of trtexec --exportProfile.", metavar="FILE")
]
Against = Annotated[Path | None, typer.Option("--against", help="Another engine beside it.", metavar="OTHER")]
AgainstProfile = Annotated[Path | None, typer.Option("--against-profile", help="Times of the other.", metavar="FILE")]


@verb
def inspect(
    file: File,
    profile: Profile = None,
    against: Against = None,
    against_profile: AgainstProfile = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """What any engine runs, layer by layer, and why layers are not in INT8."""
    if as_json and as_csv:
        raise ConfigError("printing the layers: --json and --csv were both given; give one.")
    if against_profile is not None and against is None:
        raise ConfigError("--against-profile is of the engine that --against names: give both.")
    found = engine_files.inspect(file, profile=profile, against=against, against_profile=against_profile)
    if as_json:
        print_json(found.to_json())
    elif as_csv:
        print_csv(_rows(found))
    else:
        _print(found)


def _rows(found: engine_report.EngineReport) -> list[dict[str, Any]]:
    if found.other is not None:
        return engine_report.node_rows(found.engine, found.other)
    return engine_report.layer_rows(found.engine.layers)


def _print(found: engine_report.EngineReport) -> None:
    for engine in (found.engine, found.other):
        if engine is not None:
            out.print(f"{engine.path}: {engine.kind}, {len(engine.layers)} layers", markup=False)
            for note in engine.notes:
                out.print(f"note: {note}", markup=False)
    layers = found.engine.layers
    rows = [_with_texts(row) for row in _rows(found)]
    if found.other is None:
        _print_rows(rows, ("layer", "kind", "precision", "inputs", "outputs", "details", "ms"))
    else:
        _print_rows(rows, ("node", "precision", "other_precision", "formats", "other_formats", "ms", "other_ms"))
    _print_rows([_with_texts(row) for row in engine_report.precision_rows(layers)])
    if bottlenecks := engine_report.bottleneck_rows(layers):
        out.print("\nNot in INT8, the costliest first:")
        _print_rows(
            [_with_texts(row) for row in bottlenecks], ("layer", "kind", "precision", "ms", "macs", "why_not_int8")
        )


def _print_rows(rows: list[dict[str, Any]], names: tuple[str, ...] | None = None) -> None:
    if rows:
        out.print()
        shown = [name for name in names or rows[0] if any(row[name] not in (None, "", []) for row in rows)]
        print_table(rows, shown)


def _with_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds to a microsecond, shares in percent, numbers of MACs with a unit."""
    texts = dict(row)
    for name, value in row.items():
        if value is None:
            continue
        if name.endswith("share"):
            texts[name] = f"{value:.1%}"
        elif name.endswith("ms"):
            texts[name] = f"{value:.4g}"
        elif name == "macs":
            texts[name] = f"{value / 1e6:.3g} M"
        elif isinstance(value, list):
            texts[name] = "; ".join(value)
    return texts
