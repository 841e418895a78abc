"""What an export of ONNX Runtime is run with: its script, the code in a report, and the engine of a guard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluators.backends.kind import SOURCE_FILE, ExportedRun, Recipe
from evaluators.backends.onnxruntime.device import (
    SESSION_ENTRIES,
    OnnxRuntimeDevice,
    clock_of,
    provider_settings,
    session_settings,
)
from evaluators.backends.run_script import run_script
from evaluators.forks import GPU, RenewedRun
from search.values import Target


def script_text(recipe: Recipe, index: int | None, entries: Mapping[str, str]) -> str:
    """`run.py` of an export.

    Args:
        index: of the GPU that it was measured on; None for the processor.
        entries: of its session's configuration.
    """
    threads = int(recipe.options.get("threads", 1))
    settings = {
        "ENGINE": SOURCE_FILE,
        "PROVIDERS": provider_settings(None if index is None else 0),  # its GPU has another number elsewhere
        "SESSION_OPTIONS": session_settings(threads),
        "SESSION_ENTRIES": entries,
        "CLOCK": clock_of(index, threads),
    }
    needs = "onnxruntime and numpy" if index is None else "onnxruntime-gpu and numpy"
    return run_script("onnxruntime_engine.py", needs, settings, recipe.inputs, recipe.profiles)


def deployment_code(target: Target, inputs: Any, folder: str, entries: Mapping[str, str]) -> str:
    """The session as it was measured: options of `OnnxRuntimeDevice.session_options`."""
    other = [entry for entry in entries.items() if entry not in SESSION_ENTRIES.items()]
    cuda = target.versions.get("provider") == "cuda"
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"]
    zeros = [f"    {json.dumps(name)}: np.zeros({tuple(shape)}, np.{dtype})," for name, dtype, shape in inputs]
    return "\n".join(
        [
            "import numpy as np",
            "import onnxruntime as ort",
            "",
            "options = ort.SessionOptions()  # as it was measured",
            f"options.intra_op_num_threads = {target.options.get('threads', '1')}",
            "options.inter_op_num_threads = 1",
            *[f"options.add_session_config_entry({json.dumps(key)}, {json.dumps(value)})" for key, value in other],
            f'session = ort.InferenceSession("{folder}/{SOURCE_FILE}", options, providers={json.dumps(providers)})',
            "inputs = {  # put your samples here",
            *zeros,
            "}",
            "outputs = session.run(None, inputs)",
        ]
    )


def open_export(
    folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None, entries: Mapping[str, str]
) -> ExportedRun:
    """Open an exported engine to run it, as `BackendKind.open_export` says."""
    from evaluators.backends.onnxruntime.session import meaning_of, open_session

    wanted = threads or int(manifest["target"]["options"].get("threads", 1))
    opened = OnnxRuntimeDevice(device or "cpu", wanted, entries)

    def open_one() -> ExportedRun:
        engine = open_session(opened, folder / SOURCE_FILE, opened.session_options())

        def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return dict(zip(engine.outputs, engine.session.run(engine.outputs, dict(inputs)), strict=True))
            except Exception as error:
                raise meaning_of(error) from error

        return run

    return RenewedRun(open_one, folder, GPU if opened.cuda else None)
