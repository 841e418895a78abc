"""The HTML report: what it shows, that nothing in it is executed or fetched, and that it is written whole."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from search.errors import ArtifactError, ConfigError
from search.values import Precision
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.limits import Limits
from studies.show.report.figures import figures, labels_of, precision_figure
from studies.show.report.front_figure import count_outside, first_view, front_figure
from studies.show.report.page import limit_texts, render_report, write_report
from studies.show.report.rows import EvaluationRow, FailureRow, GroupRow, Metric, Mismatch, PickRow, ReportData
from studies.store.records import GroupRecord, SensitivityRecord
from studies.trials.forecasts import Compared, Forecasts

EVIL = "<script>alert(1)</script>"


def sample(groups: int = 8, trials: int = 40) -> ReportData:
    """A study with everything in it, seeded."""
    generator = np.random.default_rng(3)
    labels = ["fp32", "fp16", "int8"]
    rows, precisions = [], {}
    for trial in range(trials):
        codes = [trial] * groups if trial < 3 else sorted(generator.integers(0, 3, groups), reverse=trial % 2 == 0)
        int8 = sum(code == 2 for code in codes) / groups
        latency = 1.0 - 0.22 * sum(codes) / groups + generator.uniform(0, 0.08)
        loss = 0.04 * int8**2 + generator.uniform(0, 0.004) if trial else 0.0
        half = 0.002 + 0.1 * loss
        rows.append(
            EvaluationRow(
                trial, "ok", latency, 0.76 - loss, loss, loss - half, loss + half,
                role=f"baseline:{labels[trial]}" if trial < 3 else "",
                feasible=loss < 0.01, spread=0.004 + 0.002 * generator.random(),
                label=f"all {labels[trial]}" if trial < 3 else f"{sum(c == 2 for c in codes)} int8",
                opaque=trial % 2, complete=loss < 0.03, text=f"built in {trial}.5 s\nsize 12 MB",
                moves="3 of 9 layers, 0.125 ms (8.33 %)", remarks=["the device was slowed down: power brake"],
            )
        )  # fmt: skip
        precisions[trial] = [labels[code] for code in codes]
    rows = mark_front(rows)
    rows.append(EvaluationRow(trials, "failed"))
    best = next(row for row in rows if row.on_front)
    return ReportData(
        study="resnet",
        target="onnxruntime 1.31 on AMD EPYC, 1 thread, 20th percentile",
        metric=Metric("top1", ratio=True),
        limits=Limits(latency_budget_ms=0.8, max_drop=0.01, max_memory_bytes=512_000_000),
        model="resnet.onnx",
        created="2026-11-20 12:00",
        evaluations=rows,
        picks=[
            PickRow("accurate", best.trial, best.latency_ms, best.loss, 0.755, 0.004, 0.001, 0.007, True, 1.3),
            PickRow(
                "fast",
                best.trial,
                best.latency_ms,
                best.loss,
                holds=False,
                speedup=1.31,
                opaque=2,
                flips=["3 of 500 samples (0.6 %) have another class than in FP32", "3 of the 490 are wrong: 4, 9, 77"],
            ),
        ],
        groups=[GroupRow(f"g{i:03}", f"/layer{i}/conv1/Conv", "Conv") for i in range(groups)],
        precisions=precisions,
        mismatches=[Mismatch(7, "g001", "/layer1/conv1/Conv", "int8", "fp32", "sm80_conv_kernel_nhwc")],
        opaque={best.trial: frozenset({"g001", "g003"})},
        unbuildable=[("g004", "/layer4/conv1/Conv", "int8")],
        audited=(311, 1, 8),
        failures=[FailureRow(trials, "build", "refused", "No supported formats for /layer1/Conv")],
        hypervolume=[(row.trial, 0.01 * math.log1p(row.trial)) for row in rows],
        forecasts=forecasts_of(rows, generator),
        diagnosis=diagnosis(groups),
        environment={"python": "3.11", "cpu": "AMD EPYC"},
        notes=["Clocks were not pinned."],
    )


def diagnosis(groups):
    """The last group has channels of very different ranges in INT8."""
    known = {
        f"g{i:03}": GroupRecord(f"g{i:03}", f"/layer{i}/conv1/Conv", "Conv", (), (), (), (), "") for i in range(groups)
    }
    rows = [SensitivityRecord(group, Precision.INT8, 1e-5, 0.0, 35.0, 0.01, 0.98, 0.0, 64) for group in known]
    rows[-1] = replace(rows[-1], error=0.1, channel_ratio=25.0)
    return Sensitivities("resnet", tuple(rows), known, Thresholds())


def forecasts_of(rows, generator):
    """Latencies predicted within 2 %; losses far too low."""
    rows = [row for row in rows if row.measured and not row.role]
    trial, ms, loss = (np.array([getattr(row, name) for row in rows]) for name in ("trial", "latency_ms", "loss"))
    latency = Compared(trial, ms * (1 + 0.02 * generator.uniform(-1, 1, len(ms))), 0.02 * ms, ms)
    return Forecasts(latency, Compared(trial, loss / 10, np.full(len(loss), 1e-4), loss, scale=0.05))


def mark_front(rows):
    def beaten(row):
        return any(r.latency_ms < row.latency_ms and r.loss <= row.loss for r in rows if r.feasible)

    return [replace(row, on_front=row.feasible and not beaten(row)) for row in rows]


def page_of(data):
    """The page without the Plotly library, and how often the library was in it."""
    page = render_report(data)
    return page.replace(get_plotlyjs(), ""), page.count(get_plotlyjs()[:400])


@pytest.fixture(scope="module")
def page():
    return page_of(sample())[0]


def test_figures_are_valid_plotly():
    found = figures(sample())
    assert list(found) == ["front", "hypervolume", "forecasts", "precisions", "spread"]
    for figure in found.values():
        go.Figure(figure)  # refuses every property that Plotly does not know


def test_front_figure_shows_lines_bars_and_baselines():
    figure = front_figure(sample())
    assert len(figure["layout"]["shapes"]) == 2
    names = [trace.get("name", "") for trace in figure["data"]]
    baselines = next(trace for trace in figure["data"] if trace.get("name", "").startswith("uniform baselines"))
    assert baselines["customdata"] == ["all fp32", "all fp16", "all int8"]
    front = next(trace for trace in figure["data"] if trace.get("name", "").startswith("front"))
    assert all(bar > 0 for bar in front["error_y"]["array"])
    assert front["x"] == sorted(front["x"])
    measured = sum(row.measured for row in sample().evaluations)
    assert sum(int(name.rpartition("(")[2].rstrip(")")) for name in names if name) >= measured


def test_forecast_figure_has_a_diagonal_and_intervals_per_panel():
    data = sample()
    figure = figures(data)["forecasts"]
    diagonal, latency, other, loss = figure["data"]
    assert [diagonal["x"], other["x"]] == [diagonal["y"], other["y"]]
    assert (latency["xaxis"], loss["yaxis"]) == ("x", "y2")
    assert latency["x"] == list(data.forecasts.latency.measured)
    assert loss["y"] == pytest.approx(list(100 * data.forecasts.loss.predicted))  # percentage points
    assert loss["error_y"]["array"] == pytest.approx([100 * 1.645e-4] * len(loss["x"]))
    assert len(set(latency["marker"]["color"][-25:])) == 1
    assert latency["marker"]["color"][0] != latency["marker"]["color"][-1]
    assert figure["layout"]["xaxis2"]["range"] == figure["layout"]["yaxis2"]["range"]


def test_forecasts_of_losses_may_be_missing():
    data = sample()
    none = np.empty(0)
    bare = replace(data, forecasts=replace(data.forecasts, loss=Compared(none, none, none, none)))
    go.Figure(figures(bare)["forecasts"])
    text, _ = page_of(bare)
    assert '<tr><td>loss</td><td>all</td><td class="n">0</td><td class="n">–</td><td class="n">–</td>' in text
    assert "NaN" not in text


def test_poor_forecasts_are_told(page):
    assert page.count("<td>latency</td>") == page.count("<td>loss</td>") == 2
    assert "<td>the last 25</td>" in page
    assert '<p class="note">The loss is predicted poorly here' in page
    assert "The latency is predicted poorly" not in page
    assert "<h2>Forecasts" not in page_of(replace(sample(), forecasts=None))[0]


def test_precision_map_follows_groups_and_front():
    data = sample()
    heatmap = precision_figure(data)["data"][0]
    assert heatmap["x"] == [f"#{row.trial}" for row in data.front]
    assert len(heatmap["y"]) == len(data.groups)
    labels = labels_of(data)
    column = [labels[line[0]] for line in heatmap["z"]]
    assert column == list(data.precisions[data.front[0].trial])


def test_opaque_groups_are_marked_in_the_precision_map():
    data = sample()
    heatmap, marks = precision_figure(data)["data"]
    (trial,) = data.opaque
    assert marks["x"] == [f"#{trial}"] * 2
    assert marks["y"] == [heatmap["y"][1], heatmap["y"][3]]
    column = heatmap["x"].index(f"#{trial}")
    assert ["opaque" in line[column] for line in heatmap["text"]] == [g in (1, 3) for g in range(len(data.groups))]
    plain = replace(data, opaque={})
    assert len(precision_figure(plain)["data"]) == 1
    assert "question mark" not in page_of(plain)[0]


def test_moves_and_remarks_of_the_front_only_where_there_are_any(page):
    assert "<th>moves</th><th>noteworthy</th>" in page
    assert "3 of 9 layers, 0.125 ms (8.33 %)" in page
    assert "the device was slowed down: power brake" in page
    data = sample()
    bare = replace(data, evaluations=[replace(row, moves="", remarks=()) for row in data.evaluations])
    assert not re.search("<th>(moves|noteworthy)", page_of(bare)[0])


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
    for heading in ("Summary", "Latency and loss", "Hypervolume", "Precision of each", "Asked and got", "Failures",
                    "Latency spread", "Environment"):  # fmt: skip
        assert f"<h2>{heading}" in page
    assert "latency ≤ 0.8 ms, loss of top1 ≤ 1 %, memory ≤ 512 MB" in page
    assert "1 group did not run in the precision" in page
    assert "sm80_conv_kernel_nhwc" in page
    assert "No supported formats" in page
    assert "Clocks were not pinned." in page
    assert "0.4 %" in page


def test_names_are_escaped_everywhere():
    data = sample()
    evil = replace(
        data,
        study=EVIL, target=EVIL, model=EVIL, created=EVIL, notes=[EVIL], environment={EVIL: EVIL},
        metric=Metric(EVIL, ratio=True),
        groups=[replace(group, name=EVIL, op=EVIL) for group in data.groups],
        evaluations=[
            replace(row, label=EVIL, text=EVIL, role=f"baseline:{EVIL}", moves=EVIL, remarks=[EVIL])
            for row in data.evaluations
        ],
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
    text, count = page_of(ReportData("empty", "somewhere", Metric("mse", higher_is_better=False)))
    assert count == 0
    assert "Nothing was measured yet" in text
    assert "nothing to pick" in text
    assert "No evaluation failed" in text


def test_missing_measures_and_nan_are_dashes():
    row = EvaluationRow(0, "ok", 1.0, loss=0.0, loss_low=math.nan, loss_high=None, on_front=True, feasible=True)
    text, _ = page_of(ReportData("s", "t", Metric("sqnr", "dB"), evaluations=[row]))
    assert "– … –" in text
    assert "NaN" not in text


def test_far_losses_are_left_out_of_the_first_view_and_counted():
    data = sample()
    already = count_outside(data, first_view(data))
    ruined = [EvaluationRow(90 + k, "ok", 0.5, loss=0.9) for k in range(2)]
    text, _ = page_of(replace(data, evaluations=[*data.evaluations, *ruined]))
    assert f"{already + 2} evaluations with a loss far from the front lie outside" in text


def test_accuracy_limit_in_words():
    data = ReportData("s", "t", Metric("mse", higher_is_better=False), Limits(accuracy_limit=0.5))
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
    with pytest.raises(ArtifactError, match="name another path"):
        write_report(sample(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_causes_stand_with_their_remedy_and_evidence(page):
    assert "Why layers lose" in page
    assert "<b>Uneven channels</b>, 1 group" in page
    assert "Recovery steps that do it: equalize, smooth." in page
    assert re.search(r"<td>g007</td>.*the widest channel is 25 × as wide as the median one", page)
    assert "Why layers lose" not in page_of(replace(sample(), diagnosis=None))[0]
    spoiled = diagnosis(8)
    evil = {**spoiled.groups, "g007": replace(spoiled.groups["g007"], name=EVIL)}
    assert EVIL not in page_of(replace(sample(), diagnosis=replace(spoiled, groups=evil)))[0]


def test_samples_that_flip_are_named_for_each_pick(page):
    assert "Samples that flip" in page
    assert "<li>3 of the 490 are wrong: 4, 9, 77</li>" in page
    nobody = replace(sample(), picks=[replace(pick, flips=()) for pick in sample().picks])
    assert "Samples that flip" not in page_of(nobody)[0]
