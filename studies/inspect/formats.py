"""Every format that this machine offers, built, audited, timed and compared with FP32 on small networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evaluators.backends.kind import BackendKind, Machine
from search.errors import BitfrontError
from search.space.choices import Space
from search.values import REFERENCE, Answer, Precision
from studies import environment
from studies.events import Events
from studies.inspect.format_networks import NETWORKS, write_network
from studies.inspect.mix.evaluate import MeasuredEngines
from studies.inspect.mix.report import EngineResult
from studies.options.config import SearchConfig
from studies.options.read_options import check_config
from studies.run.session.setup import Checked, adopt_ranges, calibrate, check_inputs

COLUMNS = (
    *("backend", "network", "format", "layers", "obeyed", "opaque"),
    *("latency_ms", "speedup", "sqnr_db", "bytes", "why"),
)


@dataclass(frozen=True)
class FormatReport:
    """What was measured, and where.

    Attributes:
        machine: its versions, processor and GPUs, without names of hosts and users.
        targets: a row for each backend and device that could be opened.
        rows: one for each backend, network and format. `layers` were asked for it; `obeyed` run in it, `opaque` do not
            tell. `speedup` is against FP32 of the same backend.
        failed: one for each backend that could not be measured, with the reason.
    """

    machine: dict[str, Any]
    targets: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    failed: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def measure_formats(kinds: Sequence[BackendKind], machine: Machine, events: Events) -> FormatReport:
    """Measure the formats of these backends on their devices, one after the other.

    A format that is not built, or not obeyed, is a row like any other.
    """
    report = FormatReport(environment.collect(), [], [], [])
    for kind in kinds:
        for device in kind.devices(machine) or (kind.default_device,):
            where = {"backend": kind.name, "device": device}
            try:
                for name in NETWORKS:
                    for row in _measure_network(kind, device, name, report.targets, events):
                        report.rows.append({**where, "network": name, **row})
            except BitfrontError as error:
                report.failed.append({**where, "why": str(error)})
    return report


def _measure_network(
    kind: BackendKind, device: str, name: str, targets: list[dict[str, Any]], events: Events
) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        model, data = write_network(name, Path(folder))
        values = {"backend": kind.name, "device": device, "metric": "sqnr", "recover": "none"}
        config = check_config(SearchConfig(str(model), str(data)).with_values(values))
        config = config.with_values({"timing_cache": "none"})  # it would lie beside a study's database
        with check_inputs(config) as good:
            if good.target.to_json() not in targets:
                targets.append(good.target.to_json())
            events.note(f"{name} on {kind.name} ({good.target.device})")
            yield from _measure(good, events)


def _measure(good: Checked, events: Events) -> Iterator[dict[str, Any]]:
    ranges = calibrate(good, "minmax")
    adopt_ranges(good.keeper, good.folder, ranges)
    space = good.space_under(ranges)
    engines = MeasuredEngines(good.keeper, good.folder, events)
    offered = {precision: _count_layers(space, precision) for precision in good.capability.precisions}
    for precision in sorted(offered, key=lambda each: each.rank):  # FP32 first: the others are timed beside it
        if offered[precision]:
            engines.measure(precision.label, space.uniform(precision))
    results = engines.score_final()
    for precision, layers in offered.items():
        figures = _figures(results[precision.label], precision) if layers else {"why": _why_not(space, precision)}
        yield {"format": precision.label, "layers": layers, **figures}


def _count_layers(space: Space, precision: Precision) -> int:
    return sum(each is precision for each in space.uniform(precision).values())


def _why_not(space: Space, precision: Precision) -> str:
    """Why no layer is offered a precision, as of the first of them."""
    choices = (choice for each in space.choices.values() for choice in each if choice.precision is precision)
    return next((choice.reason for choice in choices if choice.reason), "")


def _figures(result: EngineResult, precision: Precision) -> dict[str, Any]:
    evaluation, failure = result.evaluation, result.evaluation.failure
    rows = [row for row in evaluation.audit if row.asked is precision]
    sqnr = None if result.final is None or precision is REFERENCE else result.final.value
    return {
        "obeyed": sum(row.answer is Answer.OBEYED for row in rows),
        "opaque": sum(row.answer is Answer.OPAQUE for row in rows),
        "kernels": sorted({row.kernel for row in rows if row.kernel}),
        "latency_ms": None if result.latency is None else result.latency.value_ms,
        "speedup": result.speedup,
        "sqnr_db": sqnr,
        "bytes": evaluation.size_bytes,
        "build_s": evaluation.build_s,
        "notes": [*evaluation.notes, *(() if result.latency is None else result.latency.warnings)],
        "why": None if failure is None else f"{failure.stage.value}: {failure.message}",
    }
