"""The guard on engines that are planted functions, and on exported folders with ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from search.errors import ConfigError
from studies.guard import BreakerState, Guard, GuardError, GuardOptions, GuardState
from studies.guard.compensation import Compensation
from studies.guard.engines import outputs_kind
from studies.guard.options import CLASSES, VALUES
from studies.guard.state import Breaker
from tests.support.networks import images, plain_session, residual_cnn, save

Arrays = dict[str, NDArray[Any]]
ALL = GuardOptions(share=1, window=5, windows=2, probe_after_s=0, queue=1000)


def scores(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    return {"y": np.asarray(inputs["x"], np.float32)}


class Engine:
    """Scores of classes; wrong, failing or not finite on demand."""

    def __init__(self) -> None:
        self.calls = 0
        self.change: Callable[[NDArray[Any]], NDArray[Any]] = lambda y: y
        self.error: BaseException | None = None

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return {"y": self.change(scores(inputs)["y"])}


@pytest.fixture
def fast() -> Engine:
    return Engine()


@pytest.fixture
def safe() -> Engine:
    return Engine()


def request(seed: int) -> Arrays:
    return {"x": np.random.default_rng(seed).normal(size=(1, 10)).astype(np.float32)}


def serve(guard: Guard, count: int) -> list[Arrays]:
    answers = [guard.run(request(i)) for i in range(count)]
    guard.drain()
    return answers


def test_equal_engines_go_on_for_ever(fast: Engine, safe: Engine) -> None:
    with Guard(fast, safe, ALL) as guard:
        for i, answer in enumerate(serve(guard, 40)):
            np.testing.assert_array_equal(answer["y"], request(i)["x"])
        state = guard.state()
    assert (state.breaker, state.engine, state.compared, state.agreement) == (BreakerState.CLOSED, "fast", 40, 1.0)


def test_a_share_of_the_requests_is_compared(fast: Engine, safe: Engine) -> None:
    with Guard(fast, safe, GuardOptions(share=0.1, queue=1000), seed=0) as guard:
        serve(guard, 1000)
        assert 60 < guard.state().compared == safe.calls < 140
        assert guard.state().requests == fast.calls == 1000


def test_a_shift_sends_all_requests_to_the_safe_engine_and_back(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    with Guard(fast, safe, ALL, tell=said.append) as guard:
        fast.change = lambda y: -y
        serve(guard, 10)
        assert guard.state().breaker is not BreakerState.CLOSED
        assert "agreed less than 0.9" in guard.state().reason
        np.testing.assert_array_equal(guard.run(request(1))["y"], request(1)["x"])
        fast.change = lambda y: y
        until(lambda: serve(guard, 5) and guard.state().breaker is BreakerState.CLOSED)
        assert guard.state().engine == "fast"
    assert said[0].startswith("the safe engine answers all requests now: 2 windows of 5 samples in a row")
    assert said[-1] == "the fast engine answers again"


def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another thread does."""
    deadline = threading.Event()
    for _ in range(600):
        if condition():
            return
        deadline.wait(0.05)
    raise AssertionError("it never happened")


def test_outputs_that_are_not_finite_are_never_given(fast: Engine, safe: Engine) -> None:
    fast.change = lambda y: y * np.nan
    with Guard(fast, safe, GuardOptions(share=0)) as guard:
        np.testing.assert_array_equal(guard.run(request(0))["y"], request(0)["x"])
        assert guard.state().breaker is BreakerState.OPEN
        assert guard.state().reason == "the fast engine gave NaN or Inf where the safe one gave numbers"
        guard.run(request(1))
    assert fast.calls == 1


def test_inputs_that_are_not_finite_are_no_fault_of_the_fast_engine(fast: Engine, safe: Engine) -> None:
    with Guard(fast, safe, GuardOptions(share=0)) as guard:
        assert np.isnan(guard.run({"x": np.full((1, 3), np.nan, np.float32)})["y"]).all()
        assert guard.state().breaker is BreakerState.CLOSED


