"""Every file of a hand-over is read by the real tool, in an environment of its own: `make test-peers`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from evaluators.calibration import cache
from search.graph.model import load
from search.values import Precision
from studies.export.handover.mix import Mix
from studies.export.handover.registry import HANDOVERS, write_handovers
from tests.support.handed_mix import mix_of, nameless
from tests.support.networks import images, observed, residual_cnn
from tests.support.paths import ROOT

pytestmark = pytest.mark.peers

FP32, FP16 = Precision.FP32, Precision.FP16
FLOAT = {"stem", "block.0/conv2"}


def run(*words: object, cwd: Path) -> str:
    """Run a program of the peers' environment; what it printed."""
    folder = Path(os.environ["BITFRONT_PEERS"]).absolute() / "bin"
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=kept | path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def hand_over(mix: Mix, folder: Path) -> Path:
    """The folder of an export as far as the tools read it, beside `model.onnx` and `data.npz`."""
    model = load(folder / "model.onnx")
    engine = folder / "engine"
    write_handovers(engine / "handover", mix, HANDOVERS.names())
    (engine / "calibration.cache").write_text(cache.write(observed(model)))
    np.savez(folder / "data.npz", image=images(24, shape=model.inputs[0].shape[1:]))
    return engine / "handover"


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A residual network with one convolution in FP32, one in FP16, and all else in INT8."""
    folder = tmp_path_factory.mktemp("handed")
    mix = mix_of(residual_cnn(channels=32), folder, {"stem": FP32, "block.0/conv2": FP16})
    return hand_over(mix, folder)


@pytest.fixture
def unnamed(tmp_path: Path) -> Path:
    """A network that has a float node without a name, and two nodes of one name."""
    return hand_over(nameless(tmp_path), tmp_path)


def quantized(path: Path) -> dict[str, bool]:
    """For each convolution and matrix product of a model, by its output: whether its weight is read back from INT8."""
    graph = onnx.load(path).graph
    makers = {output: node.op_type for node in graph.node for output in node.output}
    return {
        node.output[0]: makers.get(node.input[1]) == "DequantizeLinear"
        for node in graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul")
    }


EXPECTED = {
    f"{name}_out" if name != "fc" else "logits": name not in FLOAT
    for name in ("stem", "block.0/conv1", "block.0/conv2", "block.1/conv1", "block.1/conv2", "block.1/down", "fc")
}


def test_nncf_leaves_the_float_nodes_in_float(handed: Path) -> None:
    folder = handed.parents[1]
    run("python", handed / "nncf/quantize.py", "model.onnx", "data.npz", "--out", "nncf.onnx", cwd=folder)
    assert quantized(folder / "nncf.onnx") == EXPECTED


def test_nncf_reads_a_model_without_names(unnamed: Path) -> None:
    folder = unnamed.parents[1]
    run("python", unnamed / "nncf/quantize.py", "model.onnx", "data.npz", "--out", "nncf.onnx", cwd=folder)
    assert quantized(folder / "nncf.onnx") == {"first_out": False, "second_out": True, "logits": True}


def test_nncf_reads_the_float_model_of_an_export(handed: Path) -> None:
    folder = handed.parents[1]
    load(folder / "model.onnx").save(folder / "model.float.onnx")
    run("python", handed / "nncf/quantize.py", "model.float.onnx", "data.npz", "--out", "nncf.onnx", cwd=folder)
    found = {node.name for node in onnx.load(folder / "model.float.onnx").graph.node}
    assert "stem/bn" not in found  # it was folded, and the scope names it
    read_back = quantized(folder / "nncf.onnx")
    assert list(read_back.values()) == [*EXPECTED.values()]


def test_polygraphy_runs_the_script_on_a_network(handed: Path) -> None:
    layers = ["stem=CONVOLUTION=stem_out", "stem=CONSTANT=stem.w", "block.0/conv1=CONVOLUTION=block.0/conv1_out",
              "renamed=CONVOLUTION=block.0/conv2_out", "block.0/relu1=ACTIVATION=block.0/relu1_out",
              *(f"{name}=CONVOLUTION={name}_out" for name in ("block.1/conv1", "block.1/conv2", "block.1/down")),
              "fc=MATRIX_MULTIPLY=inner"]  # fmt: skip
    script = ROOT / "tests/peers/apply_constraints.py"
    said = run("python", script, handed / "polygraphy/constraints.py", *layers, cwd=handed)
    assert said.split() == [
        "stem=float32", "block.0/conv1=int8", "renamed=float16",
        "block.1/conv1=int8", "block.1/conv2=int8", "block.1/down=int8", "fc=int8",
    ]  # fmt: skip


def test_polygraphy_takes_the_options_of_the_command(handed: Path) -> None:
    command = (handed / "polygraphy/convert.sh").read_text().partition("polygraphy convert")[2]
    words = [word for word in command.replace("\\\n", " ").replace('"', "").split() if word != "${@:3}"]
    options = [word.replace("$here", str(handed / "polygraphy")) for word in words[words.index("trt") + 1 :]]
    run("polygraphy", "run", "model.onnx", "--trt", *options, "--gen-script", "made.py", cwd=handed.parents[1])
    made = (handed.parents[1] / "made.py").read_text()
    assert "precision_constraints='obey', fp16=True, int8=True" in made
    assert f"InvokeFromScript('{handed}/polygraphy/constraints.py', name='postprocess')" in made


def test_modelopt_leaves_the_float_nodes_in_float(handed: Path) -> None:
    folder = handed.parents[1]
    run("bash", handed / "modelopt/quantize.sh", "model.onnx", "modelopt.onnx", cwd=folder)
    found = quantized(folder / "modelopt.onnx")
    assert [name for name in EXPECTED if found[name] and not EXPECTED[name]] == []
    assert found["block.1/conv1_out"]
    check = "import inspect, json, sys; from modelopt.onnx.quantization import quantize; "
    check += "inspect.signature(quantize).bind('model.onnx', **json.load(open(sys.argv[1])))"
    run("python", "-c", check, handed / "modelopt/config.json", cwd=folder)


def test_modelopt_reads_a_model_without_names(unnamed: Path) -> None:
    folder = unnamed.parents[1]
    run("bash", unnamed / "modelopt/quantize.sh", "model.onnx", "modelopt.onnx", cwd=folder)
    found = quantized(folder / "modelopt.onnx")
    assert (found["first_out"], found["second_out"]) == (False, True)
    assert not list(folder.glob("*.named.onnx"))


def test_scales_of_the_export_reach_modelopt(handed: Path) -> None:
    folder = handed.parents[1]
    run("bash", handed / "modelopt/quantize.sh", "model.onnx", "scales.onnx", cwd=folder)
    graph = onnx.load(folder / "scales.onnx").graph
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales = {node.input[0]: values[node.input[1]] for node in graph.node if node.op_type == "QuantizeLinear"}
    known = cache.read_file(handed.parent / "calibration.cache")
    shared = {name: float(scale) for name, scale in scales.items() if name in known and scale.ndim == 0}
    assert shared
    assert shared == pytest.approx({name: known[name] / cache.LEVELS for name in shared}, rel=1e-3)


def test_the_mix_for_modelopt_lists_what_each_float_type_had(handed: Path) -> None:
    found = json.loads((handed / "modelopt/mix.json").read_text())["float_nodes"]
    assert {label: names[0] for label, names in found.items()} == {"fp32": "stem", "fp16": "block.0/conv2"}
