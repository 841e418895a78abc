"""The command that builds an exported plan again with TensorRT's own program trtexec."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.values import Precision

CALIBRATION, TIMING, SOURCE, REBUILT = "calibration.cache", "timing.cache", "model.onnx", "rebuilt.plan"
_MIB = 2**20
_WITHOUT_PRECISION_FLAGS = 11
_WITH_INSTANCENORM_FLAG = 10
# trtexec splits its list at commas, reads names in quotes, and takes * for a pattern.
_INEXPRESSIBLE = re.compile(r"[,'*\r\n]")


@dataclass(frozen=True)
class Plan:
    """What a plan was built from.

    Attributes:
        version: of TensorRT.
        knobs: of its builder, as they stand in an evaluation's digest.
        layers: ONNX node of each weighted op → precision.
        profiles: MIN, OPT, MAX of dynamic inputs.
        plugins: paths of plugin libraries.
        timing_cache: whether `timing.cache` lies beside it.
    """

    version: str
    knobs: Mapping[str, str]
    layers: Mapping[str, Precision]
    profiles: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    plugins: Sequence[str] = ()
    timing_cache: bool = False

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def strong(self) -> bool:
        return self.knobs.get("typing") == "strong"


def trtexec_text(plan: Plan) -> str:
    """`trtexec.txt`: the command that comes nearest to how a plan was built, and what it leaves open."""
    arguments = [*_model_arguments(plan), *_knob_arguments(plan), *_shape_arguments(plan)]
    command = " \\\n    ".join(["trtexec", *(shlex.quote(argument) for argument in arguments)])
    remarks = [
        f"Builds {SOURCE} again with trtexec of TensorRT {plan.version}, in this folder, as near as it comes to it.",
        "Two builds of one network may choose other kernels: the plan that was measured is model.plan.",
        *_remarks(plan),
    ]
    return "".join(f"# {remark}\n" for remark in remarks) + f"\n{command}\n"


def _model_arguments(plan: Plan) -> list[str]:
    arguments = [f"--onnx={SOURCE}", f"--saveEngine={REBUILT}"]
    if plan.strong:  # the types stand in the file
        return arguments + (["--stronglyTyped"] if plan.major < _WITHOUT_PRECISION_FLAGS else [])
    used = set(plan.layers.values())
    arguments += ["--fp16"] if Precision.FP16 in used else []
    arguments += ["--int8", f"--calib={CALIBRATION}"] if Precision.INT8 in used else []
    named = [f"{name}:{p.label}" for name, p in plan.layers.items() if not _INEXPRESSIBLE.search(name)]
    return [*arguments, "--precisionConstraints=obey", *([f"--layerPrecisions={','.join(named)}"] if named else [])]


def _knob_arguments(plan: Plan) -> list[str]:
    knobs = plan.knobs
    workspace = int(knobs.get("workspace_bytes", 0)) // _MIB
    arguments = [f"--memPoolSize=workspace:{workspace}"] if workspace else []
    arguments += [f"--builderOptimizationLevel={knobs['optimization_level']}"] if "optimization_level" in knobs else []
    arguments += ["--noTF32"] if knobs.get("tf32") == "false" else []
    arguments += ["--sparsity=enable"] if knobs.get("sparsity") == "true" else []
    if knobs.get("native_instancenorm") == "false" and plan.major >= _WITH_INSTANCENORM_FLAG:
        arguments += ["--pluginInstanceNorm"]
    arguments += [f"--staticPlugins={path}" for path in plan.plugins]
    arguments += [f"--timingCacheFile={TIMING}"] if plan.timing_cache else []
    arguments += ["--profilingVerbosity=detailed"]
    if plan.major < _WITHOUT_PRECISION_FLAGS:  # what latencies here are measured with, and the default from 11 on
        arguments += ["--useCudaGraph", "--useSpinWait", "--noDataTransfers"]
    return arguments


def _shape_arguments(plan: Plan) -> list[str]:
    known = {name: shapes for name, shapes in plan.profiles.items() if not _INEXPRESSIBLE.search(name)}
    if not known:
        return []
    low, best, high = (
        ",".join(f"{name}:{'x'.join(map(str, shapes[place]))}" for name, shapes in known.items()) for place in range(3)
    )
    return [f"--minShapes={low}", f"--optShapes={best}", f"--maxShapes={high}", f"--shapes={best}"]


def _remarks(plan: Plan) -> list[str]:
    remarks = []
    lost = [name for name in (*plan.layers, *plan.profiles) if _INEXPRESSIBLE.search(name)]
    if lost and not (plan.strong and not set(lost) & set(plan.profiles)):
        shown = ", ".join(json.dumps(name) for name in lost)
        remarks.append(f"NOT EXPRESSED: trtexec cannot be told of names with a comma, ' or *: {shown}.")
    if not plan.strong and Precision.INT8 in plan.layers.values():
        remarks.append(
            f"{CALIBRATION} names the tensors of the ONNX file; TensorRT's own inner tensors have no range in it, "
            "which trtexec warns of."
        )
    if plan.plugins:
        remarks.append(
            "--staticPlugins opens a library, as bitfront does first; one that registers nothing by being opened, but "
            "has getCreators or getPluginCreators, takes --dynamicPlugins."
        )
    if plan.major < _WITH_INSTANCENORM_FLAG:
        native = plan.knobs.get("native_instancenorm") == "true"
        kind = "TensorRT's own layer" if native else "a plugin"
        remarks.append(f"InstanceNormalization, where there is any, was built as {kind}; trtexec cannot be told so.")
    return remarks
