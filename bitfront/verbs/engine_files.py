"""The verbs for engine files of any origin: `inspect` and `gate`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from search.errors import BitfrontError, ConfigError, TargetError
from studies.events import Quiet
from studies.gate.check import PROCESSES, GateLimits, check_limits
from studies.options.config import SearchConfig, options_of
from studies.options.quantities import Amount, parse_drop, parse_tolerance
from studies.options.read_options import change_config, check_config
from studies.outputs import check_file

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from evaluators.engine_files import EngineFile
    from studies.events import Events
    from studies.gate.report import GateReport
    from studies.inspect.engine_report import EngineReport
    from studies.show.layer_table import Layers

NOTHING: Mapping[str, Any] = MappingProxyType({})


# -- what an engine runs -----------------------------------------------------------------------------------------------


def inspect(
    file: Annotated[str | Path, Typed("FILE")],
    changes: Mapping[str, Any] = NOTHING,
    *,
    profile: Annotated[Path | None, Typed("FILE")] = None,
    against: Annotated[Path | None, Typed("OTHER")] = None,
    against_profile: Annotated[Path | None, Typed("FILE")] = None,
) -> EngineReport | Layers:
    """Show what an engine file runs, layer by layer; or what the layers of a float model may run in on this target.

    Args:
        file: An ONNX file, a TensorRT plan, trtexec's JSON of layers or an exported folder.
        changes: of a float model: how it is to be run, as of `search`. If `data` are given, the model is calibrated,
            because ranges decide which groups may run in FP16.
        profile: File with the time of each layer, as trtexec --exportProfile writes it.
        against: Another engine to show beside it.
        against_profile: File with the time of each layer of the other engine.

    Raises:
        InputError: a file is missing or none of these; or the float model, a rule or the target cannot be used.
        TargetError: a plan, and TensorRT or its GPU is not here.
    """
    from evaluators.engine_files import FLOAT_ONNX, onnx_kind
    from studies.inspect.engine_report import EngineReport

    if against_profile is not None and against is None:
        raise ConfigError(
            "--against-profile was given without --against. Give --against with the engine of that profile."
        )
    alone = Path(file).is_file() and profile is None and against is None
    kind = onnx_kind(Path(file)) if alone else ""
    if kind == FLOAT_ONNX or (changes and kind):
        return layers_of(change_config(SearchConfig(str(file), ""), changes))
    engine = _read(file, profile)
    if changes:
        rows = {row.key: row for row in options_of("inspect")}
        raise ConfigError(
            f"{rows[next(iter(changes))].shown}: this option is for float models, but "
            f"{f'{file} is an engine, whose' if alone else 'with --against or --profile files are engines, whose'} "
            "layers are shown as they run. Leave the option out."
        )
    return EngineReport(engine, None if against is None else _read(against, against_profile))


def layers_of(config: SearchConfig) -> Layers:
    """The groups and edges of a float model and their possible precisions on a target; calibrated if there are data."""
    from studies.run.session.setup import look_at_layers
    from studies.show.layer_table import Layers

    return Layers(*look_at_layers(check_config(config, needs_data=False), calibrated=bool(config.data)))


def _layers_json(layers: Layers) -> Mapping[str, Any]:
    from studies.run.session.data_shapes import model_notes
    from studies.show.layer_table import edge_rows, layer_rows, left_out_rows, rule_rows

    tables = {"groups": layer_rows(layers), "edges": edge_rows(layers), "left_out": left_out_rows(layers)}
    return {
        "target": layers.target.to_json(),
        **tables,
        "by_rule": rule_rows(layers),
        "notes": model_notes(layers.model),
    }


def _layers_csv(layers: Layers) -> list[dict[str, Any]]:
    from studies.show.layer_table import layer_rows

    return [
        {**row, "why_not": [f"no {precision}: {why}" for precision, why in row["why_not"].items()]}
        for row in layer_rows(layers)
    ]


@prints(inspect, kind="Layers", json=_layers_json, csv=_layers_csv)
def _print_layers(layers: Layers) -> None:
    from bitfront.printing.output import out, print_table, say
    from studies.run.session.data_shapes import model_notes
    from studies.show.layer_table import edge_rows, layer_rows, left_out_rows, rule_rows

    rows, edges = layer_rows(layers), edge_rows(layers)
    refused = Counter((row["op"], *why) for row in rows for why in row["why_not"].items())
    ops = Counter(row["op"] for row in rows)
    of_all = {refusal: n for refusal, n in refused.items() if n == ops[refusal[0]] > 1}
    for row in rows:
        own = [f"no {p}: {why}" for p, why in row["why_not"].items() if (row["op"], p, why) not in of_all]
        row["why_not"] = "; ".join(own)
    print_table(rows, ["group", "node", "op", "block", "shape", "may", "why_not"], notes=["why_not"])
    out.print()
    if of_all:
        say("What no layer of an op type may run in:")
        table_rows = [{"op": op, "layers": n, "may_not": p, "why": why} for (op, p, why), n in of_all.items()]
        print_table(table_rows, ["op", "layers", "may_not", "why"], notes=["why"])
        out.print()
    print_table(edges, ["source", "target", "tensor", "elements"])
    out.print()
    if kinds := Counter((row["op"], row["runs_in"], row["why"]) for row in rule_rows(layers)):
        say("Layers without weights whose types a rule gives:")
        table_rows = [
            {"op": op, "layers": n, "runs_in": runs_in, "why": why} for (op, runs_in, why), n in kinds.items()
        ]
        print_table(table_rows, ["op", "layers", "runs_in", "why"], notes=["why"])
        out.print()
    for each in left_out_rows(layers):
        say(f"{each['name']} ({each['op']}) has weights and stays as it is: {each['why']}")
    for text in model_notes(layers.model):
        say(f"note: {text}")
    say(
        f"{len(rows)} groups, {len(edges)} edges, {len(layers.space.variables)} decisions, "
        f"{layers.space.size:.3g} assignments on {layers.target.backend} ({layers.target.device})"
    )


def _engine_rows(report: EngineReport) -> list[dict[str, Any]]:
    from studies.inspect import engine_report

    if report.other is not None:
        return engine_report.node_rows(report.engine, report.other)
    return engine_report.layer_rows(report.engine.layers)


@prints(inspect, kind="EngineReport", csv=_engine_rows)
def _print_engine(report: EngineReport) -> None:
    from bitfront.printing.output import out, say
    from studies.inspect import engine_report

    for engine in (report.engine, report.other):
        if engine is not None:
            say(f"{engine.path}: {engine.kind}, {len(engine.layers)} layers")
            for note in engine.notes:
                say(f"note: {note}")
    layers = report.engine.layers
    rows = [_with_texts(row) for row in _engine_rows(report)]
    if report.other is None:
        _print_rows(rows, ("layer", "kind", "precision", "inputs", "outputs", "details", "ms"))
    else:
        _print_rows(rows, ("node", "precision", "other_precision", "formats", "other_formats", "ms", "other_ms"))
        say(engine_report.agreement(report.engine, report.other).text())
    _print_rows([_with_texts(row) for row in engine_report.precision_rows(layers)])
    if bottlenecks := engine_report.bottleneck_rows(layers):
        out.print()
        say("Not in INT8, the costliest first:")
        _print_rows(
            [_with_texts(row) for row in bottlenecks], ("layer", "kind", "precision", "ms", "macs", "why_not_int8")
        )


def _print_rows(rows: list[dict[str, Any]], names: tuple[str, ...] | None = None) -> None:
    from bitfront.printing.output import out, print_table

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


def _read(file: str | Path, profile: str | Path | None) -> EngineFile:
    from evaluators.engine_files import read_engine_file

    return read_engine_file(Path(file), profile=None if profile is None else Path(profile), inspect_plan=_inspect_plan)


def _plugins_beside(path: Path) -> list[str]:
    """The plugin libraries that the manifest beside an exported plan names."""
    try:
        plugins = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))["plugins"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no export, or one of before they were named
    return [library for library in plugins if isinstance(library, str)]


def _inspect_plan(path: Path) -> str:
    from evaluators.backends.tensorrt.session import inspect_plan

    try:
        return inspect_plan(path, plugins=_plugins_beside(path))
    except BitfrontError as error:
        raise TargetError(
            f"inspecting {path}: {error} A plan can be read only with the version of TensorRT and on the kind of GPU "
            "that it was "
            "built for. There, or with `trtexec --loadEngine=… --exportLayerInfo=layers.json`, its layers are written "
            "to a file that can be inspected anywhere."
        ) from error


# -- the gate ----------------------------------------------------------------------------------------------------------


def gate(
    candidate: Annotated[str | Path, Typed("CANDIDATE")],
    baseline: Annotated[str | Path, Typed("BASELINE", "--against")],
    data: str,
    *,
    max_drop: Annotated[float | Amount | None, Typed("LOSS", read=parse_drop)] = None,
    max_slowdown: Annotated[float | None, Typed("SHARE", read=parse_tolerance)] = None,
    trial: Annotated[int | None, Typed("TRIAL", "--trial")] = None,
    against_trial: Annotated[int | None, Typed("TRIAL")] = None,
    reference: Annotated[Path | None, Typed("FILE")] = None,
    processes: Annotated[int, Typed("N")] = PROCESSES,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: Events | None = None,
) -> GateReport:
    """Judge a new engine against a baseline. The exit code is 0 if it passes, 1 if it fails, 3 if it was not judged.

    Nothing is stored.

    Args:
        candidate: The engine to judge: a study, an exported folder, an ONNX file or a TensorRT plan.
        baseline: The engine to compare with: a study, an exported folder, an ONNX file or a TensorRT plan.
        data: samples that both are scored on, in any form that a search takes.
        max_drop: Largest allowed loss of accuracy against the baseline, for example 1% or 0.01.
        max_slowdown: Largest allowed increase of the latency against the baseline, for example 3%.
        trial: Number of the trial, if the candidate is a study. [default: its best]
        against_trial: Number of the trial, if the baseline is a study.
        reference: Engine of the float model. Metrics that compare outputs with it need this option.
        processes: How many fresh processes measure the latencies.
        changes: `metric`, `decode`, `preprocess`, `batch`, `backend`, `device`, `threads`.
        storage, target: of studies; None for the default database and the study's first target.

    Raises:
        InputError: an engine, the data, the metric or a limit cannot be used, or a side is of another target.
        EvaluatorError: the evaluator process dies.
    """
    from studies.gate.gate import GateInputs, run_gate
    from studies.gate.side import WantedSide, find_side
    from studies.store.store import default_url

    if not data:
        raise ConfigError(
            "gating: expected --data with samples to score both engines on, but it is missing. Add --data DATA."
        )
    limits = GateLimits(max_drop, max_slowdown, processes)
    check_limits(limits)
    if reference is not None and not reference.is_file():
        raise ConfigError(f"--reference {reference}: there is no such file. Name an engine file of the float model.")
    url = storage or default_url()
    wanted = (
        WantedSide(str(candidate), "CANDIDATE", trial, "--trial"),
        WantedSide(str(baseline), "--against", against_trial, "--against-trial"),
    )
    config = change_config(SearchConfig(model="gate", data=data), changes)
    listener = events or Quiet()
    sides = [find_side(each, url, target, config.backend, listener) for each in wanted]
    inputs = GateInputs(
        candidate=sides[0],
        baseline=sides[1],
        reference=None if reference is None else reference.absolute(),
        config=config,
        limits=limits,
    )
    return run_gate(inputs, listener)


def _written_to(doing: str) -> Callable[[str, str], Path]:
    """Reads the path of a file that can be written; before an engine is measured for it."""

    def read(text: str, option: str) -> Path:
        check_file(Path(text), doing)
        return Path(text)

    return read


def _write_gate(report: GateReport, junit: Path | None, markdown: Path | None) -> None:
    """After the verdict is told: a disk that is full by now does not hide it."""
    from studies.gate.files import junit_text, markdown_text

    for file, text in ((junit, junit_text), (markdown, markdown_text)):
        if file is not None:
            file.write_text(text(report), encoding="utf-8")


@prints(
    gate,
    json=lambda report, **_: report.to_json(),
    write=_write_gate,
    exit_code=lambda report: {"holds": 0, "fails": 1, "not judged": 3}[report.verdict.value],
)
def _print_gate(
    report: GateReport,
    *,
    junit: Annotated[Path | None, Typed("FILE", read=_written_to("writing JUnit XML to"))] = None,
    markdown: Annotated[Path | None, Typed("FILE", read=_written_to("writing a summary to"))] = None,
) -> None:
    """Print the verdict of a gate.

    Args:
        junit: File to write the result to as JUnit XML.
        markdown: File to write a summary to, in Markdown.
    """
    from bitfront.printing.output import out, print_table, say

    say(report.headline())
    out.print()
    print_table(list(report.rows()), ("check", "verdict", "estimate", "bounds", "limit", "smallest_detectable"))
    out.print()
    for line in report.sentences():
        say(line)
