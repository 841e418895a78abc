"""What the emulation of a guard reads of an exported folder, without a study: a small residual network in all INT8."""

from __future__ import annotations

import json
from pathlib import Path

from search.graph.model import load
from tests.support.networks import observed, residual_cnn, save


def write_export(folder: Path, precision: str = "int8", backend: str = "onnxruntime") -> Path:
    """The folder, with float model, ranges and manifest of seven groups; its one input is `image` (1, 3, 16, 16)."""
    model = load(save(residual_cnn(batch=1, channels=8), folder / "user.onnx"))
    model.save(folder / "model.float.onnx")
    (folder / "ranges.json").write_text(json.dumps(observed(model).to_json()))
    manifest = {
        "model": {"digest": model.digest, "inputs": [[s.name, s.dtype, list(s.shape)] for s in model.inputs]},
        "target": {"backend": backend, "options": {"threads": 1}},
        "files": {},
        "precision": {anchor: precision for group in model.groups for anchor in group.anchors},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
