"""What an export of OpenVINO is run with: its script, the code in a report, and the engine of a guard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from evaluators.backends.kind import SOURCE_FILE, ExportedRun, Recipe
from evaluators.backends.openvino.device import OpenVinoDevice, engine_settings
from evaluators.backends.processor import clock_of
from evaluators.backends.run_script import run_script
from evaluators.forks import RenewedRun
from search.values import Target

_FORKED = ("by OpenVINO", "its threads are in no forked process, where compiling waits for them")


def script_text(recipe: Recipe) -> str:
    """`run.py` of an export."""
    threads = int(recipe.options.get("threads", 1))
    settings = {"ENGINE": SOURCE_FILE, "PROPERTIES": engine_settings(threads), "CLOCK": clock_of(threads)}
    return run_script("openvino_engine.py", "openvino and numpy", settings, recipe.inputs, recipe.profiles)


def deployment_code(target: Target, inputs: Any, folder: str) -> str:
    """The engine as it was measured."""
    settings = engine_settings(int(target.options.get("threads", 1)))
    zeros = [f"    {json.dumps(name)}: np.zeros({tuple(shape)}, np.{dtype})," for name, dtype, shape in inputs]
    return "\n".join(
        [
            "import numpy as np",
            "import openvino as ov",
            "",
            "properties = {  # as it was measured",
            *[
                f"    {json.dumps(name)}: {json.dumps(value) if isinstance(value, str) else value},"
                for name, value in settings.items()
            ],
            "}",
            "# If INT8 products of few rows follow each other, SNIPPETS_MODE has to be DISABLE: run.py says why.",
            f'engine = ov.Core().compile_model("{folder}/{SOURCE_FILE}", "CPU", properties)',
            "request = engine.create_infer_request()",
            "inputs = {  # put your samples here",
            *zeros,
            "}",
            "outputs = request.infer(inputs)",
        ]
    )


def open_export(folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None) -> ExportedRun:
    """Open an exported engine to run it, as `BackendKind.open_export` says."""
    from evaluators.backends.openvino.session import OpenVinoSession

    name, wanted = device or "cpu", threads or int(manifest["target"]["options"].get("threads", 1))

    def open_one() -> ExportedRun:
        opened, running = OpenVinoSession(OpenVinoDevice(name, wanted), folder / SOURCE_FILE), Lock()

        def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
            with running:  # a request runs one inference at a time
                return opened.run(inputs)

        return run

    return RenewedRun(open_one, folder, _FORKED)
