"""The report in a real browser: on wide and narrow pages, light and dark, nothing leaves the box it belongs to."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from search.values import LossEstimate
from studies.judging.findings.rescue_table import RescueRow
from studies.show.report.page import write_report
from studies.show.report.rows import LayerReason, PickRow, ReportData
from tests.support.browser import MissingBrowserError, run_browser
from tests.support.records import PlantedPoint
from tests.support.report_sample import sample

REQUIRED = "BITFRONT_REQUIRE_BROWSER"
WIDTHS, THEMES = (1400, 1000, 500), ("light", "dark")


def crowded() -> ReportData:
    """A study whose texts are longer and whose picks are closer together than those of most."""
    data = sample(groups=60)
    long_name = "/model/backbone/stages.3/blocks/blocks.11/attention/self_attention/query_projection/MatMul"
    kernel = "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32"
    rows = data.evaluations
    remarks = ["the device was slowed down: power brake, thermal limit and other reasons " * 3]
    near = [row for row in data.front if not row.picks][:2]
    close = [row.trial for row in near]
    ruined = PlantedPoint(90, 0.62, 0.3, 0.46, 0.44, 0.48, role="baseline:int8", mix="all int8")
    known = [row for row in rows if row.role != "baseline:int8"]
    loss = LossEstimate(0.1348, 0.1264, 0.143, 4800)
    return replace(
        data,
        study="a-study-with-a-name-that-nobody-shortened-when-the-search-was-started",
        model="/srv/models/production/2026-11/segmentation/resnet101-with-a-long-name-fp32-opset17.onnx",
        evaluations=[
            row.with_values(picks=("score:0.6,0.4",)) if row.trial in close else row for row in [*known, ruined]
        ],
        remarks={row.trial: remarks for row in rows},
        picks=[
            *data.picks,
            *(PickRow("score:0.6,0.4", row.with_values(samples_per_s=1e6), ties="ties with INT8") for row in near),
        ],
        groups=[group.with_values(name=f"{long_name}_{place}") for place, group in enumerate(data.groups)],
        mismatches=[replace(row, name=long_name, kernel=kernel) for row in data.mismatches],
        failures=[replace(row, message="No supported formats for " + kernel * 3) for row in data.failures],
        reasons=[LayerReason(long_name, "fp32", "Alone in int8 it causes 24 times the average layer's error.")] * 14,
        rescue=[RescueRow("plain INT8", None, loss), RescueRow("ranges", loss, loss, 0.369, 1.005, 18.7)],
        rescue_notes=[f"ranges: {kernel}"],
        seconds={"measuring again": 391.4, "latency": 265.5, "waiting for other processes": 177.7},
        time_text="where the time of 2 workers went",
        time_spent=[("391.4", "29.3%", "measuring again")],
        samples="512 calibrate (128 clusters), 10,688 to search on (2,672 clusters), 4,800 final (1,200 clusters)",
        environment={"platform": kernel, **data.environment},
        warnings=["WARNING: " + "the allowed loss is smaller than the samples can tell, " * 6 + kernel],
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One page of one browser for the whole file; skips where there is none, unless CI forbids that."""
    try:
        with run_browser(tmp_path_factory.mktemp("browser")) as page:
            yield page
    except MissingBrowserError as error:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for name, data in (("usual", sample()), ("crowded", crowded())):
        write_report(data, folder / f"{name}.html")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["usual", "crowded"])
def test_nothing_leaves_its_box_and_no_labels_cover_each_other(browser, reports, name, width):
    browser.open(reports / f"{name}.html", width, "light")
    assert browser.check("overflows") == []
    assert browser.check("overlaps") == []
    assert browser.errors == []


@pytest.mark.parametrize("theme", THEMES)
def test_both_themes_can_be_read(browser, reports, theme):
    browser.open(reports / "usual.html", 1000, theme)
    assert browser.run("getComputedStyle(document.querySelector('section')).backgroundColor") == (
        "rgb(255, 255, 255)" if theme == "light" else "rgb(24, 29, 37)"
    )
    assert browser.check("overflows") == []
    assert browser.check("faint") == []


def test_nothing_is_fetched_but_the_page_itself(browser, reports):
    browser.open(reports / "usual.html", 1400, "light")
    assert browser.requests == [(reports / "usual.html").as_uri()]


def test_every_figure_has_titles_on_its_axes_and_every_pick_a_star(browser, reports):
    browser.open(reports / "crowded.html", 1400, "light")
    assert browser.check("overlaps") == []  # unfolds all, too
    count = "each.querySelectorAll('.g-%stitle text').length"
    names = f"[each.dataset.figure, {count % 'x'}, {count % 'y'}]"
    titles = browser.run(f"[...document.querySelectorAll('[data-figure]')].map(each => {names})")
    assert [row for row in titles if row[1:] != [1, 1]] == [["time", 1, 0]]  # its bars are named themselves
    labels, stars = (
        browser.run(f"[...document.querySelectorAll('{which}')].map(each => each.textContent.trim())")
        for which in ("[data-figure=front] .annotation text", "#front .star")
    )
    assert [f"★ {label}" for label in labels if label.isdigit()] == stars
    assert len(stars) == 3


@pytest.mark.slow
def test_a_picture_of_the_page_shows_its_theme(browser, reports, tmp_path):
    """Loosely: a dark page is not light, and the figures of both are not empty."""
    sizes = {}
    for theme in THEMES:
        browser.open(reports / "usual.html", 1000, theme)
        browser.photograph(tmp_path / f"{theme}.png", height=1200)
        sizes[theme] = (tmp_path / f"{theme}.png").stat().st_size
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
    assert min(sizes.values()) > 20_000
