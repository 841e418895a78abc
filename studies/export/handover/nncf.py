"""For NNCF: the nodes of the ONNX file to leave in float, and a script that quantizes the others."""

from __future__ import annotations

from collections.abc import Mapping

from studies.export.handover.mix import Handover, Mix, json_text, script_text


class NncfHandover(Handover):
    """`ignored_scope` holds the arguments of `nncf.IgnoredScope`; `weighted` names those that no model may lack."""

    name = "nncf"

    def files(self, mix: Mix) -> Mapping[str, str]:
        values = {
            "source": mix.source.to_json(),
            "ignored_scope": {"names": [node.name for node in mix.float_nodes]},
            "weighted": [
                node.name for layer in mix.layers if not layer.precision.quantized for node in layer.weighted.values()
            ],
            "rename": mix.new_names,  # NNCF refuses a file in which two nodes share a name, whichever they are
            "inputs": mix.feed.inputs,
            "batch": mix.feed.batch,
            "samples": mix.feed.samples,
            "without_counterpart": mix.lost,
        }
        return {"nncf.json": json_text(values), "quantize.py": script_text("nncf_quantize.py")}
