"""Make `efficientnet_b0.onnx` and `mobilenet_v3_small.onnx`: two architectures of torchvision without their weights.

What torchvision 0.28 (BSD-3-Clause, © Soumith Chintala 2016; https://github.com/pytorch/vision) defines and PyTorch
exports. Every tensor of weights is an input of the graph; `tests/whole/test_real_models.py` draws their values.
The licence lies beside them.

    PYTHONPATH=. .peers/bin/python tests/data/torchvision/make.py
"""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import torch
import torchvision

FOLDER = Path(__file__).parent
BATCH, SIZE, CLASSES = 4, 64, 30


def make(name: str) -> None:
    """Export the network as the comparison with other quantizers does, and take its weights out."""
    model = getattr(torchvision.models, name)(num_classes=CLASSES).eval()
    for each in model.state_dict().values():
        if each.is_floating_point():
            each.uniform_(0.5, 1.0)  # tensors that are equal become one in the exported file
    file, image = io.BytesIO(), torch.zeros(BATCH, 3, SIZE, SIZE)
    names = {"input_names": ["image"], "output_names": ["logits"]}
    torch.onnx.export(model, (image,), file, dynamo=False, opset_version=17, **names)
    graph = onnx.load_from_string(file.getvalue()).graph
    weights = [each for each in graph.initializer if each.dims]
    for each in weights:
        graph.initializer.remove(each)
        graph.input.append(onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    for node in graph.node:
        node.ClearField("doc_string")
    del graph.value_info[:]
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8, producer_name="torchvision"
    )
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, str(FOLDER / f"{name}.onnx"))


for network in ("efficientnet_b0", "mobilenet_v3_small"):
    make(network)
