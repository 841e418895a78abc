"""The comparison's peers quantize a network that is given to them, each in its own process: `make test-peers`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.peers.control import accuracy_control
from benchmarks.peers.quantizers import quantize
from tests.support.networks import images, plain_session, residual_cnn, save

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("method", ["nncf-fast", "onnxruntime-percentile", "quark-recover"])
def test_a_peer_quantizes_every_layer(method: str, tmp_path: Path) -> None:
    model, out = save(residual_cnn(), tmp_path / "model.onnx"), tmp_path / "out.onnx"
    np.savez(tmp_path / "calibration.npz", image=images(24), labels=np.zeros(24, np.int64))
    run = quantize(method, model, tmp_path / "calibration.npz", out)
    assert (run.method, run.float_ops, run.peak_bytes > 0) == (method, 0, True)
    exact, rounded = (plain_session(onnx.load(path)).run(None, {"image": images(4)})[0] for path in (model, out))
    assert 0 < np.abs(exact - rounded).max() < 0.5 * np.abs(exact).max()


def test_accuracy_control_tells_what_it_judged(tmp_path: Path) -> None:
    """INT8 keeps the drop, so that the float model and INT8 are all that is judged."""
    graph, image, out = residual_cnn(batch="n"), images(60), tmp_path / "out.onnx"
    model, data = save(graph, tmp_path / "model.onnx"), tmp_path / "data.npz"
    np.savez(data, image=image, labels=plain_session(graph).run(None, {"image": image})[0].argmax(1))
    run = accuracy_control.quantize(model, data, data, out, "top1", 0.05)
    assert (run.float_value, run.judged, run.ranked, run.reverted) == (1, 2, 0, [])
    assert set(accuracy_control.weighted_ops(out).values()) == {True}


def test_a_peer_that_gives_up_says_why(tmp_path: Path) -> None:
    model = save(residual_cnn(), tmp_path / "model.onnx")
    with pytest.raises(RuntimeError, match=r"(?s)quantizing model\.onnx by nncf-fast: .*FileNotFoundError"):
        quantize("nncf-fast", model, tmp_path / "none.npz", tmp_path / "out.onnx")
