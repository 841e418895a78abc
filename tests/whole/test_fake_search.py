"""A whole study on the fake backend: verbs work, faults are stored failures, and all of it says that it is fake."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.command_line import evaluator_processes, invoke, ok, write_inputs

FAKE = ("--backend", "fake")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(study: str, *more: object) -> str:
    """What a search of four trials printed."""
    return ok("search", "model.onnx", "--data", "data.npz", *FAKE, "--study", study, "--trials", 4, *more)


def rows(study: str) -> list[dict[str, object]]:
    """Every evaluation of a study as `show` gives it."""
    return [json.loads(ok("show", study, number, "--json")) for number in range(4)]


def option(text: str) -> tuple[str, str]:
    return "--backend-option", text


@pytest.mark.slow
def test_search_resume_front_export_and_report(here: Path) -> None:
    result = invoke("search", "model.onnx", "--data", "data.npz", *FAKE, "--study", "s", "--trials", 6)
    assert result.exit_code == 0, result.output
    assert "WARNING: backend fake builds no engine" in result.stderr
    assert "8 evaluations are done" in ok("resume", "s", "--trials", 8)
    front = json.loads(ok("front", "s", "--json"))
    assert any("invented" in text for text in front["warnings"])
    ok("export", "s", "--out", "engine", "--trial", 2)
    manifest = json.loads((here / "engine/manifest.json").read_text())
    assert any("invented" in text for text in manifest["warnings"])
    assert set(manifest["files"]) == {
        "README.md",
        "calibration.cache",
        "model.fake.json",
        "model.float.onnx",
        "model.onnx",
        "ranges.json",
        "final_samples.json",
    }
    ok("report", "s", "--out", "report.html")
    assert "backend fake builds no engine" in (here / "report.html").read_text()
    refused = invoke("export", "s", "--out", "triton", "--triton", "net")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "Triton does not run engines of backend fake" in refused.stderr


@pytest.mark.slow
def test_two_searches_find_the_same(here: Path) -> None:
    for study in ("one", "two"):
        search(study, "--quiet", "--sampler", "random", "--seed", 3)
    losses = [
        [(row["mix"], row["loss"]) for row in json.loads(ok("front", s, "--json"))["rows"]] for s in ("one", "two")
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "stage", "kind"),
    [
        ("refuse", "build", "refused"),
        ("crash", "build", "crashed"),
        ("not-finite", "accuracy", "non_finite"),
    ],
)
def test_a_fault_is_a_failure_of_the_evaluations_that_it_hits(here: Path, fault: str, stage: str, kind: str) -> None:
    search("s", *option(f"fake-fault={fault}:second=int8"), "--quiet", "--sampler", "random")
    for row in rows("s"):
        asked = next(group["asked"] for group in row["groups"] if "second" in group["node"])  # type: ignore[attr-defined]
        failed = row["failure"] and (row["failure"]["stage"], row["failure"]["kind"])  # type: ignore[index]
        assert failed == ((stage, kind) if asked == "int8" else None), row


class HangClock:
    """Time passes only while an evaluator process has told its log that it hangs: slowness is not taken for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logs: dict[int, str] = {}  # of a process, as it was first seen: processes that follow each other share one

    def monotonic(self) -> float:
        self.now += any(self._hangs(evaluator.pid) for evaluator in evaluator_processes())
        return self.now

    def _hangs(self, pid: int) -> bool:
        with suppress(OSError):
            log = Path(f"/proc/{pid}/fd/1").read_text(encoding="utf-8", errors="replace")
            return "an invented fault" in log.removeprefix(self.logs.setdefault(pid, log))
        return False


@pytest.mark.slow
def test_an_evaluation_that_hangs_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.process.child.time", HangClock())
    search("s", *option("fake-fault=hang:second=int8"), "--evaluation-timeout", "2s", "--quiet")
    assert {row["failure"]["kind"] for row in rows("s") if row["failure"]} == {"timeout"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("fake-seed=x", "--backend-option fake-seed: expected a whole number"),
        ("fake-sed=3", "backend fake has no such option; did you mean fake-seed"),
        ("fake-fault=melt:a=int8", "option fake-fault: expected ACTION:REGEX=PRECISION"),
        ("fake-seed", "--backend-option: expected NAME=VALUE"),
    ],
)
def test_options_that_cannot_be_read_are_refused_with_nothing_made(here: Path, given: str, says: str) -> None:
    result = invoke("search", "model.onnx", "--data", "data.npz", *FAKE, *option(given))
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["data.npz", "model.onnx"]


def test_the_doctor_says_that_it_is_there_and_does_not_count_it() -> None:
    lines = {row["name"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    assert "invented" in lines["fake"]["found"]
    assert not any(name.startswith("backend fake") for name in lines)
