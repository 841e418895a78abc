"""Tables on a terminal: at 80 columns no cell is wrapped, and what has no room is told below."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bitfront.printing import output
from search.values import Failure, FailureKind, Stage
from studies.judging.rounding import interval_text
from studies.judging.sentences.picks import band_text
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits, MetricScale
from studies.run.search_result import Mixes
from studies.show.status_text import studies_table
from studies.show.terminal.front_table import front_table, limits_legend, points_table, sorted_points, trials_table
from studies.show.terminal.progress_table import progress_table
from studies.show.terminal.text_table import Column, TextTable, plain_table, shorten_middle, wrap_text
from studies.store.records import StudySummary
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, make_study

TOP1 = MetricScale("top1", ratio=True)
SQNR = MetricScale("sqnr", unit="dB")
LIMITS = Limits(max_drop=0.02)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Standing, Mixes]:
    """A study of three precisions with baselines, mixes, a failure and an evaluation that beats nothing."""
    folder = tmp_path_factory.mktemp("terminal")
    with Store.open(f"sqlite:///{folder / 'a.db'}", create=True) as store:
        target = make_study(store, max_drop="2%")
        for trial, (name, code) in enumerate((("fp32", 0), ("fp16", 1), ("int8", 2))):
            made = evaluated((code,) * 12, 12.5 / (trial + 1), 0.14 * (trial == 2), 0.0123)
            add(store, target, trial, made, f"baseline:{name}")
        codes = (2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 0, 0)
        add(store, target, 3, evaluated(codes, 4.375, 0.0123, 0.0043))
        add(store, target, 4, evaluated((*codes[:-1], 2), 4.25, 0.0523, 0.0043))
        broken = Failure(Stage.BUILD, FailureKind.OUT_OF_MEMORY, "no room", "")
        failed = evaluated((*codes[:-2], 2, 1), 4.25, 0.0523, 0.0043, failure=broken, latency=None, accuracy=None)
        add(store, target, 5, failed)
        study = store.studies.load("s")
        now = read_standing(store, study, store.targets.of_study(study.id)[0], LIMITS)
        return now, Mixes(store.evaluations.assignments(target))


def test_of_a_metric_that_compares_with_fp32_the_value_itself_is_shown(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    relative = replace(now)
    relative.__dict__["metric"] = MetricScale("sqnr", "dB", relative=True)  # as the property keeps it
    headers = front_table(relative, mixes).header
    assert "loss" not in headers
    assert "final loss" not in headers
    cells = front_table(relative, mixes).rows[0]
    assert " ± " in cells[headers.index("sqnr")]


def test_the_legend_explains_only_a_column_that_is_shown(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    table = front_table(now, mixes)
    assert limits_legend(table.fit(None)).startswith("limits: ")
    narrow = table.fit(30)
    assert "limits" not in narrow.headers
    assert limits_legend(narrow) == ""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_line_fits_and_every_row_is_one(judged: tuple[Standing, Mixes], width: int) -> None:
    now, mixes = judged
    for table in (front_table(now, mixes), trials_table(now, sorted_points(now, "trial"), mixes)):
        fitted = table.fit(width)
        lines = [line for line, _ in fitted.lines()]
        assert all(cell_len(line) <= width for line in lines)
        assert len(lines) == 1 + len(table.rows)
        for sentence in (*fitted.sentences(), limits_legend(fitted)):
            broken = wrap_text(sentence, width)
            assert " ".join(broken) == sentence, "only at spaces, and nothing is lost"
            assert all(cell_len(line) <= width for line in broken)


def test_fp32_has_the_digits_of_the_other_rows(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    points = [
        now.point(0).with_values(metric_value=0.95, loss_low=0.0, loss_high=0.0),
        now.point(3).with_values(metric_value=0.9377),
    ]
    table = points_table(now, points, mixes, lambda *_: iter(()))
    place = table.header.index("top1")
    assert [row[place] for row in table.rows] == ["95.0 %", "93.8 %"]


def test_the_tie_band_has_two_digits(judged: tuple[Standing, Mixes]) -> None:
    now, _ = judged
    for band, text in ((0.241, "24 %"), (0.0251, "2.5 %")):
        told = band_text(replace(now, target=now.target.with_values(latency_band=band)))
        assert told.startswith(f"latencies within {text} of each other count as a tie")


def test_at_80_columns_a_front_shows_pick_latency_metric_limits_and_mix(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    fitted = front_table(now, mixes).fit(80)
    header, *rows = [line for line, _ in fitted.lines()]
    assert header.split()[:2] == ["pick", "trial"]
    assert {"latency", "top1", "limits", "INT8/FP16/FP32"} <= set(header.split())
    assert {name for name in ("INT8", "FP16", "FP32") for row in rows if name in row.split()[:2]} == {
        *("INT8", "FP16", "FP32")
    }
    assert [row.startswith("best") for row in rows] == [True, *[False] * (len(rows) - 1)]
    assert fitted.styles[0] == "bold green"


def test_a_pipe_has_all_columns_and_notes_in_the_row(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    fitted = trials_table(now, sorted_points(now, "trial"), mixes).fit(None)
    lines = [line for line, _ in fitted.lines()]
    assert "loss" in lines[0]
    assert lines[0].endswith("notes")
    assert lines[6].endswith("failed at build (out of memory)")
    assert not list(fitted.sentences())
    assert [line[: line.index("  ")].split(", ")[-1] for line in lines[1:4]] == ["FP32", "FP16", "INT8"]


def test_picks_without_room_are_told_below_and_a_baseline_keeps_its_name(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    table = front_table(now, mixes)
    whole = [row[0] for row in table.rows]
    fitted = table.fit(80)
    for row, short, trial in zip(whole, (row[0] for row in fitted.rows), (row[1] for row in table.rows), strict=True):
        picks = row.split(", ")
        assert row == short or f"trial {trial}: {row}." in fitted.sentences()
        assert all(name in short for name in picks if name in ("best", "FP32", "INT8", "FP16"))
    assert any(", " in row for row in whole)


def test_notes_say_nothing_that_a_column_shows(judged: tuple[Standing, Mixes]) -> None:
    now, mixes = judged
    for table in (front_table(now, mixes), trials_table(now, sorted_points(now, "trial"), mixes)):
        limits, notes = (table.header.index(name) for name in ("limits", "notes"))
        assert [row[notes] for row in table.rows if row[limits] == "missed" and "misses" in row[notes]] == []
    beaten = [row for row in front_table(now, mixes).rows if "beaten" in row[-1]]
    assert [row for row in beaten if row[0]] == []


def test_the_display_shows_fp32_int8_the_best_and_the_last(judged: tuple[Standing, Mixes]) -> None:
    now, _ = judged
    fitted = progress_table(now, int(now.table.id[now.table.trial == 5][0])).fit(80)
    names = [row[0] for row in fitted.rows]
    assert names == ["FP32", "INT8", "best", "last"]
    assert fitted.headers[:7] == ["", "trial", "latency", "× FP32", "samples/s", "top1", "loss"]
    assert fitted.rows[-1][2] == "failed"
    assert any("failed at build (out of memory)" in text for text in (*fitted.rows[-1], *fitted.sentences()))
    assert all(cell_len(line) <= 80 for line, _ in fitted.lines())


def test_sorted_points_put_what_has_no_latency_last(judged: tuple[Standing, Mixes]) -> None:
    now, _ = judged
    assert [point.trial for point in sorted_points(now, "latency")] == [2, 4, 3, 1, 0, 5]
    assert [point.trial for point in sorted_points(now, "loss")][-2:] == [2, 5]


def test_notes_without_room_name_their_rows() -> None:
    table = TextTable(
        [Column("name"), Column("value", right=True), Column("why", note=True)],
        [["a", "1", "too slow for it; odd"], ["b", "22", "too slow for it"], ["c", "3", ""]],
    )
    fitted = table.fit(20)
    assert [line for line, _ in fitted.lines()] == ["name  value", "a         1", "b        22", "c         3"]
    assert list(fitted.sentences()) == ["names a, b: too slow for it.", "name a: odd."]
    assert [line for line, _ in table.fit(None).lines()][1] == "a         1  too slow for it; odd"


def test_columns_without_room_are_named_and_long_names_lose_their_middle() -> None:
    long = "/backbone/stage3/block7/conv2/Conv"
    fitted = plain_table([[long, "Conv", "1.25", "kernel of it"]], ["node", "op", "ms", "kernel"]).fit(30)
    header, row = (line for line, _ in fitted.lines())
    assert cell_len(row) <= 30
    assert row.split()[0].startswith("/bac")
    assert "…" in row
    assert row.split()[0].endswith("/Conv")
    assert "Columns without room:" in next(iter(fitted.sentences()))
    assert header.split()[0] == "node"


def test_a_shortened_text_keeps_both_ends_and_its_width() -> None:
    for width in range(3, 20):
        assert cell_len(shorten_middle("abcdefghijklmnopqrst", width)) <= width
    assert shorten_middle("abcdefghij", 7) == "ab…ghij"
    assert shorten_middle("short", 5) == "short"


def test_no_sentence_is_cut_and_no_word_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    text = "one two " * 30 + "/a/path/that/is/longer/than/a/line/of/the/terminal/and/is/not/broken"
    lines = wrap_text(text.strip(), 40, "  ")
    assert re.sub(r"\s+", " ", " ".join(lines)) == text
    output.say(text)
    assert capsys.readouterr().out == text + "\n", "in a pipe a sentence is one line"


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    text = "loss is 5.0 × the limit of 2 % and 3.25 ms ± 0.5 ms at 44.1 dB, which is ≤ 50 dB by far and near"
    for width in range(20, 100):
        lines = wrap_text(text, width)
        assert " ".join(lines) == text
        assert not [line for line in lines if re.search(r"[\d]$", line) or re.match(r"(%|ms|dB|×|±)", line)]


def test_names_of_studies_are_whole_at_every_width() -> None:
    name = "a-long-name-of-a-study-of-the-camera-of-the-front-door-2026"
    row = {"name": name, "state": "done", "created_at": datetime(2026, 11, 23, tzinfo=timezone.utc)}
    study = StudySummary(**row, model_path="/models/of/the/door.onnx", targets=1, ok=10, failed=1, running=0)
    fitted = studies_table([(study, ())]).fit(80)
    assert name in next(line for line, _ in list(fitted.lines())[1:])
    assert all(cell_len(line) <= 80 for line, _ in fitted.lines())


def test_an_interval_has_the_digits_of_its_estimate() -> None:
    assert interval_text(0.1264, 0.1431, TOP1) == "12.6 … 14.3 %"
    assert interval_text(-0.0009762, 0.001809, TOP1) == "-0.10 … 0.18 %"
    assert interval_text(2.0, 2.0, SQNR) == "2 dB"


def test_only_a_real_terminal_is_a_screen_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = Console(file=io.StringIO(), force_terminal=True)
    assert not output.is_screen(forced), "FORCE_COLOR in a pipe: every row stays one line"
    assert output.terminal_width(forced) is None
    table = TextTable([Column("a")], [["1"]], styles={0: "green"})
    for environment, colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        written = Screen()
        shown = Console(file=written, _environ={"TERM": "xterm", "COLUMNS": "80", **environment})
        monkeypatch.setattr(output, "out", shown)
        output.print_text_table(table)
        assert output.is_screen(shown)
        assert ("\x1b[32m" in written.getvalue()) is colour


class Screen(io.StringIO):
    """What a program takes for a terminal."""

    def isatty(self) -> bool:
        return True


def test_an_error_is_broken_between_words_and_its_commands_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "  docker run --detach --publish 5432:5432 --env POSTGRES_USER=bitfront --env POSTGRES_DB=b postgres"
    written = Screen()
    monkeypatch.setattr(output, "err", Console(file=written, width=80, _environ={"TERM": "dumb"}))
    output.print_error(f"{'one long sentence ' * 9}\nStart it:\n{command}\nand go on", "error: ")
    lines = written.getvalue().splitlines()
    assert command in lines
    assert all(cell_len(line) <= 80 for line in lines if line != command)
    assert " ".join(lines[: lines.index("Start it:")]) == f"error: {'one long sentence ' * 9}".strip()
    assert lines[-1] == "and go on"


def test_styles_do_not_change_the_text() -> None:
    table = TextTable([Column("a"), Column("b")], [["[red]x", "1"]], styles={0: "green"})
    [_, (line, style)] = table.fit(80).lines()
    assert Text(line, style=style).plain == "[red]x  1"
