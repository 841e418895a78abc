"""The files of an export beside its manifest: the engine, its source, its ranges, and files for other programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx

from evaluators.backends.kind import CALIBRATION_FILE, SOURCE_FILE, TIMING_FILE, Recipe
from evaluators.calibration import cache as calibration_cache
from evaluators.lowering.int8.plan import with_shared_scales
from evaluators.lowering.placement import TENSORRT_WEAK
from search.errors import ArtifactError, ModelError
from search.graph import onnx_file
from search.graph.model import Model
from search.values import Assignment, Precision, Ranges, Target
from studies.export.triton import triton_config
from studies.run.session.backend_values import backend_kind, runs_on_gpu
from studies.run.work import Work
from studies.store.records import ChoiceRecord

RANGES = "ranges.json"


@contextmanager
def staged_folder(out: Path, doing: str) -> Iterator[Path]:
    """A folder to fill, which becomes `out` where the context ends well, and is gone where it does not.

    Args:
        out: a folder that is not there, or empty.
        doing: what is done, for messages: `exporting to out`.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    try:
        out = out.resolve()
        inside = out.exists() and _must_stay(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=out if inside else out.parent, prefix=f".{out.name}-"))
    except OSError as error:
        raise ArtifactError(f"{doing}: {error}.") from error
    try:
        yield staging
        if inside:
            for path in staging.iterdir():
                path.rename(out / path.name)
            return
        staging.chmod(0o755)
        if out.exists():
            out.rmdir()
        staging.rename(out)
    except OSError as error:
        advice = " Free some space and try again." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ArtifactError(f"{doing}: {error}.{advice}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _must_stay(folder: Path) -> bool:
    """Whether an empty folder is filled where it is: a volume, where this process is, or what cannot be replaced."""
    return folder.is_mount() or folder == Path.cwd() or not os.access(folder.parent, os.W_OK)


def fill_folder(folder: Path, work: Work, engine: Path, assignment: Assignment, triton: str | None) -> None:
    """Write an engine and what belongs to it.

    Args:
        engine: the file that was measured.
        triton: name of a Triton model to write as well; None for none.
    """
    line, engine_file = work.bench.keeper.ask("writing the engine and its source"), work.bench.engine_file
    kind = backend_kind(work.problem.config)
    kind.copy_engine(engine, folder / engine_file)
    if engine_file != SOURCE_FILE:  # else the engine is the ONNX file that it was built from
        line.builds.write_source(assignment, folder / SOURCE_FILE)
    write_ranges(
        folder, work.ledger.ranges().for_mix(assignment), work.ledger.target.target, work.problem.model, assignment
    )
    timing = line.builds.write_timing_cache(folder / TIMING_FILE)
    for name, text in kind.recipe_files(_recipe(work, assignment, timing)).items():
        (folder / name).write_text(text, encoding="utf-8")
    if triton is not None:
        types = line.diagnoses.read_types(folder / engine_file)
        _write_triton(folder, work, triton, types)


def check_onnx(folder: Path) -> None:
    """Refuse to call an export done whose ONNX files are not valid; ArtifactError names what the checker says."""
    try:
        for path in folder.glob("*.onnx"):
            onnx_file.check(onnx.load(str(path), load_external_data=False), path.name)
    except ModelError as error:
        raise ArtifactError(f"exporting: {error}") from error


def write_ranges(folder: Path, ranges: Ranges, target: Target, model: Model, assignment: Assignment) -> None:
    """Write ranges as JSON, with what recovery changed, and as TensorRT's calibration cache.

    In the cache the tensors around a Resize, and those of a Concat, have one range, as a builder has to be told.
    """
    (folder / RANGES).write_text(json.dumps(ranges.to_json(), indent=1), encoding="utf-8")
    version = target.versions.get("tensorrt", calibration_cache.DEFAULT_VERSION)
    text = calibration_cache.write(with_shared_scales(model, assignment, TENSORRT_WEAK, ranges), version)
    (folder / CALIBRATION_FILE).write_text(text, encoding="utf-8", newline="\n")


def _recipe(work: Work, assignment: Assignment, timing: bool) -> Recipe:
    job = work.bench.keeper.job
    groups = work.ledger.store.studies.groups(work.ledger.study.id)
    return Recipe(
        versions=work.ledger.target.target.versions,
        knobs=work.ledger.knobs,
        layers={anchor: assignment[group.id] for group in groups for anchor in group.anchors},
        options=job.options,
        profiles=work.problem.model.profiles,
        inputs=work.problem.model.inputs,
        device=job.device or backend_kind(work.problem.config).default_device,
        timing_cache=timing,
    )


def _write_triton(folder: Path, work: Work, name: str, types: Mapping[str, str]) -> None:
    engine_file, used = work.bench.engine_file, work.problem.config
    entry = folder / "triton" / name
    (entry / "1").mkdir(parents=True)
    platform = backend_kind(used).triton_platform
    config = triton_config(name, platform, work.problem.model, types, gpu=runs_on_gpu(used))
    (entry / "config.pbtxt").write_text(config, encoding="utf-8")
    source, target = folder / engine_file, entry / "1" / engine_file
    try:
        os.link(source, target)
    except OSError:  # file systems without hard links
        shutil.copyfile(source, target)
    weights = onnx_file.weights_beside(source)
    if weights.exists():  # ONNX opens no weights that have a second name
        shutil.copyfile(weights, onnx_file.weights_beside(target))


_INFERENCES = 20


def write_layer_files(folder: Path, work: Work, engine: Path, assignment: Assignment) -> None:
    """Write both files; none if the backend tells no layers.

    Args:
        engine: the file that was written.

    Raises:
        EvaluatorError: it cannot be loaded or run here.
    """
    choices = work.ledger.store.spaces.choices(work.ledger.target.id)
    reasons = find_reasons(choices, assignment)
    work.bench.keeper.ask("reading the layers").diagnoses.write_layers(engine, folder, reasons, _INFERENCES)


def find_reasons(choices: Iterable[ChoiceRecord], assignment: Assignment) -> dict[str, str]:
    """Group id → why the assignment does not ask for INT8; groups that it asks for in INT8 have none."""
    int8 = {choice.group: choice for choice in choices if choice.precision.calibrated}
    return {
        group: _reason(int8.get(group), precision) for group, precision in assignment.items() if not precision.quantized
    }


def _reason(int8: ChoiceRecord | None, precision: Precision) -> str:
    if int8 is None:
        return "it was never offered in INT8: the target does not run it"
    if not int8.offered:
        return f"it was never offered in INT8: {int8.reason}"
    if not int8.buildable:
        return "the engine's builder refuses it in INT8"
    return f"the exported mix asks for {precision.label} here"