def test_an_engine_that_ends_its_thread_is_told_and_comparing_goes_on(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    with Guard(fast, safe, ALL, tell=said.append) as guard:
        safe.error = SystemExit(3)
        serve(guard, 2)
        safe.error = None
        serve(guard, 3)
        assert guard.state().compared == 3
    assert any("SystemExit: 3" in each for each in said)


def test_an_array_of_no_numbers_is_no_answer(fast: Engine, safe: Engine) -> None:
    fast.change = lambda y: np.full(y.shape, None)
    with Guard(fast, safe, GuardOptions(share=0)) as guard:
        np.testing.assert_array_equal(guard.run(request(0))["y"], request(0)["x"])
        assert "an array of Python objects" in guard.state().reason


def test_an_error_of_the_fast_engine_costs_no_request(fast: Engine, safe: Engine) -> None:
    fast.error = RuntimeError("planted")
    with Guard(fast, safe, GuardOptions(share=0)) as guard:
        np.testing.assert_array_equal(guard.run(request(0))["y"], request(0)["x"])
        assert guard.state().reason == "the fast engine raised RuntimeError: planted"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned NoneType, expected a dictionary of NumPy arrays by output name"),
        ([np.ones(3)], "returned list, expected a dictionary of NumPy arrays by output name"),
        ({"y": [1.0, 2.0]}, "gave the output 'y' as list, expected a NumPy array"),
        ({"z": np.ones(3)}, "gave the outputs z, expected those of the safe engine, y"),
        ({"y": np.ones(3), "z": np.ones(3)}, "gave the outputs y, z, expected those of the safe engine, y"),
        ({}, "gave the outputs none, expected those of the safe engine, y"),
    ],
)
def test_what_are_no_outputs_is_never_given(safe: Engine, answer: Any, said: str) -> None:
    answers: list[Any] = [scores(request(0)), answer]
    with Guard(lambda inputs: answers.pop(0), safe, GuardOptions(share=1e-9)) as guard:
        guard.run(request(0))
        guard.drain()  # the first request is compared, and tells the names
        np.testing.assert_array_equal(guard.run(request(1))["y"], request(1)["x"])
        assert guard.state().reason == f"the fast engine {said}"
        assert guard.state().engine == "safe"


def test_wrong_names_in_the_first_answer_open_the_breaker_as_soon_as_it_is_compared(safe: Engine) -> None:
    with Guard(lambda inputs: {"z": inputs["x"]}, safe, GuardOptions(share=1e-9)) as guard:
        guard.run(request(0))
        guard.drain()
        assert guard.state().reason == "the fast engine gave the outputs z, expected those of the safe engine, y"


@pytest.mark.parametrize("answer", [None, [np.ones(3)], {"y": 1.0}, {}])
def test_a_safe_engine_that_gives_no_outputs_is_an_error_that_says_so(fast: Engine, answer: Any) -> None:
    said: list[str] = []
    with Guard(fast, lambda inputs: answer, ALL, tell=said.append) as guard:
        serve(guard, 2)
        assert guard.state().engine == "fast"
        assert len(said) == 1
        assert said[0].startswith("comparing a sample: the safe engine ")
        fast.error = RuntimeError("planted")
        with pytest.raises(GuardError, match=r"raised RuntimeError: planted; the safe engine .* Correct the function"):
            guard.run(request(0))


def test_nan_in_bfloat16_is_never_given(safe: Engine) -> None:
    bfloat16 = ml_dtypes.bfloat16
    with Guard(lambda inputs: {"y": np.array([[1, np.nan]], bfloat16)}, safe, GuardOptions(share=0)) as guard:
        np.testing.assert_array_equal(guard.run(request(0))["y"], request(0)["x"])
        assert guard.state().reason == "the fast engine gave NaN or Inf where the safe one gave numbers"


