"""Channels made uneven and simulated INT8, where PyTorch is installed: it is no dependency of the project."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.h200.networks import simulated_int8, uneven  # noqa: E402
from benchmarks.h200.networks.layers import NETWORKS  # noqa: E402


def network(name: str):
    torch.manual_seed(0)
    made = NETWORKS[name](10, 64).eval()
    for module in made.modules():  # as if trained: statistics and scales that differ by channel
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return made


@pytest.mark.parametrize("name", list(uneven.STREAMS))
@pytest.mark.parametrize("width", [2.5, 7.125, uneven.LARGEST])
@torch.no_grad()
def test_uneven_channels_leave_the_float_outputs_as_they_are(name: str, width: float) -> None:
    plain, images = network(name), torch.randn(2, 3, 64, 64)
    changed = uneven._copy(plain, uneven.STREAMS[name], width)
    assert torch.equal(plain(images), changed(images))
    layers = dict(plain.named_modules()).keys()
    for stream in uneven.STREAMS[name]:
        assert stream.layers <= layers
        old, new = (each.get_submodule(stream.readers[0]).weight for each in (plain, changed))
        assert not torch.equal(old, new)


@torch.no_grad()
def test_uneven_channels_cost_int8_more() -> None:
    plain, images = network("resnet18"), torch.randn(8, 3, 64, 64)
    errors = []
    for width in (0.0, uneven.LARGEST):
        changed = uneven._copy(plain, uneven.STREAMS["resnet18"], width)
        true = changed(images)
        with simulated_int8.rounded(changed, simulated_int8.ranges(changed, lambda n=changed: n(images))):
            errors.append(float((changed(images) - true).square().mean()))
        assert torch.equal(changed(images), true)  # nothing of it stays
    assert errors[1] > 3 * errors[0] > 0


@torch.no_grad()
def test_one_layer_alone_is_rounded_alone() -> None:
    plain, images = network("mobilenet_v2"), torch.randn(2, 3, 64, 64)
    largest = simulated_int8.ranges(plain, lambda: plain(images))
    before = {name: layer.weight.clone() for name, layer in simulated_int8.layers(plain).items()}
    with simulated_int8.rounded(plain, largest, {"features.18.0"}):
        changed = {
            name for name, layer in simulated_int8.layers(plain).items() if not torch.equal(layer.weight, before[name])
        }
    assert changed == {"features.18.0"}


@torch.no_grad()
def test_the_least_width_that_loses_as_much_is_found() -> None:
    plain = network("resnet18")
    weight = plain.get_submodule("fc").weight.abs().max()

    def loss_of(changed: torch.nn.Module) -> float:
        return float(changed.get_submodule("fc").weight.abs().max() / weight)

    _, width = uneven.rescaled(plain, uneven.STREAMS["resnet18"], loss_of, 16.0)
    assert loss_of(uneven._copy(plain, uneven.STREAMS["resnet18"], width)) >= 16.0
    assert loss_of(uneven._copy(plain, uneven.STREAMS["resnet18"], width - 0.125)) < 16.0
