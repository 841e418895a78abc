"""For Polygraphy: a script that sets the precision of TensorRT's layers, and the command that uses it."""

from __future__ import annotations

from collections.abc import Mapping

from search.values import REFERENCE
from studies.export.handover.mix import Handover, Mix, json_text, script_text

_COMMAND = """\
#!/usr/bin/env bash
# Build a TensorRT engine in which every layer runs in the precision that bitfront measured it in.
#
#     bash convert.sh MODEL.onnx model.plan [more options of polygraphy convert]
#
# MODEL.onnx is the model that bitfront was given. TensorRT up to 10 sets the precision of layers; from 11 on it has no
# such constraints, and takes the ONNX file that `bitfront export` writes for it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
polygraphy convert "$1" --output "$2" --convert-to trt {flags} \\
    --precision-constraints obey \\
    --trt-network-postprocess-script "$here/constraints.py" \\
    "${{@:3}}"
"""


class PolygraphyHandover(Handover):
    """`layers` has the precision of each weighted op, by the node's name and by the tensor that it makes."""

    name = "polygraphy"
    needs_int8 = False

    def files(self, mix: Mix) -> Mapping[str, str]:
        layers = [
            {"name": node.name if node.own else None, "output": node.output, "precision": layer.precision.dtype}
            for layer in mix.layers
            for node in layer.weighted.values()
        ]
        values = {"source": mix.source.to_json(), "layers": layers, "without_counterpart": mix.lost}
        return {
            "precisions.json": json_text(values),
            "constraints.py": script_text("polygraphy_constraints.py"),
            "convert.sh": _COMMAND.format(flags=_flags(mix)),
        }


def _flags(mix: Mix) -> str:
    used = {layer.precision for layer in mix.layers}
    flags = [f"--{each.label}" for each in sorted(used - {REFERENCE})]
    if any(each.quantized for each in used):
        flags.append('--calibration-cache "$here/../../calibration.cache"')
    return " ".join(flags)
