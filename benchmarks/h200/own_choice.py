"""TensorRT's own choice of precisions, built in a process of its own that search.py starts; prints JSON.

usage: python -m benchmarks.h200.own_choice JOB.json OUT [QDQ.onnx]

A model with Q/DQ of its own is built as it is, without the ranges of the study: what another quantizer's file gives.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from evaluators.backends.registry import open_backend
from evaluators.process.job import Job
from search.graph import model as models
from search.values import Assignment, Precision, Ranges


def build(job: Job, out: Path, qdq_model: Path | None = None) -> dict[str, Any]:
    """Write the engine at `out`; what it took, and of the study's model what the groups run in."""
    shapes = {name: models.ShapeRequest(*map(tuple, sizes)) for name, sizes in job.shapes.items()}
    ranges = Ranges.from_json(json.loads(Path(job.ranges or "").read_text(encoding="utf-8")))
    model = models.load(Path(job.model), batch=job.batch, shapes=shapes, values=job.input_values)
    scaled, backend = model.scale_constants(ranges.recovery.factors), open_backend(job.backend, job.device, job.options)
    builder: Any = backend.builder(scaled, ranges)  # the ranges are those of the scaled model
    start = time.perf_counter()
    engine = builder.build_free(out, qdq_model.read_bytes() if qdq_model else None)
    built = {"build_s": time.perf_counter() - start, "size_bytes": engine.size_bytes}
    if qdq_model is not None:
        return built
    # Audited against all INT8, of which only what was got counts.
    audit = builder.audit(engine, Assignment({group.id: Precision.INT8 for group in model.groups}))
    got = Counter("opaque" if row.got is None else row.got.label for row in audit.rows)
    return {**built, "got": got, "layers": audit.summary.layers, "moves": audit.summary.moves}


if __name__ == "__main__":
    job, *files = map(Path, sys.argv[1:])
    print(json.dumps(build(Job(**json.loads(job.read_text())), *files)))
