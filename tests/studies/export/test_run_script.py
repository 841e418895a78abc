"""`run.py` and `README.md` of an export: they run the engine as it was measured, without bitfront."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from evaluators.backends.kind import Recipe
from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.onnxruntime.session import open_session
from evaluators.backends.registry import kind_named
from evaluators.backends.run_script import command
from evaluators.backends.run_script.tensorrt_engine import Engine
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from search.graph.model import Model, ShapeRequest, load
from search.values import Precision
from studies.export.readme import readme_text
from studies.judging.standing import Standing
from studies.options.config import SearchConfig
from studies.options.limits import MetricScale
from studies.options.quantities import ShapeSpec
from studies.run.session.data_shapes import frozen_batch_text
from tests.support.assignments import uniform_and_mixed
from tests.support.command_line import copy_finished, invoke, three_layers
from tests.support.networks import feeds, images, loaded, ranged, save
from tests.support.tensorrt.stand_in import V8, V10, standing_in

ALONE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bitfront", "studies", "evaluators", "search", "onnx", "optuna"):
            raise ModuleNotFoundError(name + " is not for run.py")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An exported mix, whose engine takes four images at a time, and what exporting it said."""
    folder = tmp_path_factory.mktemp("exported")
    copy_finished(folder)
    storage = f"sqlite:///{folder}/bitfront.db"
    said = invoke("export", "small", "--trial", 1, "--out", folder / "engine", "--storage", storage)
    assert said.exit_code == 0, said.output
    return folder / "engine", said.output


