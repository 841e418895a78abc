"""An ONNX Runtime whose builder refuses groups in precisions: what `BITFRONT_TEST_REFUSES` says, in JSON.

`[["g001", "int8", "named"]]`: a build of g001 in INT8 is refused, with the group named; `unnamed`: without.
With `BITFRONT_TEST_ABSOLUTE` latencies are no ratios, as on a GPU: no FP32 engine has to be built to compare with.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.builder import OnnxRuntimeBuilder
from evaluators.engine import Engine, RefusedError
from search.graph.model import Model
from search.values import Assignment, Precision, Ranges, Target

REFUSED = [(g, Precision.parse(p), n == "named") for g, p, n in json.loads(os.environ["BITFRONT_TEST_REFUSES"])]


class RefusingBuilder(OnnxRuntimeBuilder):
    def lower(self, assignment: Assignment) -> Any:
        self.assignment = assignment
        return super().lower(assignment)

    def build(self, lowered: Any, out: Path) -> Engine:
        for group, precision, named in REFUSED:
            if self.assignment[group] is precision:
                raise RefusedError(f"no kernel for {group} in {precision.label}", group if named else None)
        return super().build(lowered, out)


def builder(backend: OnnxRuntimeBackend, model: Model, ranges: Ranges) -> OnnxRuntimeBuilder:
    return RefusingBuilder(backend.device, backend.placement, model, ranges)


OnnxRuntimeBackend.builder = builder  # type: ignore[method-assign]
relative = OnnxRuntimeBackend.target


def absolute(backend: OnnxRuntimeBackend) -> Target:
    return replace(relative(backend), relative=False)


if "BITFRONT_TEST_ABSOLUTE" in os.environ:
    OnnxRuntimeBackend.target = absolute  # type: ignore[method-assign]
