"""Recovering what a model loses in INT8, without a study."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.errors import ConfigError, StudyError
from search.space.choices import make_space
from search.values import Assignment, Ranges, RecoveryRecord
from studies.events import Events
from studies.export.checks import write_float_model
from studies.export.export import check_folder
from studies.export.folder import staged_folder, write_ranges
from studies.judging.findings.rescue_table import RescueRow, rescue_notes, rescue_rows
from studies.judging.study_lookup import exists
from studies.options.config import SearchConfig
from studies.options.limits import MetricScale
from studies.options.read_options import check_config
from studies.run.session.calibration import recover
from studies.run.session.setup import Checked, calibrate, check_inputs
from studies.store import suggestions

_ROUNDS = 20


@dataclass(frozen=True)
class RecoveredModel:
    """What recovery did to a model.

    Attributes:
        record: every step that was tried.
        rows: of the rescue table.
        notes: what goes with it, one sentence each.
        metric: as a study's row has it.
        folder: where the model and its ranges were written; None if that was not asked for.
    """

    record: RecoveryRecord
    rows: tuple[RescueRow, ...]
    notes: tuple[str, ...]
    metric: Mapping[str, Any]
    folder: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; losses in the metric's unit."""
        return {
            "recovery": self.record.to_json(),
            "table": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
            "metric": dict(self.metric),
            "folder": None if self.folder is None else str(self.folder),
        }


def recover_model(config: SearchConfig, out: Path | None, *, latency: bool, events: Events) -> RecoveredModel:
    """Recover INT8 of a model; see `bitfront.verbs.recover`."""
    config = check_config(config)
    _refuse_study(config)
    if config.recover == "none":
        raise ConfigError("recovering INT8: --recover none leaves nothing to do. Leave the option out, or name steps.")
    if out is not None:
        check_folder(out)
    if "timing-cache" not in config.given:
        config = config.with_values({"timing_cache": "none"})  # nothing stays behind
    with check_inputs(config, events=events) as good:
        plain = calibrate(good, config.calibration)
        recovery = recover(good, plain, config.recover, events)
        plain_ms, recovered_ms = _latencies(good, plain, recovery.ranges) if latency else (None, None)
        if out is not None:
            _adopt(good, recovery.ranges)
            with staged_folder(out, f"writing to {out}") as staging:
                write_float_model(staging, good.keeper, recovery.record)
                write_ranges(staging, recovery.ranges, good.target, good.model, _int8(good, recovery.ranges))
        rows = rescue_rows(recovery.record, plain_ms=plain_ms, recovered_ms=recovered_ms)
        notes = rescue_notes(recovery.record, MetricScale.of(good.metric), final_samples=good.data["final"])
        return RecoveredModel(recovery.record, tuple(rows), tuple(notes), good.metric, out)


def _refuse_study(config: SearchConfig) -> None:
    if not Path(config.model).exists() and exists(config.model, storage=config.storage):
        raise StudyError(
            f"recovering {config.model}: expected an ONNX file, got the name of a study. A study runs recovery when it "
            "is "
            f"made. To continue it: `{suggestions.command('resume', config.model, storage=config.storage)}`."
        )


def _latencies(good: Checked, plain: Ranges, recovered: Ranges) -> tuple[float, float]:
    """Milliseconds of plain and of recovered INT8, timed in turn."""
    engines = {}
    for name, ranges in (("plain", plain), ("recovered", recovered)):
        _adopt(good, ranges)
        engines[name] = good.folder / f"{name}.engine"
        good.keeper.ask(f"building {name} INT8").builds.rebuild(_int8(good, ranges), engines[name])
    timings = good.keeper.ask("timing INT8").timings.time_together(engines, _ROUNDS)
    return timings["plain"].value_ms, timings["recovered"].value_ms


def _int8(good: Checked, ranges: Ranges) -> Assignment:
    """INT8 wherever the target offers it."""
    return make_space(good.model, good.capability, ranges, good.config.keep).coarsest


def _adopt(good: Checked, ranges: Ranges) -> None:
    path = Path(tempfile.mkdtemp(dir=good.folder)) / "ranges.json"
    path.write_text(json.dumps(ranges.to_json()), encoding="utf-8")
    good.keeper.adopt(ranges=str(path))
