"""Write the chosen engine with what belongs to it, and prove that what was written works."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration import cache as calibration_cache
from evaluators.measure.latency_scale import scaled
from evaluators.process.keeper import ProcessDiedError
from search.errors import ArtifactError, ConfigError, EvaluatorError
from search.values import Assignment, Ranges
from studies.export import deploy
from studies.export.choosing import chosen_row
from studies.export.manifest import manifest
from studies.judging.picks import MOST_IN_LINE
from studies.judging.standing import Standing
from studies.run import rebuild
from studies.run.finalists import confirm, engine_of
from studies.run.work import Work

MODEL, PLAN, RANGES, MANIFEST, TRTEXEC = "model.onnx", "model.plan", "ranges.json", "manifest.json", "trtexec.txt"
_TRIES = 3
_ROUNDS = 40
_FAR_OFF = 3  # tie bands from what the study measured, after which it is told
_NARROWEST_BAND = 0.01  # of a study that ended before it measured its own


@dataclass(frozen=True)
class Exported:
    """What was written, and whether the limits hold on the final split (None where there are none).

    `warning` says that the latency check failed, which leaves the export in place; empty where it held.
    """

    folder: Path
    trial: int
    manifest: dict[str, Any]
    holds: bool | None
    notes: tuple[str, ...]
    warning: str = ""


@dataclass(frozen=True)
class Request:
    """What is to be exported, and how.

    Attributes:
        trial: number of the chosen trial.
        pick: how it was chosen, for the manifest: `best`, `accurate`, `fast`, `knee` or `trial 17`.
        options: of the backend that builds exports.
        triton: name of a Triton model to write as well.
        latency_tolerance: how far the latency of what was written may be from that of the engine that was measured,
            relative; None for the study's tie band, at least 1 %.
    """

    trial: int
    pick: str
    options: Mapping[str, Any]
    triton: str | None = None
    latency_tolerance: float | None = None


@dataclass(frozen=True)
class _Chosen:
    """The evaluation that is exported; `row` is its place in `now`."""

    now: Standing
    row: int
    engine: Path
    assignment: Assignment


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something or cannot be written; creates nothing.

    Raises:
        ConfigError: it is a file, not empty, or not writable.
    """
    advice = "Name a new or empty folder with --out."
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: it is a file. {advice}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--out {folder}: the folder is not empty. {advice}")
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"--out {folder}: {parent} is no folder that can be written. {advice}")


