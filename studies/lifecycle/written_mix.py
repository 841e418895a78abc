"""A mix that no study measured, of an old plan say, written out for strongly typed networks of TensorRT."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.kind import SOURCE_FILE
from evaluators.calibration import cache
from search.errors import ConfigError, ModelError
from search.graph import onnx_file
from search.graph.model import Model
from search.space.choices import make_space
from search.space.rules import KeepRule
from search.values import REFERENCE, Ranges
from studies.events import Events
from studies.export.explicit import explicit_graph
from studies.export.folder import check_onnx, staged_folder
from studies.inspect.mix.old_plans import is_cache
from studies.inspect.mix.read_mix import TargetMix, read_mix
from studies.options.config import SearchConfig
from studies.options.read_options import check_config
from studies.run.session.setup import check_inputs, load_model

MIX_FILE = "mix.json"


@dataclass(frozen=True)
class WrittenMix:
    """What was written of a mix that no study measured.

    Attributes:
        precision: of each weighted op, by ONNX node.
        notes: which layers run in another precision than was asked for, and why.
    """

    folder: Path
    precision: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        counts = ", ".join(f"{count} {label}" for label, count in Counter(self.precision.values()).most_common())
        return f"wrote {SOURCE_FILE} with {counts} to {self.folder}; neither its latency nor its loss was measured"

    def to_json(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "precision": dict(self.precision), "notes": list(self.notes)}


def export_mix(config: SearchConfig, assign: str, out: Path, events: Events) -> WrittenMix:
    """Write a mix of a model file, of an old plan say, without a study and without TensorRT.

    Args:
        config: the model, its shapes, the calibration cache, and data to calibrate what the cache lacks.
        assign: the mix, as `read_mix` takes it. Where it is a calibration cache, so are the ranges.

    Raises:
        InputError: the model, the data or the mix cannot be used, or a range is missing.
    """
    if is_cache(Path(assign)) and config.calibration_cache is None:
        config = config.with_values({"calibration_cache": assign})
    config = check_config(config, needs_data=False)
    model, ranges = _with_ranges(config, events)
    mix = _read_weak_or_strong(assign, model, config.keep)
    try:
        graph = explicit_graph(model, mix.assignment, ranges)
    except ModelError as error:
        raise ConfigError(
            f"writing the mix: {error} Give a --calibration-cache that has this range, or --data to calibrate on."
        ) from error
    precision = {name: mix.assignment[group.id].label for group in model.groups for name in group.anchors}
    with staged_folder(out, f"exporting to {out}") as staging:
        onnx_file.write_any_size(graph, staging / SOURCE_FILE)
        (staging / MIX_FILE).write_text(json.dumps(precision, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        check_onnx(staging)
    return WrittenMix(out, precision, mix.notes)


def _read_weak_or_strong(assign: str, model: Model, keep: Sequence[KeepRule]) -> TargetMix:
    """The mix as weakly typed networks run it, unless it asks for a format that they do not have.

    A layer that cannot be INT8 there is FP16, and not BF16, which stands nearer to INT8 among all formats.
    """
    every, weak = (shipped_capability("tensorrt", *layers) for layers in ((), ("tensorrt-weak",)))
    mix = read_mix(assign, model.groups, make_space(model, every, None, keep))
    if any(precision is not REFERENCE and not weak.ops.get(precision) for precision in mix.wanted.values()):
        return mix
    return read_mix(assign, model.groups, make_space(model, weak, None, keep))


def _with_ranges(config: SearchConfig, events: Events) -> tuple[Model, Ranges]:
    """The model with ranges of the cache, of the data, or of both."""
    known = None if config.calibration_cache is None else cache.read_file(Path(config.calibration_cache))
    if not config.data:
        return load_model(config), cache.take(known or {}, known or {}, None).ranges
    with check_inputs(config.with_values({"backend": "onnxruntime"}), scored=False, events=events) as good:
        calibration = good.keeper.ask("calibrating").calibrations.calibrate(config.calibration, known)
    for text in calibration.mismatches:
        events.note(f"calibration: {text}")
    return good.model, calibration.ranges
