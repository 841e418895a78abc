"""For NVIDIA ModelOpt: the nodes of the ONNX file to leave in float, and the command that quantizes the others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from search.values import REFERENCE, Precision
from studies.export.handover.mix import Handover, Mix, json_text, script_text

_COMMAND = """\
#!/usr/bin/env bash
# Quantize an ONNX model with NVIDIA ModelOpt, but for the nodes that bitfront found to need a float type.
#
#     bash quantize.sh MODEL.onnx model.int8.onnx [more options of modelopt.onnx.quantization]
#
# MODEL.onnx is the model that bitfront was given. Without --calibration_data_path activations have the ranges that
# bitfront calibrated, from ../../calibration.cache.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
model="$1"
{rename}mapfile -t nodes < "$here/nodes_to_exclude.txt"
exclude=()
if [ "${{#nodes[@]}}" -gt 0 ]; then exclude=(--nodes_to_exclude "${{nodes[@]}}"); fi
ranges=(--calibration_cache_path "$here/../../calibration.cache")
if [[ " ${{*:3}} " == *" --calibration_data_path"* ]]; then ranges=(); fi
python -m modelopt.onnx.quantization --onnx_path "$model" --output_path "$2" --quantize_mode int8 \\
    --high_precision_dtype {dtype} "${{exclude[@]}}" "${{ranges[@]}}" "${{@:3}}"
"""
_RENAME = """\
# Some nodes of MODEL.onnx have no name, or that of another: they are given the names that the list has for them.
model="$2.named.onnx"
trap 'rm -f "$model"' EXIT
python "$here/name_nodes.py" "$1" "$model"
"""


class ModelOptHandover(Handover):
    """`config.json` holds arguments of `modelopt.onnx.quantization.quantize`.

    ModelOpt takes names for regular expressions that a node's name has to begin with, so the list has names escaped,
    up to their end.
    """

    name = "modelopt"

    def files(self, mix: Mix) -> Mapping[str, str]:
        patterns = [f"{_pattern(node.name)}$" for node in mix.float_nodes]
        config = {"quantize_mode": "int8", "high_precision_dtype": _float_type(mix), "nodes_to_exclude": patterns}
        facts = {
            "source": mix.source.to_json(),
            "float_nodes": {p.label: [n.name for layer in mix.layers_in(p) for n in layer.nodes] for p in _floats(mix)},
            "between": [node.name for node in mix.between],
            "rename": mix.new_names,
            "without_counterpart": mix.lost,
        }
        files = {
            "config.json": json_text(config),
            "mix.json": json_text(facts),
            "nodes_to_exclude.txt": "".join(f"{pattern}\n" for pattern in patterns),
            "quantize.sh": _COMMAND.format(dtype=_float_type(mix), rename=_RENAME if mix.new_names else ""),
        }
        return files | ({"name_nodes.py": script_text("name_nodes.py")} if mix.new_names else {})

    def notes(self, mix: Mix) -> tuple[str, ...]:
        if len(_floats(mix)) < 2:
            return ()
        return (
            "ModelOpt uses one float type for all layers that are not quantized, so both the FP32 and the FP16 layers "
            "of the mix run in "
            "FP32 there",
        )


def _floats(mix: Mix) -> tuple[Precision, ...]:
    return tuple(p for p in Precision if not p.quantized and mix.layers_in(p))


def _float_type(mix: Mix) -> str:
    """What all layers run in that are not quantized; the finest of the mix."""
    return min(_floats(mix), default=REFERENCE).label


def _pattern(name: str) -> str:
    """A regular expression for a name, on one line."""
    return re.escape(name).replace("\\\n", "\\n").replace("\\\r", "\\r")
