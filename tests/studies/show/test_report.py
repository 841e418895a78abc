"""The HTML report: what it shows, that nothing in it is executed or fetched, and that it is written whole."""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from search.errors import ArtifactError, ConfigError
from search.values import Assignment, Precision
from studies.options.limits import Limits
from studies.show import html_parts
from studies.show.html_parts import plotly_library
from studies.show.report.figures import figures
from studies.show.report.front_figure import front_figure, view_of
from studies.show.report.label_places import Mark, place_labels
from studies.show.report.layers import layer_reasons, precision_map
from studies.show.report.page import limit_texts, render_report, write_report
from studies.show.report.rows import (
    FailureRow,
    Mismatch,
    ReportData,
    ReportMetric,
)
from studies.trials.forecasts import Compared
from tests.support.command_line import copy_finished, ok
from tests.support.records import PlantedPoint, choice_record
from tests.support.report_sample import diagnosis, sample

EVIL = "<script>alert(1)</script>"


def page_of(data):
    """The page without the Plotly library, and how often the library was in it."""
    page = render_report(data)
    return page.replace(plotly_library(), ""), page.count(plotly_library()[:400])


def row_of(label, value, text):
    """The texts of the first table row whose first cell has this label and value."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL)
    start = re.compile(rf'<td[^>]*data-label="{label}">{value}</td>')
    return re.findall(r"<td[^>]*>(.*?)</td>", next(row for row in rows if start.match(row)))


@pytest.fixture(scope="module")
def page():
    return page_of(sample())[0]


def test_the_library_inside_is_the_published_one_and_has_what_the_figures_draw():
    text = plotly_library()
    folder = Path(html_parts.__file__).parent / "plotly"
    assert (
        hashlib.sha256((folder / "plotly-basic.min.js").read_bytes()).hexdigest() in (folder / "README.md").read_text()
    )
    kinds = {trace["type"] for figure in figures(sample()).values() for trace in figure["data"]}
    assert kinds <= {"scatter", "bar", "pie"}, "the bundle draws nothing else"
    assert len(text) < 1.3e6
    assert len(render_report(sample())) < 1.5e6


def test_figures_are_valid_plotly():
    found = figures(sample())
    assert list(found) == ["front", "hypervolume", "latency-forecasts", "loss-forecasts", "spread"]
    for figure in found.values():
        go.Figure(figure)  # refuses every property that Plotly does not know


def by_name(figure):
    """Traces of a figure by the name that the legend gives them, without their counts."""
    found = {}
    for trace in figure["data"]:
        found.setdefault(trace.get("name", "").rpartition(" (")[0], []).append(trace)
    return found


def test_front_figure_shows_limits_baselines_and_every_evaluation():
    data = sample()
    figure = front_figure(data)
    assert [shape["name"] for shape in figure["layout"]["shapes"]] == ["budget 0.8 ms", "allowed loss 1 %"]
    traces = by_name(figure)
    assert sum(len(trace["x"]) for trace in traces["baselines"]) == 3
    assert all(bar > 0 for trace in traces["rest of the front"] for bar in trace["error_y"]["array"])
    drawn = {(x, y) for trace in figure["data"] for x, y in zip(trace["x"], trace["y"], strict=True)}
    assert drawn == {(row.latency_ms, 100 * row.loss) for row in data.evaluations if row.is_measured}


def test_picks_are_numbered_and_baselines_named_beside_their_markers():
    data = sample()
    labels = {label["text"]: label for label in front_figure(data)["layout"]["annotations"]}
    assert list(labels) == ["<b>1</b>", "<b>FP32</b>", "<b>FP16</b>", "<b>INT8</b>"]
    [pick] = data.numbered_picks
    [star] = by_name(front_figure(data))["picks"]
    assert (pick.names, pick.number) == (["accurate", "fast"], 1)
    assert (labels["<b>1</b>"]["x"], labels["<b>1</b>"]["y"]) == (star["x"][0], star["y"][0])


def test_losses_far_from_the_front_have_a_strip_of_their_own():
    """All INT8 loses 90 points: it stays in view, and does not press the front into a line."""
    data = sample()
    ruined = PlantedPoint(90, 0.5, loss=0.9, role="baseline:int8")
    data = replace(data, evaluations=[*data.evaluations, ruined])
    view = view_of(data)
    assert view.near[0] < 0 < 1 < view.near[1] < 3
    assert view.far[0] == view.near[1]
    assert view.far[1] > 90
    figure = front_figure(data)
    assert figure["layout"]["yaxis2"]["range"] == list(view.far)
    [strip] = [trace for trace in by_name(figure)["baselines"] if trace["yaxis"] == "y2"]
    assert 90.0 in strip["y"]
    assert "strip at the top" in page_of(data)[0]


def test_one_scale_shows_all_where_nothing_is_far_away():
    data = sample()
    rows = [row for row in data.evaluations if not row.is_measured or row.loss < 0.012]
    view = view_of(replace(data, evaluations=rows))
    assert view.far is None
    assert view.near[1] > 100 * max(row.loss for row in rows if row.is_measured)
    assert "strip at the top" not in page_of(replace(data, evaluations=rows))[0]


def test_labels_of_close_markers_stand_apart():
    marks = [Mark("1", 0.1, 0.5), Mark("2", 0.11, 0.5), Mark("INT8", 0.1, 0.52), Mark("FP32", 0.98, 0.5)]
    boxes = []
    for mark, (x, y) in zip(marks, place_labels(marks), strict=True):
        middle, half = (600 * mark.x + x, 360 * mark.y + y), 5 * len(mark.text)
        boxes.append((middle[0] - half, middle[1] - 10, middle[0] + half, middle[1] + 10))
        assert boxes[-1][2] <= 600
    apart = [a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1] for a in boxes for b in boxes if a is not b]
    assert all(apart)


def test_forecast_figures_have_a_diagonal_and_intervals():
    data = sample()
    found = figures(data)
    diagonal, latency = found["latency-forecasts"]["data"]
    assert diagonal["x"] == diagonal["y"] == found["latency-forecasts"]["layout"]["xaxis"]["range"]
    assert latency["x"] == list(data.forecasts.latency.measured)
    assert len(set(latency["marker"]["color"][-25:])) == 1
    assert latency["marker"]["color"][0] != latency["marker"]["color"][-1]
    _, loss = found["loss-forecasts"]["data"]
    assert loss["y"] == pytest.approx(list(100 * data.forecasts.loss.predicted))  # percentage points
    assert loss["error_y"]["array"] == pytest.approx([100 * 1.645e-4] * len(loss["x"]))


def test_forecasts_of_losses_may_be_missing():
    data = sample()
    none = np.empty(0)
    bare = replace(data, forecasts=replace(data.forecasts, loss=Compared(none, none, none, none)))
    go.Figure(figures(bare)["loss-forecasts"])
    text, _ = page_of(bare)
    assert row_of("forecast of", "loss", text)[:5] == ["loss", "all", "0", "–", "–"]
    assert "NaN" not in text


def test_poor_forecasts_are_told(page):
    assert len(re.findall(">(?:latency|loss)</td>", page)) == 4
    assert ">the last 25</td>" in page
    assert '<p class="note warning">The loss is predicted poorly here' in page
    assert "The latency is predicted poorly" not in page
    assert "<summary>Forecasts" in page
    assert "<summary>Forecasts" not in page_of(replace(sample(), forecasts=None))[0]


def test_precision_map_follows_groups_and_names_columns_by_pick():
    data = sample()
    found = precision_map(data)
    [pick] = data.numbered_picks
    rest = [row.trial for row in data.front if row.trial != pick.trial]
    columns = [column for column in found.columns if column.title != "INT8"]
    assert [column.trial for column in columns] == [pick.trial, *rest]
    assert [column.title for column in columns] == ["accurate · fast", *(f"#{trial}" for trial in rest)]
    assert [row.name for row in found.rows] == [group.name for group in data.groups]
    assert [row.cells[0].label for row in found.rows] == data.precisions[pick.trial]


def test_the_precision_map_has_the_coarsest_baseline_and_what_layers_cost_alone(page):
    data = sample()
    found = precision_map(data)
    baselines = [row for row in data.evaluations if row.baseline]
    assert [column.title for column in found.columns[:2]] == ["accurate · fast", "INT8"]
    assert found.columns[1].trial == next(row.trial for row in baselines if row.baseline == "int8")
    assert found.alone_in == "int8"
    assert all(re.fullmatch(r"[\d.e-]+ ×", row.alone) for row in found.rows)
    assert "error alone<br>in int8" in page
    unknown = precision_map(replace(data, diagnosis=None))
    assert unknown.alone_in == ""
    assert "error alone" not in page_of(replace(data, diagnosis=None))[0]


def test_opaque_layers_are_marked_in_the_precision_map():
    data = sample()
    (trial,) = data.opaque
    assert trial == data.numbered_picks[0].trial
    opaque = [row.cells[0].opaque for row in precision_map(data).rows]
    assert opaque == [place in (1, 3) for place in range(len(data.groups))]
    assert page_of(data)[0].count(">?</td>") == 2
    assert "question mark" not in page_of(replace(data, opaque={}))[0]


def test_moves_and_remarks_of_the_front_only_where_there_are_any(page):
    assert "<th>moves</th>" in page
    assert "3 of 9 layers, 0.125 ms (8.33 %)" in page
    assert "the device was slowed down: power brake" in page
    data = sample()
    bare = replace(data, moves={}, remarks={})
    text, _ = page_of(bare)
    assert "<th>moves" not in text
    assert "power brake" not in text


def test_what_cannot_be_built_is_listed(page):
    assert "Not buildable on this target: g004 <code>/layer4/conv1/Conv</code> in int8." in page
    assert "Not buildable" not in page_of(replace(sample(), unbuildable=()))[0]


def test_precision_map_refuses_other_groups():
    data = sample()
    wrong = {**data.precisions, data.front[0].trial: ["fp32"]}
    with pytest.raises(ValueError, match="other groups"):
        render_report(replace(data, precisions=wrong))


def test_library_is_embedded_once_and_nothing_is_fetched():
    text, count = page_of(sample())
    assert count == 1
    assert not re.search(r"https?://|\bsrc=|\bhref=|@import|url\(", text)
    assert "default-src 'none'" in text


def test_sections(page):
    for heading in ("Summary", "Latency and loss", "Precision of each layer", "Why 1 layer stayed", "Use it",
                    "Why layers lose", "Appendix"):  # fmt: skip
        assert f"<h2>{heading}" in page
    for heading in ("Notes", "Hypervolume", "Forecasts", "Asked and got", "Failures", "Latency spread", "Environment"):
        assert f"<summary>{heading}" in page
    assert "latency ≤ 0.8 ms, loss of top1 ≤ 1 %, memory ≤ 512 MB" in page
    assert "1 group did not run in the precision" in page
    assert "sm80_conv_kernel_nhwc" in page
    assert "No supported formats" in page
    assert "Clocks were not pinned." in page
    assert "0.4 ± 0.3 %" in page
    assert "bitfront export resnet --out engine" in page


def test_the_story_stands_first(page):
    order = [
        page.index(text)
        for text in ("1.31 × as fast as FP32; loses", 'data-figure="front"', "<h2>Precision", "<h2>Why 1", "<h2>Use")
    ]
    assert order == sorted(order)


def test_a_uniform_best_is_called_what_it_is(tmp_path, monkeypatch):
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    ok("report", "small", "--max-drop", "1%", "--out", "report.html")
    assert "that the search never saw, all INT8 loses 0 %" in Path("report.html").read_text(encoding="utf-8")


def test_what_is_said_of_a_pick_stands_below_it_in_the_whole_width(page):
    assert 'colspan="9">As accurate it ties with trial 7. 3 candidates were tried' in page


def test_names_are_escaped_everywhere():
    data = sample()
    evil = replace(
        data,
        study=EVIL, target=EVIL, model=EVIL, created=EVIL, notes=[EVIL], environment={EVIL: EVIL},
        metric=ReportMetric(EVIL, ratio=True),
        groups=[group.with_values(name=EVIL, op=EVIL) for group in data.groups],
        evaluations=[
            row.with_values(mix=EVIL, mismatch=EVIL, role=f"baseline:{EVIL}") for row in data.evaluations
        ],
        moves={row.trial: EVIL for row in data.evaluations}, remarks={row.trial: [EVIL] for row in data.evaluations},
        unbuildable=[(EVIL, EVIL, EVIL)],
        mismatches=[Mismatch(1, EVIL, EVIL, EVIL, EVIL, EVIL)],
        failures=[FailureRow(1, EVIL, EVIL, EVIL)],
        picks=[replace(pick, name=EVIL) for pick in data.picks],
        precisions={trial: [EVIL] * len(data.groups) for trial in data.precisions},
    )  # fmt: skip
    text, _ = page_of(evil)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    # Plotly reads a little HTML in labels: names reach it escaped once more, inside the JSON.
    assert "\\u0026lt;script\\u0026gt;alert" in text
    assert text.count("<script>") == 2
    assert text.count("</script>") == 2


@pytest.mark.parametrize(
    ("audited", "sentence"),
    [
        ((320, 0, 0), "All groups ran in the precision that was asked for: 320"),
        ((300, 0, 20), "300 groups over all evaluations were obeyed, and 20 are opaque"),
        ((0, 0, 0), "Nothing was audited yet"),
    ],
)
def test_audit_sentence(audited, sentence):
    assert sentence in page_of(replace(sample(), mismatches=[], audited=audited))[0]


def test_an_empty_study_has_a_page_without_figures():
    text, count = page_of(ReportData("empty", "somewhere", ReportMetric("mse", higher_is_better=False)))
    assert count == 0
    assert "Nothing was measured yet" in text
    assert "nothing to pick" in text
    assert "No evaluation failed" in text


def test_missing_measures_and_nan_are_dashes():
    row = PlantedPoint(0, 1.0, loss=0.0, loss_low=math.nan, samples_per_s=None, on_front=True, feasible=True)
    text, _ = page_of(ReportData("s", "t", ReportMetric("sqnr", "dB"), evaluations=[row]))
    assert row_of("trial", "0", text)[:5] == ["0", "", "1.00 ms", "–", "0 dB"]
    assert "NaN" not in text


def test_accuracy_limit_in_words():
    data = ReportData("s", "t", ReportMetric("mse", higher_is_better=False), Limits(accuracy_limit=0.5))
    assert limit_texts(data) == ["mse ≤ 0.5"]


def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(sample(), path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["report.html"]


def test_write_needs_a_folder(tmp_path):
    for path in (tmp_path / "no" / "report.html", tmp_path):
        with pytest.raises(ConfigError, match="existing folder"):
            write_report(sample(), path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / ("r" * 230)  # the temporary name is longer than a file name may be
    path.write_text("old")
    with pytest.raises(ArtifactError, match="give another path"):
        write_report(sample(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_causes_stand_with_their_remedy_and_evidence(page):
    assert "Why layers lose" in page
    assert "<b>Uneven channels</b>, 1 layer" in page
    assert "Recovery steps for this: equalize, smooth." in page
    assert re.search(r">g007</td>.*the widest channel is 25 × as wide as the median one", page)
    assert "Why layers lose" not in page_of(replace(sample(), diagnosis=None))[0]
    spoiled = diagnosis(8)
    evil = {**spoiled.groups, "g007": spoiled.groups["g007"].with_values(name=EVIL)}
    assert EVIL not in page_of(replace(sample(), diagnosis=replace(spoiled, groups=evil)))[0]


def test_every_number_of_a_layer_is_in_the_table_of_layers(monkeypatch):
    found = sample().diagnosis
    rows = tuple(replace(row, mse=0.0123, tails=0.02) for row in found.rows)
    data = replace(sample(), diagnosis=replace(found, rows=rows))
    table = page_of(data)[0].partition("Every number, the largest error first")[2].partition("</table>")[0]
    numbers = re.findall(r'data-label="numbers">([^<]*)</td>', table)
    assert len(numbers) == len(rows)
    for words in ("error ", "SQNR ", "MSE 0.0123", "KL ", "overlap ", "saturated ", "beyond 4 σ 2 %"):
        assert words in numbers[0]
    monkeypatch.setattr("studies.show.report.page._MOST_LAYERS", 1)
    assert f"{len(rows) - 1} more with smaller errors" in page_of(data)[0]


def test_samples_that_flip_are_named_for_each_pick(page):
    assert "Samples that flip" in page
    assert "<li>3 of the 490 are wrong: 4, 9, 77</li>" in page
    nobody = replace(sample(), picks=[replace(pick, flips=()) for pick in sample().picks])
    assert "Samples that flip" not in page_of(nobody)[0]


# -- why layers stayed in a higher precision ---------------------------------------------------------------------------


def test_layers_that_stayed_high_have_a_reason_each():
    found = diagnosis(5)
    groups = list(found.groups.values())
    fp32, int8 = Precision.FP32, Precision.INT8
    choices = [choice_record(group.id, int8, 1, True) for group in groups[:1] + groups[3:]]
    choices += [
        choice_record("g001", int8, None, False, "its weights are not constant"),
        choice_record("g002", int8, 1, True, "", False),
        choice_record("g004", Precision.W4, 2, True),  # what one product may be besides is no reason for others
    ]
    mix = Assignment({group.id: int8 if group.id == "g000" else fp32 for group in groups})
    reasons = layer_reasons(mix, groups, choices, found)
    assert [(row.name, row.precision) for row in reasons] == [(f"/layer{k}/conv1/Conv", "fp32") for k in range(1, 5)]
    weights, refused, ordinary, uneven = (row.reason for row in reasons)
    assert weights == "It was not tried in int8: its weights are not constant."
    assert refused == "The engine's builder refused it in int8."
    assert ordinary.startswith("Alone in int8 it causes less than a tenth of the average layer's error")
    assert ordinary.endswith("it hardly changes the loss; no mix with it in int8 was measurably faster.")
    assert uneven.startswith("Alone in int8 it causes 5 times the average layer's error")
    assert "Uneven channels: the widest channel is 25 × as wide" in uneven
    assert [row.reason for row in layer_reasons(mix, groups, choices, found, pays=False)] == [weights, refused, uneven]
    page, _ = page_of(replace(sample(), slower="All in INT8, the network is no faster than in FP32 here."))
    assert "no faster than in FP32 here. That is the reason for all layers that are not named here." in page
    unknown = layer_reasons(mix, groups[3:], choices, None)
    assert "Its loss alone was not measured" in unknown[0].reason


def test_no_layer_has_a_reason_where_all_run_in_the_coarsest():
    groups = list(diagnosis(2).groups.values())
    choices = [choice_record(group.id, Precision.INT8, 1, True) for group in groups]
    assert layer_reasons(Assignment({group.id: Precision.INT8 for group in groups}), groups, choices, None) == []
    assert layer_reasons(Assignment({group.id: Precision.FP32 for group in groups}), groups, [], None) == []