def run_alone(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The script in a fresh process that finds neither the repository nor what bitfront needs beside the runtime."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [sys.executable, "-I", "-c", ALONE, str(script), *map(str, arguments)]
    return subprocess.run(words, cwd=script.parent.parent, env=environment, capture_output=True, text=True)


def outputs_of(engine: Path, samples: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What bitfront's own session of the engine gives, in batches of four, the last one filled up."""
    device = OnnxRuntimeDevice("cpu", 1)
    session = open_session(device, engine, device.session_options())
    filled = np.concatenate([samples, *[samples[-1:]] * (-len(samples) % 4)])
    parts = [session.run({"image": filled[at : at + 4]}) for at in range(0, len(filled), 4)]
    session.close()
    return {name: np.concatenate([part[name] for part in parts])[: len(samples)] for name in parts[0]}


@pytest.mark.slow
def test_the_script_gives_the_outputs_of_the_engine_without_bitfront(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    samples = images(10, shape=(3, 8, 8))
    np.savez(folder.parent / "own.npz", image=samples, labels=np.arange(10))
    out = folder.parent / "out.npz"
    done = run_alone(folder / "run.py", "--data", folder.parent / "own.npz", "--out", out, "--repeat", 3)
    assert done.returncode == 0, done.stderr
    assert "output logits: shape 10x10, float32" in done.stdout
    assert re.search(r"latency of one batch of 4: median \S+ ms, mean \S+ ms processor time, of 3 runs", done.stdout)
    expected = outputs_of(folder / "model.onnx", samples)
    with np.load(out) as found:
        assert set(found) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_the_script_has_the_options_that_engines_are_measured_with(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    script = runpy.run_path(str(folder / "run.py"))
    measured = OnnxRuntimeDevice("cpu", 1)
    options = script["Engine"](folder / "model.onnx", 0).session.get_session_options()
    expected = measured.session_options()
    for name in ("intra_op_num_threads", "inter_op_num_threads", "execution_mode", "graph_optimization_level"):
        assert getattr(options, name) == getattr(expected, name)
    for key in script["SESSION_ENTRIES"]:
        assert options.get_session_config_entry(key) == expected.get_session_config_entry(key) == "1"
    assert script["PROVIDERS"] == measured.providers()
    assert script["INPUTS"]["image"]["measured"] == [4, 3, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"image": images(4, shape=(3, 8, 9))}, "input image: the engine takes 4x3x8x8, and a batch would be 4x3x8x9"),
        ({"other": images(4, shape=(3, 8, 8))}, "expected arrays image, found other"),
        ({"image": np.full((4, 3, 8, 8), "x")}, "input image: expected float32, got <U1"),
        ({"image": images(0, shape=(3, 8, 8))}, "at least one"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    exported: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: Mapping[str, Any], says: str
) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    monkeypatch.setattr("sys.argv", ["run.py", "--data", str(tmp_path / "own.npz")])
    with pytest.raises(SystemExit, match=says):
        runpy.run_path(str(exported[0] / "run.py"), run_name="__main__")


@pytest.mark.slow
def test_a_frozen_batch_is_said_with_the_way_around_it(exported: tuple[Path, str]) -> None:
    folder, said = exported
    text = " ".join((folder / "README.md").read_text().split())
    assert "engines take exactly 4 samples at a time and no other number: the model file fixes the batch" in text
    assert "--shape image:1x3x8x8:4x3x8x8:8x3x8x8" in text
    assert " ".join(said.split()).count("engines take exactly 4 samples at a time") == 1


@pytest.mark.slow
def test_the_readme_has_the_figures_and_every_file(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    text = (folder / "README.md").read_text()
    assert text.startswith("# small: trial 1\n")
    for row in ("| latency | ", "| speed against FP32 | ", " layers in INT8", "| device | ", "python run.py --data"):
        assert row in text
    for path in folder.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in text


FOUND: dict[str, Any] = {
    "bitfront": "0.1", "study": "s", "trial": 4, "pick": "best", "warnings": [], "no_gain": "",
    "precision": {"conv": "int8"},
    "model": {"path": "m.onnx", "inputs": [["image", "float32", [8, 3, 8, 8]]]}, "engine_bytes": 10_000,
    "latency": {"value_ms": 14.321, "statistic": "p20", "tie_band": 0.125, "samples_per_s": 558.62,
                "speedup_over_fp32": 1.0213, "speedup_over_file": None, "speedup_doubtful": False, "doubts": []},
    "search": {"metric": "top1", "value": 0.71, "loss": 0.00083, "loss_low": -0.00147, "loss_high": 0.00313,
               "samples": 600},
    "final": {"metric": "top1", "value": 0.764, "loss": 0.001, "loss_low": -0.003, "loss_high": 0.005, "samples": 600,
              "loss_text": "0.1 %, ≤ 0.5 %", "limits_hold": None},
    "target": {"versions": {}, "options": {}, "device": "cpu", "backend": "onnxruntime"},
}  # fmt: skip


def readme(**changes: Any) -> str:
    metric = MetricScale("top1", "share", True, True, False)
    now = cast(Standing, SimpleNamespace(metric=metric, study=SimpleNamespace(config={})))
    return readme_text({**FOUND, **changes}, now, "model.onnx", {"model.onnx"}, "")


def test_the_readme_says_what_was_doubtful_when_the_latency_was_measured() -> None:
    doubts = ["FP32 was 1.4 times as slow as usual", "other programs used the processor"]
    text = readme(latency={**FOUND["latency"], "doubts": doubts})
    assert "It is doubtful: FP32 was 1.4 times as slow as usual; other programs used the processor." in text
    assert "quiet" not in text
    assert "doubtful:" not in readme()


def test_the_readme_rounds_as_the_terminal_does() -> None:
    text = readme()
    assert "| top1 on the search data | 71.00 %, loss 0.08 ± 0.23 % on 600 samples |" in text
    assert "| top1 on the final data, which the search never saw | 76.4 %, loss 0.1 %, ≤ 0.5 % on 600 samples |" in text
    assert "| latency | 14 ms for one batch of 8 (p20) |" in text
    assert "| samples a second | 559 |" in text
    by_thread = readme(latency={**FOUND["latency"], "statistic": "mean", "clock": "thread"})
    assert "| latency | 14 ms for one batch of 8 (mean processor time) |" in by_thread
    assert "| speed against FP32 | 1.02 × |" in text


def test_the_readme_says_that_accuracies_are_of_different_samples() -> None:
    assert "The top1 of 71.00 % and of 76.4 % are of different samples" in readme()
    assert "\n\nNo mix is faster.\n\n" in readme(no_gain="No mix is faster")
    assert "different samples" not in readme(final={**FOUND["final"], "value": 0.7105})


# -- a batch that stays open -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_batch(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save(three_layers(batch="n"), tmp_path_factory.mktemp("open") / "model.onnx")
    return load(path, shapes={"image": ShapeRequest((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))})


def test_an_engine_of_several_sizes_is_run_at_any_of_them(
    open_batch: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_batch.save(tmp_path / "model.onnx")
    recipe = Recipe({}, {}, {"threads": 1}, {}, open_batch.profiles, open_batch.inputs)
    write_script(tmp_path, "onnxruntime", recipe)
    monkeypatch.setattr("sys.argv", ["run.py", "--batch", "6", "--repeat", "2"])
    runpy.run_path(str(tmp_path / "run.py"), run_name="__main__")
    assert "output logits: shape 6x10" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["run.py", "--batch", "9"])
    with pytest.raises(SystemExit, match="the engine takes 1x3x8x8 to 8x3x8x8, and a batch would be 9x3x8x8"):
        runpy.run_path(str(tmp_path / "run.py"), run_name="__main__")


def write_script(folder: Path, backend: str, recipe: Recipe) -> None:
    (folder / "run.py").write_text(kind_named(backend).recipe_files(recipe)["run.py"], encoding="utf-8")


def test_what_fixes_the_batch_is_named(open_batch: Model, tmp_path: Path) -> None:
    path = save(three_layers(batch="n"), tmp_path / "model.onnx")
    config = SearchConfig(str(path), "data.npz")
    assert frozen_batch_text(open_batch, config) == ""
    text = frozen_batch_text(load(path, batch=1), replace(config, batch=1))
    assert text.startswith("engines take one sample at a time and no other number: --batch 1 fixes the batch")
    assert text.endswith(
        "Hint: an engine for several batches comes from a search with --shape image:1x3x8x8:1x3x8x8:2x3x8x8."
    )
    fixed = ShapeSpec("image", *((4, 3, 8, 8),) * 3)
    shaped = load(path, shapes={"image": ShapeRequest(*((4, 3, 8, 8),) * 3)})
    assert "--shape image fixes the batch" in frozen_batch_text(shaped, replace(config, shapes=(fixed,)))


# -- TensorRT, over a stand-in with its own signatures -----------------------------------------------------------------


@pytest.mark.parametrize("version", [V8, V10])
def test_a_plan_is_run_and_timed_through_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    model = loaded("residual")
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engine = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "model.plan")
        layers = {group.name: Precision.INT8 for group in model.groups}
        recipe = Recipe({"tensorrt": version}, {}, {}, layers, {}, model.inputs, device="cuda")
        write_script(tmp_path, "tensorrt", recipe)
        assert engine.path == tmp_path / "model.plan"
        np.savez(tmp_path / "own.npz", **feeds(model))
        words = ["--data", str(tmp_path / "own.npz"), "--out", str(tmp_path / "out.npz"), "--repeat", "5"]
        monkeypatch.setattr("sys.argv", ["run.py", *words])
        before = engines.cuda.launched
        runpy.run_path(str(tmp_path / "run.py"), run_name="__main__")
        assert engines.cuda.launched - before >= 5
    assert "latency of one batch of 4: median" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].shape for name in found} == {spec.name: spec.shape for spec in model.outputs}
        assert all((found[name] == 1).all() for name in found)  # what the stand-in's engines give


@pytest.mark.parametrize("kind", ["labels", "empty", "cut", "few"])
def test_only_the_arrays_of_inputs_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them may be anything; a file that is cut off is refused in a sentence."""
    monkeypatch.setattr(command, "INPUTS", {"x": {"dtype": "float32"}})
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((2, 3), np.float32), labels=np.array(["cat", "dog"], dtype=object))
    if kind == "labels":
        assert command.read_samples(path)["x"].shape == (2, 3)
        return
    if kind == "few":
        np.savez(path, y=np.ones(2))
    else:
        path.write_bytes(path.read_bytes()[: 0 if kind == "empty" else 200])
    with pytest.raises(SystemExit, match="expected arrays x, found y" if kind == "few" else "cannot be read"):
        command.read_samples(path)


def test_where_outputs_cannot_go_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path / "none/out.npz")])
    monkeypatch.setattr(command, "Engine", None)
    with pytest.raises(SystemExit, match=r"none/out.npz: expected a file in a folder that is there"):
        command.main()


def test_numbers_that_an_engine_cannot_hold_are_not_wrapped() -> None:
    """TensorRT 8.6 takes INT64 as INT32."""
    engine: Any = Engine.__new__(Engine)
    engine.inputs, engine.outputs, engine.pointers = ["ids"], [], {}
    engine.context = SimpleNamespace(
        set_input_shape=lambda *_: True, get_tensor_shape=lambda name: (2,), set_tensor_address=lambda *_: True
    )
    copied: list[int] = []
    engine.cuda = SimpleNamespace(cudaMalloc=lambda size: (0, 1), cudaFree=lambda pointer: (0,))
    engine._dtype = lambda name: np.dtype(np.int32)
    engine._copy = lambda *given: copied.append(given[2])
    engine._upload({"ids": np.array([1, -(2**31)])})
    assert copied == [8]
    with pytest.raises(SystemExit, match="input ids is int32, and the data hold numbers beyond it"):
        engine._upload({"ids": np.array([1, 2**32 + 5])})


def test_rows_of_several_shapes_are_kept_run_by_run() -> None:
    """As a detector finds more in one image than in another."""
    first, second = np.zeros((1, 3, 4)), np.ones((1, 2, 4))
    assert command.join("boxes", [first, first])["boxes"].shape == (2, 3, 4)
    joined = command.join("boxes", [first, second])
    assert {name: array.shape for name, array in joined.items()} == {"boxes.0": (1, 3, 4), "boxes.1": (1, 2, 4)}
