"""What serves and watches TensorRT's engines after a search, on a GPU: exports, inspect, gate, guard, drift, renew.

One study and three exports serve all tests, since every build and every process that opens the builder takes seconds.
Nothing here is about speed: the engines are built at the lowest optimization level.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

pytest.importorskip("tensorrt")  # collected everywhere, run where TensorRT is

from studies.guard import BreakerState, Guard, GuardOptions
from studies.guard.engines import Run, open_engine
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.networks import images, plain_session, residual_cnn

pytestmark = pytest.mark.gpu

BATCH = 4
SAMPLES = 600
ALL = GuardOptions(share=1, window=5, windows=2, threshold=0.5, probe_after_s=1000, queue=10_000)
Arrays = dict[str, NDArray[Any]]


def network_with_classes() -> onnx.ModelProto:
    """The residual network with its logits centred: as its random weights are, it gives one class to every image."""
    network = residual_cnn(batch=BATCH)
    session = plain_session(network)
    middle = np.mean([session.run(None, {"image": batch})[0] for batch in split(images(SAMPLES))], axis=(0, 1))
    bias = next(tensor for tensor in network.graph.initializer if tensor.name == "fc.b")
    centred = onnx.numpy_helper.to_array(bias) - middle
    bias.CopyFrom(onnx.numpy_helper.from_array(centred.astype(np.float32), bias.name))
    return network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder: a study `s` of 4 trials, its exports `fp32`, `fp16` and `int8`, and data."""
    found = tmp_path_factory.mktemp("production")
    write_inputs(found / "in", network_with_classes(), SAMPLES)
    np.savez(found / "fresh.npz", image=images(400, seed=5))
    np.savez(found / "bright.npz", image=2 * images(400, seed=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        ok(
            *("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "tensorrt"),
            *("--trials", "4", "--max-drop", "60%", "--keep-engines", "all", "--quiet"),
            *("--optimization-level", "0"),
        )
        rows = json.loads(ok("front", "s", "--json"))["rows"]
        trials = {row["role"]: row["trial"] for row in rows}
        for precision in ("fp32", "fp16", "int8"):
            ok("export", "s", "--trial", trials[f"baseline:{precision}"], "--out", precision, "--quiet")
        yield found


# -- exports and inspect -----------------------------------------------------------------------------------------------


def test_an_export_tells_its_layers_and_their_times(folder: Path) -> None:
    found = json.loads(ok("inspect", "int8", "--json"))
    shares = {row["precision"]: row for row in found["precisions"]}
    assert shares["int8"]["weighted"] >= 4
    for share in ("layers_share", "ms_share"):
        assert sum(row[share] for row in found["precisions"]) == pytest.approx(1)
    assert [layer for layer in found["layers"] if layer["ms"] is not None]
    groups = json.loads(Path("int8/manifest.json").read_text(encoding="utf-8"))["groups"]
    wanted = {group["node"] for group in groups if group["got"] == "int8"}
    named = {node for layer in found["layers"] if layer["precision"] == "int8" for node in layer["nodes"]}
    assert wanted
    assert wanted <= named
    profile = json.loads(Path("int8/profile.json").read_text(encoding="utf-8"))
    assert profile[0] == {"count": 20}
    assert all(row["averageMs"] >= 0 for row in profile[1:])
    assert sum(row["averageMs"] for row in profile[1:]) > 0


def test_the_plan_itself_tells_the_same_layers(folder: Path) -> None:
    exported = json.loads(ok("inspect", "int8", "--json"))
    plan = json.loads(ok("inspect", "int8/model.plan", "--json"))
    assert plan["kind"] == "TensorRT plan"
    for key in ("name", "precision", "inputs", "outputs", "moves"):
        assert [layer[key] for layer in plan["layers"]] == [layer[key] for layer in exported["layers"]]
    assert "Not in INT8" in ok("inspect", "fp16/model.plan")


@pytest.mark.parametrize("engine", ["", "/model.plan"])
def test_two_engines_are_shown_side_by_side(folder: Path, engine: str) -> None:
    found = json.loads(ok("inspect", f"int8{engine}", "--against", f"fp16{engine}", "--json"))
    pairs = {(row["precision"], row["other_precision"]) for row in found["nodes"]}
    assert ("int8", "fp16") in pairs
    assert any(row["differs"] for row in found["nodes"])


def test_the_script_of_an_export_gives_the_outputs_of_its_engine(folder: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = tmp_path / "out.npz"
    done = subprocess.run(
        [sys.executable, str(folder / "int8/run.py"), "--data", str(folder / "in/data.npz"), "--out", str(out)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "latency of one batch of 4: median" in done.stdout
    run, samples = engine("int8"), np.load("in/data.npz")["image"]
    wanted = np.concatenate([run({"image": batch})["logits"] for batch in split(samples)])
    with np.load(out) as found:
        np.testing.assert_array_equal(found["logits"], wanted)


# -- gate --------------------------------------------------------------------------------------------------------------


def gate(*words: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a gate on the study's data, its latencies in three processes."""
    said = invoke("gate", *words, "--processes", "3", "--json")
    assert said.exit_code in (0, 1, 3), f"{said.output}\n{said.exception!r}"
    return said.exit_code, json.loads(said.stdout)


def test_int8_is_gated_against_fp16_and_files_say_so(folder: Path, tmp_path: Path) -> None:
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    limits = ("--max-drop", "60%", "--max-slowdown", "100%", "--data", "in/data.npz")
    code, found = gate("int8", "--against", "fp16", *limits, "--junit", junit, "--markdown", markdown)
    assert code in (0, 3), found
    assert {found[side]["backend"] for side in ("candidate", "baseline", "target")} == {"tensorrt"}
    loss, latency = found["checks"]
    assert loss["verdict"] == "holds"
    assert loss["low"] <= loss["estimate"] <= loss["high"]
    assert latency["candidate_ms"] > 0
    assert latency["baseline_ms"] > 0
    assert len(latency["ratios"]) == len(latency["tie_ratios"]) == 3
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "0")
    assert f"bitfront gate: {found['verdict']}" in markdown.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("int8", "int8"), ("s", "int8/model.plan")], ids=["export", "study and plan"])
def test_an_engine_against_itself_never_fails(folder: Path, words: tuple[str, str]) -> None:
    candidate, baseline = words
    trial = json.loads(Path("int8/manifest.json").read_text(encoding="utf-8"))["trial"]
    of_study = ("--trial", trial) if candidate == "s" else ()
    limits = ("--max-drop", "5%", "--max-slowdown", "10%", "--data", "in/data.npz")
    code, found = gate(candidate, *of_study, "--against", baseline, *limits)
    assert code in (0, 3), found
    loss, _latency = found["checks"]
    assert loss["estimate"] == 0


def test_a_large_drop_fails(folder: Path, tmp_path: Path) -> None:
    """Of samples beside the border between two classes of FP16, those on which INT8 gives another class."""
    runs = {name: engine(name) for name in ("fp16", "int8")}
    one, two = images(1000, seed=7), images(1000, seed=8)
    of_one = classes_of(runs["fp16"], one)
    for _ in range(7):
        middle = (one + two) / 2
        like_one = (classes_of(runs["fp16"], middle) == of_one)[:, np.newaxis, np.newaxis, np.newaxis]
        one, two = np.where(like_one, middle, one), np.where(like_one, two, middle)
    samples = np.concatenate([one, two])
    classes = {name: classes_of(run, samples) for name, run in runs.items()}
    parted = classes["int8"] != classes["fp16"]
    assert parted.sum() >= 40, "the samples part the engines too seldom for this test"
    np.savez(tmp_path / "hard.npz", image=samples[parted], labels=classes["fp16"][parted])
    code, found = gate("int8", "--against", "fp16", "--max-drop", "10%", "--data", tmp_path / "hard.npz")
    assert code == 1, found
    assert found["values"] == {"candidate": 0, "baseline": 1}


def test_an_engine_of_another_target_and_a_damaged_plan_are_refused(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree("int8", tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["target"]["device"] = "another GPU"
    (other / "manifest.json").write_text(json.dumps(manifest))
    short = tmp_path / "short.plan"
    short.write_bytes(Path("int8/model.plan").read_bytes()[:1000])
    limits = ("--against", "fp16", "--max-drop", "60%", "--data", "in/data.npz", "--junit", tmp_path / "gate.xml")
    for candidate, said in ((other, "belongs to another target than this host"), (short, "cannot be loaded")):
        refused = invoke("gate", candidate, *limits)
        assert refused.exit_code == 2, refused.output
        assert said in " ".join(refused.stderr.split())
    assert not (tmp_path / "gate.xml").exists()


# -- guard -------------------------------------------------------------------------------------------------------------


def engine(name: str) -> Run:
    """The engine of an exported folder, opened as a guard opens it."""
    return open_engine(Path(name), json.loads(Path(name, "manifest.json").read_text(encoding="utf-8")), None, None)


def split(samples: NDArray[Any]) -> list[NDArray[Any]]:
    return [samples[i : i + BATCH] for i in range(0, len(samples) - BATCH + 1, BATCH)]


def classes_of(run: Run, samples: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([run({"image": batch})["logits"].argmax(axis=1) for batch in split(samples)])


@pytest.fixture(scope="module")
def answers(folder: Path) -> tuple[list[NDArray[Any]], dict[str, list[NDArray[Any]]]]:
    """Requests, and what each engine alone gives to each of them."""
    requests = split(images(160, seed=3))
    given = {name: engine(name) for name in ("int8", "fp16", "fp32")}
    return requests, {name: [run({"image": each})["logits"] for each in requests] for name, run in given.items()}


class Planted:
    """An engine whose outputs are changed at the edge, as a wrong engine's would be."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.change: Callable[[NDArray[Any]], NDArray[Any]] = lambda logits: logits

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        return {name: self.change(array) for name, array in self._run(inputs).items()}


def opposite(logits: NDArray[Any]) -> NDArray[Any]:
    return -logits


def test_engines_lie_side_by_side_in_one_process(folder: Path, answers: Any) -> None:
    requests, wanted = answers
    runs = [(name, engine(name)) for name in ("int8", "fp16", "int8", "fp32")]
    for i, request in enumerate(requests[:10]):
        for name, run in runs:
            np.testing.assert_array_equal(run({"image": request})["logits"], wanted[name][i])


def test_a_guard_answers_with_the_fast_engine_and_compares(folder: Path, answers: Any) -> None:
    requests, wanted = answers
    told: list[str] = []
    with Guard.open("int8", "fp16", ALL, tell=told.append) as guard:
        for request, logits in zip(requests, wanted["int8"], strict=True):
            np.testing.assert_array_equal(guard.run({"image": request})["logits"], logits)
        guard.drain()
        state = guard.state()
    assert (state.breaker, state.engine) == (BreakerState.CLOSED, "fast")
    assert (state.requests, state.compared, state.dropped) == (len(requests), len(requests), 0)
    pairs = zip(wanted["int8"][-5:], wanted["fp16"][-5:], strict=True)
    last = np.mean([(one.argmax(axis=1) == two.argmax(axis=1)).mean() for one, two in pairs])
    assert state.agreement == pytest.approx(last)
    assert not told


def test_requests_of_several_threads_do_not_mix(folder: Path, answers: Any) -> None:
    """While the guard's own thread compares each of them."""
    requests, wanted = answers
    wrong: list[int] = []
    with Guard.open("int8", "fp16", ALL) as guard:

        def serve(first: int) -> None:
            for i in range(first, first + 3 * len(requests)):
                place = i % len(requests)
                if not np.array_equal(guard.run({"image": requests[place]})["logits"], wanted["int8"][place]):
                    wrong.append(place)

        threads = [threading.Thread(target=serve, args=(7 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        guard.drain()
        state = guard.state()
    assert not wrong
    assert state.requests == state.compared == 12 * len(requests)
    assert state.breaker is BreakerState.CLOSED


def test_a_wrong_engine_is_left_and_a_restart_does_not_forget_it(folder: Path, answers: Any, tmp_path: Path) -> None:
    requests, wanted = answers
    fast, safe, state = Planted(engine("int8")), engine("fp16"), tmp_path / "guard.json"
    told: list[str] = []
    with Guard(fast, safe, ALL, state=state, tell=told.append) as guard:
        guard.run({"image": requests[0]})
        fast.change = opposite
        for request in requests[:20]:
            guard.run({"image": request})
            guard.drain()
        assert guard.state().breaker is BreakerState.OPEN
        np.testing.assert_array_equal(guard.run({"image": requests[1]})["logits"], wanted["fp16"][1])
    assert len(told) == 1
    assert "agreed less than 0.5" in told[0]
    with Guard.open("int8", "fp16", ALL, state=state) as again:
        assert again.state().engine == "safe"
        np.testing.assert_array_equal(again.run({"image": requests[2]})["logits"], wanted["fp16"][2])


def test_an_engine_that_is_good_again_comes_back(folder: Path, answers: Any) -> None:
    requests, wanted = answers
    fast, safe = Planted(engine("fp16")), engine("fp32")
    with Guard(fast, safe, GuardOptions(share=1, window=5, windows=1, probe_after_s=0), tell=lambda _: None) as guard:
        fast.change = opposite
        for request in requests[:5]:
            guard.run({"image": request})
        guard.drain()
        assert guard.state().breaker is not BreakerState.CLOSED
        fast.change = lambda logits: logits
        deadline = time.monotonic() + 60
        while guard.state().breaker is not BreakerState.CLOSED and time.monotonic() < deadline:
            for request in requests[:5]:
                guard.run({"image": request})
            guard.drain()
        np.testing.assert_array_equal(guard.run({"image": requests[0]})["logits"], wanted["fp16"][0])


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_never_given(folder: Path, answers: Any, fault: float) -> None:
    requests, wanted = answers
    fast, safe = Planted(engine("int8")), engine("fp16")
    fast.change = lambda logits: np.where(np.arange(logits.shape[1]) == 3, np.float32(fault), logits)
    with Guard(fast, safe, ALL, tell=lambda _: None) as guard:
        np.testing.assert_array_equal(guard.run({"image": requests[0]})["logits"], wanted["fp16"][0])
        assert guard.state().breaker is BreakerState.OPEN
        assert "NaN or Inf" in guard.state().reason


def test_a_request_of_another_shape_breaks_no_engine(folder: Path, answers: Any) -> None:
    """Neither engine takes it: the next request is answered as before, by whichever engine."""
    requests, wanted = answers
    with Guard.open("int8", "fp16", ALL, tell=lambda _: None) as guard:
        with pytest.raises(Exception, match="its input image is 4x3x16x16, and the data are 2x3x16x16"):
            guard.run({"image": requests[0][:2]})
        assert guard.state().breaker is BreakerState.CLOSED
        np.testing.assert_array_equal(guard.run({"image": requests[1]})["logits"], wanted["int8"][1])


def test_an_engine_s_first_launch_disturbs_nothing_else_in_the_process(folder: Path, answers: Any) -> None:
    """It is captured in a graph, during which what another library does on CUDA's default stream must not fail."""
    from evaluators.backends.tensorrt.device import check_cuda, cudart

    requests, wanted = answers
    cuda, array = cudart(), np.zeros(1024, np.float32)
    pointer, to_device = check_cuda(cuda.cudaMalloc(array.nbytes)), cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
    given: list[NDArray[Any]] = []
    thread = threading.Thread(
        target=lambda: given.extend(engine("int8")({"image": requests[0]})["logits"] for _ in range(20))
    )
    thread.start()
    errors = set()
    while thread.is_alive():
        errors.add(int(cuda.cudaMemcpy(pointer, array.ctypes.data, array.nbytes, to_device)[0]))
    thread.join()
    check_cuda(cuda.cudaFree(pointer))
    assert errors == {0}
    assert len(given) == 20
    for logits in given:
        np.testing.assert_array_equal(logits, wanted["int8"][0])


@pytest.mark.alone  # it looks at the memory of the whole device
def test_a_guard_that_is_gone_leaves_no_memory_on_the_device(folder: Path, answers: Any) -> None:
    import gc

    from evaluators.backends.tensorrt.device import check_cuda, cudart

    requests, _ = answers
    left = []
    for _ in range(6):
        with Guard.open("int8", "fp16", ALL) as guard:
            guard.run({"image": requests[0]})
        del guard
        gc.collect()
        left.append(check_cuda(cudart().cudaMemGetInfo())[0])
    assert left[-1] >= left[1], "free bytes after each guard"


# -- fresh data --------------------------------------------------------------------------------------------------------


def test_fresh_data_of_the_same_kind_are_no_drift_and_brighter_ones_are(folder: Path) -> None:
    same = invoke("drift", "s", "--data", "fresh.npz", "--json")
    assert same.exit_code == 0, f"{same.output}\n{same.exception!r}"
    assert json.loads(same.stdout)["verdict"] == "no drift"
    bright = invoke("drift", "s", "--data", "bright.npz", "--json")
    assert bright.exit_code == 1, f"{bright.output}\n{bright.exception!r}"
    assert json.loads(bright.stdout)["verdict"] == "drift"


def test_drift_scores_the_best_engine_and_renew_builds_it_again(folder: Path) -> None:
    with np.load("in/data.npz") as known:
        np.savez("labelled.npz", image=2 * known["image"], labels=known["labels"])
    found = invoke("drift", "s", "--data", "labelled.npz")
    assert found.exit_code == 1, f"{found.output}\n{found.exception!r}"
    assert "on 600 fresh samples" in " ".join(found.stdout.split())
    said = invoke(
        "resume", "s", "--as", "s-renewed", "--data", "labelled.npz", "--max-drop", "60%", "--out", "renewed", "--json"
    )
    assert said.exit_code in (0, 3), f"{said.output}\n{said.exception!r}"
    renewal = json.loads(said.stdout)
    assert (renewal["study"], renewal["renewed_from"]) == ("s-renewed", "s")
    assert renewal["mixes"]
    for mix in renewal["mixes"]:
        assert mix["renewed"] is not None, mix
    assert Path("renewed/model.plan").exists() == (said.exit_code == 0)
    assert json.loads(ok("status", "s-renewed", "--json"))["renewed_from"] == "s"
