"""The files of a TensorRT export, with the command of trtexec that comes closest to the measured build; running it."""

from __future__ import annotations

import json
import os
import re
import shlex
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from evaluators.backends.kind import CALIBRATION_FILE, SOURCE_FILE, TIMING_FILE, ExportedRun, Recipe
from evaluators.backends.nvidia.discovery import cuda_index
from evaluators.forks import refuse_forked
from search.values import REFERENCE, is_quantized

TRTEXEC_FILE = "trtexec.txt"
# What runs an export, as the report shows it.
DEPLOYMENT = """import tensorrt as trt

logger = trt.Logger(trt.Logger.WARNING)
with open("{engine}", "rb") as file:
    engine = trt.Runtime(logger).deserialize_cuda_engine(file.read())
context = engine.create_execution_context()
# Set the shape and the address of every tensor, then run: context.execute_async_v3(stream)"""
_REBUILT_FILE = "rebuilt.plan"
_MIB = 2**20
_WITHOUT_PRECISION_FLAGS = 11
_WITH_INSTANCENORM_FLAG = 10
# trtexec splits its list at commas, reads names in quotes, and takes * for a pattern.
_INEXPRESSIBLE = re.compile(r"[,'*\r\n]")


def trtexec_text(recipe: Recipe) -> str:
    """`trtexec.txt`: the command that comes nearest to how a plan was built, and what it leaves open."""
    arguments = [*_model_arguments(recipe), *_knob_arguments(recipe), *_shape_arguments(recipe)]
    command = " \\\n    ".join(["trtexec", *(shlex.quote(argument) for argument in arguments)])
    remarks = [
        f"Builds {SOURCE_FILE} again with trtexec of TensorRT {recipe.versions['tensorrt']}, in this folder, as "
        "closely "
        "as trtexec allows.",
        "Two builds of one network may use different kernels. The plan that was measured is model.plan.",
        *_remarks(recipe),
    ]
    return "".join(f"# {remark}\n" for remark in remarks) + f"\n{command}\n"


def _model_arguments(recipe: Recipe) -> list[str]:
    arguments = [f"--onnx={SOURCE_FILE}", f"--saveEngine={_REBUILT_FILE}"]
    if _is_strong(recipe):  # the types stand in the file
        return arguments + (["--stronglyTyped"] if _major(recipe) < _WITHOUT_PRECISION_FLAGS else [])
    used = set(recipe.layers.values())
    arguments += [f"--{each.label}" for each in sorted(used) if each is not REFERENCE]
    arguments += [f"--calib={CALIBRATION_FILE}"] if is_quantized(recipe.layers) else []
    named = [f"{name}:{p.label}" for name, p in recipe.layers.items() if not _INEXPRESSIBLE.search(name)]
    return [*arguments, "--precisionConstraints=obey", *([f"--layerPrecisions={','.join(named)}"] if named else [])]


def _knob_arguments(recipe: Recipe) -> list[str]:
    knobs = recipe.knobs
    workspace = int(knobs.get("workspace_bytes", 0)) // _MIB
    arguments = [f"--memPoolSize=workspace:{workspace}"] if workspace else []
    arguments += [f"--builderOptimizationLevel={knobs['optimization_level']}"] if "optimization_level" in knobs else []
    arguments += ["--noTF32"] if knobs.get("tf32") == "false" else []
    arguments += ["--sparsity=enable"] if knobs.get("sparsity") == "true" else []
    if knobs.get("native_instancenorm") == "false" and _major(recipe) >= _WITH_INSTANCENORM_FLAG:
        arguments += ["--pluginInstanceNorm"]
    arguments += [f"--staticPlugins={path}" for path in recipe.options.get("plugins", ())]
    arguments += [f"--timingCacheFile={TIMING_FILE}"] if recipe.timing_cache else []
    arguments += ["--profilingVerbosity=detailed"]
    if _major(recipe) < _WITHOUT_PRECISION_FLAGS:  # what latencies here are measured with, and the default from 11 on
        arguments += ["--useCudaGraph", "--useSpinWait", "--noDataTransfers"]
    return arguments


def _shape_arguments(recipe: Recipe) -> list[str]:
    known = {name: shapes for name, shapes in recipe.profiles.items() if not _INEXPRESSIBLE.search(name)}
    if not known:
        return []
    low, best, high = (
        ",".join(f"{name}:{'x'.join(map(str, shapes[place]))}" for name, shapes in known.items()) for place in range(3)
    )
    return [f"--minShapes={low}", f"--optShapes={best}", f"--maxShapes={high}", f"--shapes={best}"]


def _remarks(recipe: Recipe) -> list[str]:
    remarks = []
    lost = [name for name in (*recipe.layers, *recipe.profiles) if _INEXPRESSIBLE.search(name)]
    if lost and not (_is_strong(recipe) and not set(lost) & set(recipe.profiles)):
        shown = ", ".join(json.dumps(name) for name in lost)
        remarks.append(f"NOT EXPRESSED: trtexec does not accept names with a comma, ' or *: {shown}.")
    if not _is_strong(recipe) and is_quantized(recipe.layers):
        remarks.append(
            f"{CALIBRATION_FILE} has the tensors of the ONNX file. TensorRT's own inner tensors have no range in it, "
            "which trtexec warns of."
        )
    if recipe.options.get("plugins", ()):
        remarks.append(
            "--staticPlugins opens a library, as bitfront does first; one that registers nothing by being opened, but "
            "has getCreators or getPluginCreators, takes --dynamicPlugins."
        )
    if _major(recipe) < _WITH_INSTANCENORM_FLAG:
        native = recipe.knobs.get("native_instancenorm") == "true"
        kind = "TensorRT's own layer" if native else "a plugin"
        remarks.append(
            f"InstanceNormalization, where there is any, was built as {kind}, which trtexec has no option for."
        )
    return remarks


def _major(recipe: Recipe) -> int:
    return int(recipe.versions["tensorrt"].split(".")[0])


def _is_strong(recipe: Recipe) -> bool:
    return recipe.knobs.get("typing") == "strong"


def open_export(plan: Path, device: str, plugins: Sequence[str]) -> ExportedRun:
    """Open an exported engine to run it; the device becomes the current GPU of every thread that runs it."""
    from evaluators.backends.tensorrt.device import cudart, make_current
    from evaluators.backends.tensorrt.session import open_plan

    pid = os.getpid()
    session, index = open_plan(plan, device, plugins), cuda_index(device) or 0
    cuda, lock = cudart(), Lock()

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        refuse_forked(plan.parent, pid)
        with lock:
            make_current(cuda, index)
            return session.run(inputs)

    def close() -> None:
        if os.getpid() == pid:
            session.close()

    # As the function goes, what it holds on the device goes too; at the end of the process the driver sees to that.
    weakref.finalize(run, close).atexit = False
    return run
