"""Looking into engine files, whoever made them: the verb `inspect` as a function."""

from __future__ import annotations

from pathlib import Path

from evaluators.engine_files import EngineFile, read_engine_file
from search.errors import BitfrontError, TargetError
from studies.inspect.engine_report import EngineReport


def inspect(
    file: str | Path,
    *,
    profile: str | Path | None = None,
    against: str | Path | None = None,
    against_profile: str | Path | None = None,
) -> EngineReport:
    """What an engine runs, layer by layer, as `bitfront inspect`.

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


def _read(file: str | Path, profile: str | Path | None) -> EngineFile:
    return read_engine_file(Path(file), profile=None if profile is None else Path(profile), inspect_plan=_inspect_plan)


def _inspect_plan(path: Path) -> str:
    from evaluators.backends.tensorrt.session import inspect_plan

    try:
        return inspect_plan(path)
    except BitfrontError as error:
        raise TargetError(
            f"inspecting {path}: {error} A plan can be read only with the TensorRT and on the kind of GPU that it was "
            "built for. There, or with `trtexec --loadEngine=… --exportLayerInfo=layers.json`, its layers are written "
            "to a file that can be inspected anywhere."
        ) from error
