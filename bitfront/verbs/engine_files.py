"""Engine files of any origin: the verbs `inspect` and `gate` as functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evaluators.engine_files import EngineFile, read_engine_file
from search.errors import BitfrontError, ConfigError, TargetError
from studies.events import Events, Quiet
from studies.gate.limits import GateLimits, check_limits
from studies.inspect.engine_report import EngineReport
from studies.options.config import SearchConfig
from studies.options.read_options import change_config
from studies.store.store import default_url

if TYPE_CHECKING:  # it belongs to one verb
    from studies.gate.report import GateReport

NOTHING: Mapping[str, Any] = MappingProxyType({})


def inspect(
    file: str | Path,
    *,
    profile: str | Path | None = None,
    against: str | Path | None = None,
    against_profile: str | Path | None = None,
) -> EngineReport:
    """Read what an engine runs, layer by layer, as `bitfront inspect` does.

    Args:
        file: a TensorRT plan, a layer listing of `trtexec --exportLayerInfo`, or an ONNX file with Q/DQ, with QLinear
            ops or as ONNX Runtime optimized it, or a folder that `bitfront export` wrote.
        profile: times by layer, of `trtexec --exportProfile`.
        against: another such file, to be laid beside it by ONNX node.
        against_profile: its times.

    Raises:
        InputError: a file is missing or none of these.
        TargetError: a plan, and TensorRT or its GPU is not here.
    """
    engine = _read(file, profile)
    return EngineReport(engine, None if against is None else _read(against, against_profile))


def gate(
    candidate: str | Path,
    baseline: str | Path,
    data: str,
    limits: GateLimits,
    *,
    trials: tuple[int | None, int | None] = (None, None),
    reference: str | Path | None = None,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: Events | None = None,
) -> GateReport:
    """Judge a candidate engine against a baseline, as `bitfront gate` does. Nothing is stored.

    Args:
        candidate, baseline: the name of a study, an exported folder, an ONNX file, or a plan.
        data: samples that both are scored on, in any form that a search takes.
        limits: what the candidate may be worse by: `GateLimits(max_drop=0.01, max_slowdown=0.03)`.
        trials: of candidate and baseline, where these are studies; None for the pick `best`.
        reference: engine file that metrics which compare outputs compare with; None for the baseline.
        changes: `metric`, `decode`, `preprocess`, `batch`, `backend`, `device`, `threads`.
        storage, target: of studies; None for the default database and the study's first target.

    Raises:
        InputError: an engine, the data, the metric or a limit cannot be used, or a side is of another target.
        EvaluatorError: the evaluator process dies.
    """
    from studies.gate.gate import GateInputs, run_gate
    from studies.gate.side import Wanted, find_side

    check_limits(limits)
    if reference is not None and not Path(reference).is_file():
        raise ConfigError(f"--reference {reference}: there is no such file. Name an engine file of the float model.")
    url = storage or default_url()
    wanted = (
        Wanted(str(candidate), "CANDIDATE", trials[0], "--trial"),
        Wanted(str(baseline), "--against", trials[1], "--against-trial"),
    )
    config = change_config(SearchConfig(model="gate", data=data), changes)
    told = events or Quiet()
    sides = [find_side(each, url, target, config.backend, told) for each in wanted]
    inputs = GateInputs(
        candidate=sides[0],
        baseline=sides[1],
        reference=None if reference is None else Path(reference).absolute(),
        config=config,
        limits=limits,
    )
    return run_gate(inputs, told)


def _read(file: str | Path, profile: str | Path | None) -> EngineFile:
    return read_engine_file(Path(file), profile=None if profile is None else Path(profile), inspect_plan=_inspect_plan)


def _plugins_beside(path: Path) -> list[str]:
    """The plugin libraries that the manifest beside an exported plan names."""
    try:
        found = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))["plugins"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no export, or one of before they were named
    return [library for library in found if isinstance(library, str)]


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
