"""Searches of which every evaluation failed: what went wrong is told, with exit code 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import DATABASE, copy_finished, invoke, ok, run_sql, write_inputs

pytestmark = pytest.mark.slow

NONE = "no evaluation keeps the limits"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("quiet", [False, True])
def test_a_search_in_which_nothing_comes_through(here: Path, quiet: bool) -> None:
    faults = [f"fake-fault=refuse-unnamed:g000={precision}" for precision in ("fp32", "fp16", "int8")]
    given = [word for fault in faults for word in ("--backend-option", fault)] + ["--quiet"] * quiet
    write_inputs(here)
    result = invoke(
        *("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 4, "--backend", "fake", *given)
    )
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    (error,) = errors
    assert error.startswith(
        "error: all 4 evaluations failed, at build (refused): an invented fault of no particular group."
    )
    assert error.endswith(" One of them: bitfront show s 0")
    assert "nearest" not in result.output
    assert result.output.count("all 4 evaluations failed") == 1
    if not quiet:
        assert "FP32  " in result.stdout


def test_it_is_told_wherever_the_nearest_would_be(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(here)
    run_sql("update bf_evaluation set status = 'failed', stage = 'build', kind = 'out_of_memory', message = 'no room.'")
    run_sql("update bf_evaluation set stage = 'lower', kind = 'error', message = 'odd' where id = 1")
    said = "4 evaluations failed, 3 of them at build (out of memory): no room. One of them: bitfront show small 1"
    assert f"all {said}\n" in ok("front", "small")
    assert "nearest" not in ok("front", "small")
    refused = invoke("export", "small", "--out", "engine")
    assert (refused.exit_code, f"All {said}" in refused.stderr) == (2, True), refused.stderr
    ok("report", "small", "--out", "r.html")
    assert "No evaluation keeps the limits. All 4 evaluations failed" in Path("r.html").read_text(encoding="utf-8")
    shown = ok("show", "small", 1)
    assert "no room." in shown
    assert invoke("resume", "small").exit_code == 1
    (here / "of others").mkdir()
    elsewhere = f"sqlite:///{here / 'of others' / DATABASE}"
    Path(DATABASE).rename(Path("of others") / DATABASE)
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    assert f"show small 1 --storage '{elsewhere}'\n" in ok("front", "small", "--storage", elsewhere)


def test_others_that_cannot_be_judged_are_counted(here: Path) -> None:
    copy_finished(here)
    run_sql("update bf_evaluation set not_obeyed = 1")
    run_sql("update bf_evaluation set status = 'failed', stage = 'build', kind = 'error', message = 'x' where id = 1")
    counts = "one can be judged by them: 3 did not run in the precisions asked for, 1 failed"
    assert f"{NONE}; n{counts}\n" in ok("front", "small")
    refused = invoke("export", "small", "--out", "engine")
    assert (refused.exit_code, f"N{counts}\n" in refused.stderr) == (2, True), refused.stderr
    assert invoke("resume", "small").exit_code == 0


def test_one_that_came_through_is_enough(here: Path) -> None:
    copy_finished(here)
    run_sql("update bf_evaluation set status = 'failed', stage = 'build', kind = 'error', message = 'x' where id > 1")
    assert "failed, " not in ok("front", "small", "--latency-budget", "1ns")
    assert f"{NONE}; the nearest:" in ok("front", "small", "--latency-budget", "1ns")
