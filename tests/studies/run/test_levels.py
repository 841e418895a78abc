"""TensorRT's optimization level: chosen by what the first build takes, once for a study and target."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from search.errors import StudyError
from studies.options.read_options import read_config
from studies.run.session import levels
from studies.run.session.levels import choose_level
from tests.support.command_line import invoke, ok, quick, run_sql, write_inputs
from tests.support.requests import Asked, watch_requests

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("first_s", "time_s", "level"),
    [
        (27.0, 480.0, 2),  # a network with SiLU and the default of 60 trials: 84 + 230 s for two first builds
        (27.0, 3600.0, 3),
        (4.0, 480.0, 3),
        (6.0, 480.0, 2),
        (0.2, 15.0, 2),
        (0.1, 60.0, 3),
    ],
)
def test_the_high_level_is_chosen_where_its_first_builds_are_a_small_part(
    first_s: float, time_s: float, level: int
) -> None:
    chosen = choose_level(first_s, time_s)
    assert chosen.level == level
    if first_s == 27.0 and level == 2:
        assert chosen.reason == "the first build took 27 s; level 3 would take about three times as long"


class Levels:
    """The first builds that were asked for, and what they are said to have taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first_s = 0.0
        self.asked: list[Any] = []
        watch_requests(monkeypatch, self._around)

    def _around(self, asked: Asked) -> Any:
        found = asked.make()
        if asked.name != "build_first":
            return found
        self.asked.append(asked.keeper.job.options["optimization_level"])
        return self.first_s


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    with quick():
        monkeypatch.setenv("BITFRONT_TEST_TENSORRT", "8.6.1")
        yield Levels(monkeypatch)


def search(*more: tuple[str, str]) -> None:
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "backend": "tensorrt"}
    verbs.search(read_config({**options, "sampler": "random", "trials": "4", **dict(more)}))


def built_at() -> set[int]:
    return {json.loads(engine)["optimization_level"] for (engine,) in run_sql("select engine from bf_evaluation")}


@pytest.mark.parametrize(("first_s", "level"), [(0.5, 3), (60.0, 2)])
def test_every_engine_of_a_study_is_built_at_the_level_that_was_chosen(
    builds: Levels, first_s: float, level: int
) -> None:
    builds.first_s = first_s
    search(("time-limit", "10m"))
    first, *later = asked = builds.asked.copy()
    assert first == levels.START_LEVEL, "by this build the level is chosen"
    assert set(later[:-1]) <= {level}, "what is built beside calibration after that has the level"
    assert later[-1:] in ([], [levels.START_LEVEL]), "asked once more, and answered with what is known"
    assert run_sql("select optimization_level from bf_study_target") == [(level,)]
    assert built_at() == {level}
    assert json.loads(ok("front", "s", "--json"))["optimization_level"] == level
    assert f"at optimization level {level}" in ok("show", "s", "0")
    ok("report", "s", "--out", "r.html")
    assert f"optimization level is {level}: the first build took" in Path("r.html").read_text(encoding="utf-8").replace(
        "&#x27;", "'"
    )
    verbs.resume("s", {"trials": 6})
    assert builds.asked == asked, "a later run takes it over"
    assert built_at() == {level}
    ok("export", "s", "--trial", "1", "--out", "out")
    manifest = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))
    assert (manifest["knobs"]["optimization_level"], manifest["evaluation"]["rebuilt"]) == (str(level), False)
    assert manifest["evaluation"]["build_s"] > 0


def test_a_level_that_is_asked_for_is_taken_and_no_other_one_later(builds: Levels) -> None:
    search(("optimization-level", "1"))
    assert set(builds.asked) == {1}, "no build at another level, to choose by"
    assert run_sql("select optimization_level from bf_study_target") == [(1,)]
    assert built_at() == {1}
    with pytest.raises(StudyError, match="at level 1, and latencies of two levels cannot be compared"):
        verbs.resume("s", {"trials": 6, "optimization_level": 3})


def test_other_words_and_numbers_are_refused(builds: Levels) -> None:
    said = invoke("search", "in/model.onnx", "--data", "in/data.npz", "--optimization-level", "6")
    assert said.exit_code == 2
    assert "auto, or a whole number from 0 to 5" in " ".join(said.stderr.split())


@pytest.mark.parametrize(("version", "second"), [("8.6.1", "fp16"), ("11.4.0.106", "bf16")])
def test_processes_that_only_build_learn_from_the_lower_precisions_while_the_model_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, second: str
) -> None:
    """FP32 is built by the process that measures, INT8 by the first builder whatever else is offered, and
    the next precision by the other builder; nothing is lost.

    Each builder then learns from a mix in which precisions meet, while the model is still calibrated.
    """
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", version)
    first: dict[str, list[set[str]]] = {}
    mixes: list[Any] = []
    all_begun = threading.Event()

    def around(asked: Asked) -> Any:
        if asked.name == "build_first" and asked.keeper.job.ranges is None:
            assignment = dict(asked.arguments)["assignment"]
            labels = {precision.label for precision in assignment.values()}
            first.setdefault(Path(asked.keeper.job.folder).name, []).append(labels)
            if len(first.get("builder0", ())) == len(first.get("builder1", ())) == 2:
                all_begun.set()
            if len(first[Path(asked.keeper.job.folder).name]) == 2:
                mixes.append(assignment)
        elif Path(asked.keeper.job.folder).name == "calibration":
            assert all_begun.wait(60)
        return asked.make()

    with quick():
        watch_requests(monkeypatch, around)
        search(("builders", "2"), ("trials", "8"))
    assert first["evaluator"] == [{"fp32"}]
    assert "int8" in first["builder0"][0], "with the next finer where INT8 is not offered"
    assert first["builder1"][0] == {second}
    assert len(mixes) == 2
    assert mixes[0] != mixes[1]
    assert first["builder0"][1] == first["builder1"][1] == {"int8", second}
    assert run_sql("select status, count(*) from bf_evaluation group by status") == [("ok", 8)]
    assert built_at() == {json.loads(ok("front", "s", "--json"))["optimization_level"]}


def test_a_slow_builder_learns_from_a_mix_while_the_other_one_builds_for_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where first builds are slow the first builder alone learns from a mix, and evaluations do not wait for that."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", "8.6.1")
    monkeypatch.setattr("studies.run.session.first_builds._QUICK_S", 0.0)
    learnt: dict[str, int] = {}
    evaluated_meanwhile: list[bool] = []
    mix_begun, all_evaluated = threading.Event(), threading.Event()

    def around(asked: Asked) -> Any:
        process = Path(asked.keeper.job.folder).name
        if asked.name == "build_first":
            learnt[process] = learnt.get(process, 0) + 1
            if process == "builder0" and learnt[process] == 2:
                mix_begun.set()
                evaluated_meanwhile.append(all_evaluated.wait(120))
        elif process == "calibration":
            assert mix_begun.wait(60)
        elif asked.name == "score_finalists":
            all_evaluated.set()
        return asked.make()

    with quick():
        watch_requests(monkeypatch, around)
        search(("builders", "2"), ("trials", "8"))
    assert (learnt["builder0"], learnt["builder1"]) == (2, 1)
    assert evaluated_meanwhile == [True]
    assert run_sql("select status, count(*) from bf_evaluation group by status") == [("ok", 8)]