def test_an_engine_that_hangs_in_a_comparison_does_not_hold_up_closing(fast: Engine) -> None:
    said: list[str] = []
    called, over = threading.Event(), threading.Event()

    def hang(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        called.set()
        over.wait()
        return scores(inputs)

    guard = Guard(fast, hang, ALL, tell=said.append)
    guard.run(request(0))
    called.wait()
    guard.close(timeout_s=0.1)
    assert said == [
        "closing a guard: an engine has not answered within 0.1 s in a comparison. Its thread is left behind, and ends "
        "when the engine answers or the process ends."
    ]
    guard.drain()  # ends, because what waits is left out
    over.set()


def test_both_engines_failing_is_said(fast: Engine, safe: Engine) -> None:
    fast.error, safe.error = RuntimeError("one"), ValueError("two")
    with Guard(fast, safe, GuardOptions(share=0)) as guard:
        with pytest.raises(
            GuardError, match="fast engine raised RuntimeError: one; the safe engine raised ValueError: two"
        ):
            guard.run(request(0))
        assert guard.state().breaker is BreakerState.CLOSED  # it may well be the request that is wrong


def test_a_safe_engine_that_fails_beside_the_requests_is_told(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    safe.error = ValueError("planted")
    with Guard(fast, safe, ALL, tell=said.append) as guard:
        serve(guard, 3)
        assert guard.state().breaker is BreakerState.CLOSED
    told = "comparing a sample: ValueError: planted. Requests are answered as before; the sample is left out."
    assert said == [told]  # of three


def test_a_safe_engine_that_gives_nan_beside_the_requests_is_told_and_breaks_nothing(
    fast: Engine, safe: Engine
) -> None:
    """Half precision overflows where eight bits only clip: the engine to fall back to is then the broken one."""
    said: list[str] = []
    safe.change = lambda y: y * np.nan
    with Guard(fast, safe, ALL, tell=said.append) as guard:
        serve(guard, 20)
        state = guard.state()
    assert (state.breaker, state.compared, state.agreement) == (BreakerState.CLOSED, 0, None)
    assert len(said) == 1
    assert "the safe engine gave NaN or Inf" in said[0]


def test_a_safe_engine_that_fails_when_it_is_needed_is_never_silent(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    fast.error = RuntimeError("one")
    with Guard(fast, safe, GuardOptions(share=0), tell=said.append) as guard:
        guard.run(request(0))
        safe.change = lambda y: y * np.inf
        guard.run(request(1))
        guard.run(request(2))
        assert sum("the safe engine gave NaN or Inf" in line for line in said) == 1
        safe.error = ValueError("two")
        with pytest.raises(GuardError, match="fast engine raised RuntimeError: one; the safe engine raised ValueError"):
            guard.run(request(3))
        assert fast.calls == 1


def test_an_engine_may_not_take_the_name_of_another(fast: Engine, safe: Engine) -> None:
    with pytest.raises(GuardError, match="one of `engines` is called 'safe', which is taken"):
        Guard(fast, safe, engines={"safe": fast})


def test_the_state_survives_a_restart_and_is_shared(fast: Engine, safe: Engine, tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    options = GuardOptions(share=1, window=5, windows=2, probe_after_s=1e6, queue=100)
    with Guard(fast, safe, options, state=file) as guard, Guard(Engine(), Engine(), options, state=file) as other:
        fast.change = lambda y: -y
        serve(guard, 10)
        until(lambda: other.state().breaker is BreakerState.OPEN)
    with Guard(fast, safe, options, state=file) as again:
        assert again.state().breaker is BreakerState.OPEN
        assert again.state().engine == "safe"


def test_a_file_that_is_no_state_is_refused(fast: Engine, safe: Engine, tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    breaker = {**Breaker().to_json(), "bad": "many"}
    stored = [{"version": 1}, {"version": 2, "breaker": {}}, {"version": 1, "breaker": breaker}, []]
    for text in ("", "{broken", "[" * 100_000, *map(json.dumps, stored)):
        file.write_text(text)
        with pytest.raises(GuardError, match=r"expected .*guard\.json to be what a guard of this version wrote"):
            Guard(fast, safe, state=file)


def test_a_state_that_could_never_be_written_is_refused(fast: Engine, safe: Engine, tmp_path: Path) -> None:
    for path, said in ((tmp_path / "gone" / "guard.json", "there is no folder"), (tmp_path, "Is a directory")):
        with pytest.raises(GuardError, match=said):
            Guard(fast, safe, state=path)


def test_a_folder_that_is_gone_costs_no_request(fast: Engine, safe: Engine, tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "gone"
    folder.mkdir()
    with Guard(fast, safe, ALL, state=folder / "guard.json", tell=said.append) as guard:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        folder.write_text("a file where the folder was")
        fast.change = lambda y: -y
        serve(guard, 10)
        assert guard.state().breaker is not BreakerState.CLOSED
    assert sum("It is kept in memory for now." in line for line in said) == 1
    assert sum("reading the guard's state" in line for line in said) <= 1  # it is looked at 20 times a second


def test_a_policy_moves_to_a_mix_of_more_fp16_when_the_device_is_hot(fast: Engine, safe: Engine) -> None:
    celsius = 50.0
    cooler = Engine()

    def policy(state: GuardState) -> str:
        return "more_fp16" if state.sensors["temperature_c"] > 60 else "fast"

    options = GuardOptions(share=0, policy_every_s=0)
    sensor = lambda: {"temperature_c": celsius}  # noqa: E731
    with Guard(fast, safe, options, policy=policy, engines={"more_fp16": cooler}, sensor=sensor) as guard:
        guard.run(request(0))
        assert (fast.calls, cooler.calls) == (1, 0)
        celsius = 61.0
        until(lambda: guard.state().engine == "more_fp16")
        guard.run(request(0))
        assert (fast.calls, cooler.calls) == (1, 1)


def test_a_policy_that_names_no_engine_is_told(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    with Guard(fast, safe, GuardOptions(policy_every_s=1e6), policy=lambda state: "nothing", tell=said.append) as guard:
        until(lambda: said)
        assert guard.state().engine == "fast"
    assert "expected one of fast, safe, got 'nothing'. The fast engine goes on." in said[0]


def test_a_sensor_that_fails_is_told_once_and_its_last_values_stay(fast: Engine, safe: Engine) -> None:
    said: list[str] = []
    celsius: list[float] = [50.0]
    asked: list[int] = []

    def sensor() -> dict[str, float]:
        asked.append(1)
        return {"temperature_c": celsius[0]}  # raises where there is none

    with Guard(fast, safe, GuardOptions(policy_every_s=0), sensor=sensor, tell=said.append) as guard:
        until(lambda: guard.state().sensors)
        celsius.clear()
        before = len(asked)
        until(lambda: len(asked) > before + 3)
        assert guard.state().sensors == {"temperature_c": 50.0}
        celsius.append(61.0)
        until(lambda: guard.state().sensors["temperature_c"] == 61.0)
    assert said == ["asking the sensor and the policy: IndexError: list index out of range. The fast engine goes on."]


def test_the_engine_of_the_policy_is_the_one_that_is_tried_again(fast: Engine, safe: Engine) -> None:
    mix = Engine()
    mix.error = RuntimeError("planted")
    with Guard(fast, safe, ALL, policy=lambda state: "mix", engines={"mix": mix}) as guard:
        until(lambda: guard.state().engine == "mix")
        guard.run(request(0))
        mix.error = None
        until(lambda: serve(guard, 5) and guard.state().breaker is BreakerState.CLOSED)
        assert guard.state().engine == "mix"
    assert fast.calls == 0


def test_a_constant_error_is_compensated(fast: Engine, safe: Engine) -> None:
    fast.change = lambda y: y + np.float32(0.25)
    options = GuardOptions(share=1, compensate=10, outputs="values", threshold=0)
    with Guard(fast, safe, options) as guard:
        assert np.abs(serve(guard, 1)[0]["y"] - request(0)["x"]).max() == pytest.approx(0.25, abs=1e-6)
        assert np.abs(serve(guard, 1)[0]["y"] - request(0)["x"]).max() < 1e-6


def test_errors_of_before_the_fast_engine_was_left_correct_nothing_afterwards(fast: Engine, safe: Engine) -> None:
    options = GuardOptions(
        share=1, window=2, windows=1, probe_after_s=0.05, good_windows=1, compensate=50, outputs="values"
    )
    with Guard(fast, safe, options) as guard:
        serve(guard, 4)
        fast.change = lambda y: -100 * y
        serve(guard, 4)
        assert guard.state().breaker is BreakerState.OPEN
        fast.change = lambda y: y
        until(lambda: (serve(guard, 1), guard.state().breaker is BreakerState.CLOSED)[1])
        np.testing.assert_allclose(guard.run(request(0))["y"], request(0)["x"], atol=1e-6)


def test_an_output_that_changes_its_shape_is_corrected_by_itself() -> None:
    mean = Compensation(10)
    for rows in (3, 4, 3):
        safe = {"scores": np.ones((1, 4), np.float32), "boxes": np.ones((rows, 6), np.float32)}
        mean.add({name: array - 0.5 for name, array in safe.items()}, safe)
        mean.add({"scores": safe["scores"] - 0.5, "boxes": np.ones((9, 6), np.float32)}, safe)
    found = mean.apply({"scores": np.zeros((1, 4), np.float32), "boxes": np.zeros((3, 6), np.float32)})
    assert np.unique(found["scores"]).tolist() == np.unique(found["boxes"]).tolist() == [0.5]


def test_the_mean_error_of_the_fast_engine_corrects_no_other(fast: Engine, safe: Engine) -> None:
    chosen = ["fast"]
    fast.change = lambda y: y + np.float32(0.25)
    options = GuardOptions(share=1, compensate=10, outputs="values", threshold=0, policy_every_s=0)
    with Guard(fast, safe, options, policy=lambda state: chosen[0], engines={"other": Engine()}) as guard:
        serve(guard, 3)
        chosen[0] = "other"
        until(lambda: guard.state().engine == "other")
        np.testing.assert_array_equal(guard.run(request(0))["y"], request(0)["x"])


def test_many_threads_lose_no_request(fast: Engine, safe: Engine) -> None:
    answered: list[bool] = []

    def client(seed: int) -> None:
        inputs = [request(seed + i) for i in range(50)]
        answered.extend(np.array_equal(guard.run(each)["y"], each["x"]) for each in inputs)

    with Guard(fast, safe, ALL) as guard:
        threads = [threading.Thread(target=client, args=(100 * k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        fast.error = RuntimeError("planted in between")
        for thread in threads:
            thread.join()
        assert guard.state().requests == 400
    assert answered == [True] * 400


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": 2}, "expected share from 0 to 1, got 2"),
        ({"share": float("nan")}, "expected share from 0 to 1, got nan"),
        ({"window": 0}, "expected window from 1 to inf, got 0"),
        ({"windows": 0}, "expected windows from 1 to inf, got 0"),
        ({"compensate": -1}, "expected compensate from 0 to inf, got -1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GuardOptions(**options)


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=r"expected a folder that `bitfront export` wrote, but .*manifest\.json"):
        Guard.open(tmp_path, tmp_path)


def test_exports_of_two_models_are_refused(tmp_path: Path) -> None:
    for name, digest in (("fast", "a" * 64), ("safe", "b" * 64)):
        (tmp_path / name).mkdir()
        manifest = {"model": {"digest": digest}, "target": {"backend": "onnxruntime"}, "files": {}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(GuardError, match=r"two exports of one model, but .*fast is of aaaaaaaaaaaa and .*safe"):
        Guard.open(tmp_path / "fast", tmp_path / "safe")


def test_exported_folders_are_served_by_onnx_runtime(tmp_path: Path) -> None:
    model = residual_cnn(batch=2, channels=8)
    for name in ("fast", "safe"):
        (tmp_path / name).mkdir()
        save(model, tmp_path / name / "model.onnx")
        target = {"backend": "onnxruntime", "options": {"threads": 1}}
        manifest = {"model": {"digest": "a" * 64}, "target": target, "files": {}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    (given,) = (spec.name for spec in model.graph.input)
    inputs = {given: images(2)}
    (wanted,) = plain_session(model).run(None, inputs)
    with Guard.open(tmp_path / "fast", tmp_path / "safe", ALL) as guard:
        (answer,) = guard.run(inputs).values()
        guard.drain()
        assert guard.state().compared == 1
        assert guard.state().breaker is BreakerState.CLOSED
    np.testing.assert_allclose(answer, wanted, rtol=1e-4, atol=1e-5)


HEAVY = "sqlalchemy optuna plotly scipy onnx onnx_ir typer rich"


def test_serving_imports_nothing_heavy() -> None:
    code = f"import sys; from studies.guard import Guard; print([m for m in {HEAVY.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [({"name": "top1"}, CLASSES), ({"name": "sqnr"}, VALUES), ({"name": "own"}, None), ([], None), (None, None)],
)
def test_the_metric_of_a_study_says_what_outputs_are(tmp_path: Path, metric: Any, expected: str | None) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"model": {}, "target": {}, "files": {}, "metric": metric}))
    assert outputs_kind(tmp_path) == expected
