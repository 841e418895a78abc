"""Commands and code to deploy the best mix: how to export it, and how to run the export."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from studies.judging.standing import Standing
from studies.store import suggestions

_FOLDER = "engine"


@dataclass(frozen=True)
class Deployment:
    """A command for a shell, and a program in Python; `code` is empty for backends that are known by plug-ins alone."""

    command: str
    code: str = ""
    shared: bool = False


def build_deployment(now: Standing, url: str, *, shared: bool) -> Deployment:
    """What exports and runs the recommended mix.

    Args:
        url: of the study's database.
        shared: whether that is a server, whose address and user do not belong into a report.
    """
    words = ("--out", _FOLDER, *now.details.target_option)
    command = suggestions.command("export", now.study.name, *words, storage=None if shared else url)
    return Deployment(command, _code(now), shared)


def _code(now: Standing) -> str:
    target = now.target.target
    inputs = now.study.model.get("inputs", ())
    if target.backend == "onnxruntime":
        cuda = target.versions.get("provider") == "cuda"
        return _onnxruntime_code(inputs, target.options.get("threads", "1"), cuda=cuda)
    if target.backend == "tensorrt":
        return _TENSORRT
    return ""


def _onnxruntime_code(inputs: Any, threads: str, *, cuda: bool) -> str:
    """The session as it was measured: options of `OnnxRuntimeDevice.session_options`."""
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"]
    zeros = [f"    {json.dumps(name)}: np.zeros({tuple(shape)}, np.{dtype})," for name, dtype, shape in inputs]
    return "\n".join(
        [
            "import numpy as np",
            "import onnxruntime as ort",
            "",
            "options = ort.SessionOptions()  # as it was measured",
            f"options.intra_op_num_threads = {threads}",
            "options.inter_op_num_threads = 1",
            f'session = ort.InferenceSession("{_FOLDER}/model.onnx", options, providers={json.dumps(providers)})',
            "inputs = {  # put your samples here",
            *zeros,
            "}",
            "outputs = session.run(None, inputs)",
        ]
    )


_TENSORRT = f"""import tensorrt as trt

logger = trt.Logger(trt.Logger.WARNING)
with open("{_FOLDER}/model.plan", "rb") as file:
    engine = trt.Runtime(logger).deserialize_cuda_engine(file.read())
context = engine.create_execution_context()
# Set the shape and the address of every tensor, then run: context.execute_async_v3(stream)"""
