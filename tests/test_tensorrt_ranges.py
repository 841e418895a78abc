"""The dynamic range that every tensor of a weakly typed network gets, also those that only TensorRT's parser knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.backends import tensorrt_api, tensorrt_weak
from evaluators.backends.tensorrt_builder import model_bytes
from networks import arithmetic, observed, save
from search.model import load
from test_tensorrt_api import V8, V10, standing_in


def ranges_set(version: str, folder: Path) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Tensor → range set; tensor → range calibrated; tensors of the model without one."""
    model = load(save(arithmetic(), folder / "net.onnx"))
    ranges = observed(model)
    with standing_in(version) as engines:
        trt = engines.trt
        log = tensorrt_api.make_log(trt)
        network, _ = tensorrt_api.parse_network(trt, trt.Builder(log), log, model_bytes(model.graph), strong=False)
        missing = tensorrt_weak.set_ranges(trt, network, ranges, ranges.tensors)
        layers = tensorrt_api.layers_of(network)
        tensors = [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
        tensors += [network.get_input(i) for i in range(network.num_inputs)]
        found = {tensor.name: tensor._state["range"] for tensor in tensors if "range" in tensor._state}
    assert all(low == -high for low, high in found.values())
    return (
        {name: high for name, (_, high) in found.items()},
        {name: own.magnitude for name, own in ranges.tensors.items()},
        missing,
    )


@pytest.mark.parametrize("version", [V8, V10])
def test_constants_reach_as_far_as_their_values_and_tensors_as_calibrated(version: str, tmp_path: Path) -> None:
    found, calibrated, missing = ranges_set(version, tmp_path)
    assert {name: found[name] for name in calibrated.keys() & found} == pytest.approx(
        {name: reach for name, reach in calibrated.items() if name in found}
    )
    assert {"image", "shift_out", "swish_out", "gain_out", "logits"} <= calibrated.keys() & found
    assert [found[f"{name}_output"] for name in ("three", "six", "gains")] == [3, 6, 60]
    assert found["shift/clip.low_output"] == 1  # nothing but zeros: no range of its own
    assert missing == []


def test_the_product_of_a_gemm_reaches_as_far_as_sum_and_bias_together(tmp_path: Path) -> None:
    """Not as far as its input, whose range says nothing about the product's."""
    found, calibrated, _ = ranges_set(V8, tmp_path)
    assert found["fc_output"] == pytest.approx(calibrated["logits"] + found["fc.b_output"])
    assert found["fc.b_output"] < 0.1
