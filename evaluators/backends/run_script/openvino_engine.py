"""The class `Engine` of `run.py` for OpenVINO. The lines above the mark are not part of the script."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINE = ""
PROPERTIES: dict[str, Any] = {}
CLOCK = ""

# -- part of run.py --

_BEFORE_CODES = ("Convert", "Subtract", "Multiply", "Reshape")  # between a product and the FakeQuantize that it reads


def safe_properties(model: Any, properties: dict[str, Any]) -> dict[str, Any]:
    """The properties, with generated code switched off for a model whose outputs would be wrong with it.

    OpenVINO 2026.4 joins small matrix products that follow each other into one piece of generated code. On processors
    with AVX-512 and VNNI that code is wrong where two of them are in INT8 (at most about 8 rows and 256 columns).
    """
    products = (node for node in model.get_ops() if node.get_type_name() == "MatMul")
    ranks = ((node, node.input(0).get_partial_shape().rank) for node in products)
    flat = [node for node, rank in ranks if rank.is_dynamic or rank.get_length() <= 2]
    return {**properties, "SNIPPETS_MODE": "DISABLE"} if sum(map(_reads_codes, flat)) > 1 else properties


def _reads_codes(product: Any) -> bool:
    before = product.input_value(0).get_node()
    while before.get_type_name() in _BEFORE_CODES:
        before = before.input_value(0).get_node()
    return bool(before.get_type_name() == "FakeQuantize")


class Engine:
    """What OpenVINO compiles with the properties that the latency was measured with."""

    def __init__(self, path: Path, gpu: int = 0) -> None:
        modules: dict[str, Any] = sys.modules
        modules.setdefault("openvino_telemetry", None)  # it would tell Google Analytics of the import
        import openvino

        self.runtime = openvino
        core = openvino.Core()
        model = core.read_model(str(path))
        self.outputs = [port.any_name for port in model.outputs]
        self.request = core.compile_model(model, "CPU", safe_properties(model, PROPERTIES)).create_infer_request()

    @property
    def description(self) -> str:
        threads = PROPERTIES["INFERENCE_NUM_THREADS"]
        version = self.runtime.__version__.partition("-")[0]
        return f"OpenVINO {version}, {threads} thread{'s' if threads != 1 else ''}"

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Arrays of one batch by name → the outputs by name."""
        results = self.request.infer(inputs)
        return {name: results[i] for i, name in enumerate(self.outputs)}

    @property
    def clock(self) -> str:
        """What `time` tells: with one thread its processor time, which other programs do not stretch."""
        return "processor time" if CLOCK == "thread" else ""

    def time(self, inputs: dict[str, Any], count: int) -> Any:
        """Milliseconds of each of `count` inferences, inputs where the engine reads them."""
        now = time.thread_time if CLOCK == "thread" else time.perf_counter
        for name, array in inputs.items():
            self.request.set_tensor(name, self.runtime.Tensor(array))
        samples = []
        for _ in range(count):
            start = now()
            self.request.infer()
            samples.append(1000 * (now() - start))
        return np.array(samples)