def write(work: Work, now: Standing, row: int, request: Request, folder: Path) -> Exported:
    """Export one evaluation: engine, its source, ranges and manifest, checked after writing.

    What does not tie in latency with the engine that was measured is kept: its outputs are right, and a busy device is
    the likely reason. `Exported.warning` and the manifest's `latency_check` say so.

    Raises:
        ArtifactError: what was written gives other outputs than the engine that was measured, or the folder cannot be
            written; nothing stays behind.
    """
    final = rebuild.at_final_level(work, request.options)
    if final is work and now.fails_final[row]:
        raise _not_finite(request.trial)
    number, note = rebuild.made_again(final, now, row, other_level=final is not work)
    if note:
        work.progress.note(note)
    chosen = _confirmed(final, number, request.trial)
    found = manifest(final, chosen.now, chosen.row, request.trial, request.pick, chosen.engine)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise ArtifactError(f"exporting to {folder}: {error}.") from error
    try:
        _fill(staging, final, chosen, request)
        _check_outputs(final, chosen.engine, staging / final.bench.engine_file)
        found["check"] = {"outputs": "equal"}
        found["latency_check"] = _check_latency(
            final, chosen, staging / final.bench.engine_file, request.latency_tolerance
        )
        _write_manifest(staging, found)
        staging.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except OSError as error:
        raise ArtifactError(f"exporting to {folder}: {error}. Make room and export again.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    notes, warning = (note,) if note else (), _latency_warning(found["latency_check"])
    return Exported(folder, request.trial, found, found["final"]["limits_hold"], notes, warning)


def confirmed_pick(work: Work, now: Standing, pick: str) -> tuple[Standing, int]:
    """The row of a pick after its candidates were scored on the final split, one after the other, until one stands.

    Limits that were changed since the search make picks of what nobody has looked at there. At most as many are
    looked at as stand in line for `best`.

    Raises:
        StudyError: nothing is left that keeps the limits.
    """
    for _ in range(MOST_IN_LINE):
        row = chosen_row(now, pick, None)
        if now.looked_at(row):
            break
        confirm(work, now, [row])
        now = work.ledger.standing()
    return now, chosen_row(now, pick, None)


def _confirmed(work: Work, number: int, trial: int) -> _Chosen:
    """The evaluation, measured again and scored on the final split where that was not done yet."""
    now, row = _place(work, number)
    with work.ledger.artifacts.open(str(now.table.artifact[row])):
        pass  # it is what was measured, else this raises
    if now.final_of(row) is None and not now.fails_final[row]:
        confirm(work, now, [row])
        now, row = _place(work, number)
    if now.fails_final[row]:
        raise _not_finite(trial)
    return _Chosen(now, row, engine_of(work, now, row), work.ledger.store.load(number).evaluation.assignment)


def _not_finite(trial: int) -> ArtifactError:
    return ArtifactError(
        f"exporting trial {trial}: its outputs on the final data are not finite, so it cannot be trusted. Choose "
        "another with --trial."
    )


def _place(work: Work, number: int) -> tuple[Standing, int]:
    now = work.ledger.standing(exports=True)
    return now, int(np.flatnonzero(now.table.id == number)[0])


# -- files -------------------------------------------------------------------------------------------------------------


def _fill(staging: Path, work: Work, chosen: _Chosen, request: Request) -> None:
    shutil.copyfile(chosen.engine, staging / work.bench.engine_file)
    if work.bench.engine_file != MODEL:  # else the engine is the ONNX file that it was built from
        _ask(work, "export_onnx", assignment=chosen.assignment, out=str(staging / MODEL))
    _write_ranges(staging, work)
    timing = bool(_ask(work, "export_timing_cache", out=str(staging / deploy.TIMING)))
    if work.bench.engine_file == PLAN:
        text = deploy.trtexec_text(_plan(work, chosen, timing))
        (staging / TRTEXEC).write_text(text, encoding="utf-8")
    if request.triton is not None:
        types = _ask(work, "tensor_types", engine=str(staging / work.bench.engine_file))
        _write_triton(staging, work, request.triton, types)


def _write_manifest(staging: Path, found: dict[str, Any]) -> None:
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    found["files"] = {path.relative_to(staging).as_posix(): _sha256(path) for path in files}
    (staging / MANIFEST).write_text(json.dumps(found, indent=2, ensure_ascii=False), encoding="utf-8")


def _write_ranges(staging: Path, work: Work) -> None:
    ranges = json.loads(work.ledger.artifacts.read_bytes(work.ledger.target.ranges_digest or ""))
    (staging / RANGES).write_text(json.dumps(ranges, indent=1), encoding="utf-8")
    version = work.ledger.target.target.versions.get("tensorrt", calibration_cache.DEFAULT_VERSION)
    text = calibration_cache.write(Ranges.from_json(ranges), version)
    (staging / deploy.CALIBRATION).write_text(text, encoding="utf-8", newline="\n")


def _plan(work: Work, chosen: _Chosen, timing: bool) -> deploy.Plan:
    groups = work.ledger.store.groups(work.ledger.study.id)
    return deploy.Plan(
        version=work.ledger.target.target.versions["tensorrt"],
        knobs=work.ledger.knobs,
        layers={anchor: chosen.assignment[group.id] for group in groups for anchor in group.anchors},
        profiles=work.problem.model.profiles,
        plugins=work.problem.config.plugins,
        timing_cache=timing,
    )


def _write_triton(staging: Path, work: Work, name: str, types: Mapping[str, str]) -> None:
    versions = work.ledger.target.target.versions
    gpu = work.bench.engine_file == PLAN or versions.get("provider") == "cuda"
    entry = staging / "triton" / name
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text(
        deploy.triton_config(name, work.bench.engine_file, work.problem.model, types, gpu=gpu), encoding="utf-8"
    )
    source, target = staging / work.bench.engine_file, entry / "1" / work.bench.engine_file
    try:
        os.link(source, target)
    except OSError:  # file systems without hard links
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_outputs(work: Work, measured: Path, written: Path) -> None:
    """Load what was written in a fresh process and compare its outputs bit for bit with the measured engine's."""
    outputs = []
    for path in (measured, written):
        work.bench.keeper.close()
        outputs.append(_ask(work, "check_outputs", engine=str(path)))
    names = dict.fromkeys([*outputs[0], *outputs[1]])
    different = [name for name in names if not _identical(outputs[0].get(name), outputs[1].get(name))]
    if different:
        raise ArtifactError(
            f"checking the exported engine: outputs {', '.join(different)} are not those of the engine that was "
            "measured. The export was removed; this is a bug or a broken disk."
        )


def _identical(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    """Whether two arrays have one type, one shape and the same bits: 0.0 is not -0.0, a NaN is itself."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "OSU":
        return bool(np.all(one == other))
    return one.tobytes() == other.tobytes()


def _check_latency(work: Work, chosen: _Chosen, written: Path, asked: float | None = None) -> dict[str, Any]:
    """Time what was written beside what was measured, until they tie, in a few tries.

    Latencies are not what the study measured, not even as ratios to FP32: 0.5 to 1.0 of it on two busy cores, and on an
    H200 of its own, where the tie band was 1 %, those of kept plans timed again later had moved by up to 4 %. But two
    equal engines that run in turn are equally late.

    Args:
        asked: the relative tolerance that was asked for; None for the default.

    Returns:
        What the manifest says of it.
    """
    allowed = tolerance(chosen.now) if asked is None else asked
    ratios: list[float] = []
    warnings: list[str] = []
    while not ratios or (abs(ratios[-1] - 1) > allowed and len(ratios) < _TRIES):
        if ratios:
            work.bench.keeper.close()  # a fresh process each: where in memory an engine lies may be bad luck
        params = {"engine": str(written), "measured": str(chosen.engine), "rounds": _ROUNDS}
        times = _ask(work, "compare_latency", **params)
        ratios.append(float(times["engine"] / times["measured"]))
        warnings += [f"try {len(ratios)}: {warning}" for warning in times["warnings"]]
    now_ms, measured_ms = _comparable(chosen.now, times), float(chosen.now.latency_ms[chosen.row])
    if abs(now_ms / measured_ms - 1) > _FAR_OFF * allowed:
        work.progress.note(
            f"the engine takes {now_ms:.4g} ms now, the study measured {measured_ms:.4g} ms: the device is busy, or "
            "its clocks have changed"
        )
    return {
        "holds": abs(ratios[-1] - 1) <= allowed,
        "tolerance": allowed,
        "latency_ratio": ratios[-1],
        "latency_ratios": ratios,
        "tries": len(ratios),
        "latency_now_ms": now_ms,
        "warnings": warnings,
    }


def tolerance(now: Standing) -> float:
    """How far an exported engine's latency may be from the measured one's, relative."""
    return max(now.band, _NARROWEST_BAND)


def _latency_warning(check: Mapping[str, Any]) -> str:
    """What to tell of a latency check that failed; empty where it held."""
    if check["holds"]:
        return ""
    shown = ", ".join(f"{ratio:.3f}" for ratio in check["latency_ratios"])
    return (
        f"the latency check of the exported engine failed: expected the latency of the engine that was measured, run "
        f"in between, within {check['tolerance']:.1%}; in {check['tries']} tries it was {shown} times that. The "
        "outputs are equal, so the export was kept, marked in its manifest. Something else may keep the device busy: "
        "export again when it is quiet, or allow more with --latency-tolerance."
    )


def _comparable(now: Standing, times: Mapping[str, Any]) -> float:
    """The written engine's latency on the study's scale."""
    return float(scaled(times["engine"], times.get("baseline", np.nan), now.table.reference_ms))


def _ask(work: Work, method: str, **params: Any) -> Any:
    try:
        return work.bench.keeper.call(method, params)
    except ProcessDiedError as death:
        raise EvaluatorError(f"exporting, {method.replace('_', ' ')}: {death.told()}.") from death
