"""The constants of the sampler: each has a reason, the page lists them as they are, and all can be varied at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.samplers.constants import listing, page, run, varied
from search.forecast import forecasts, latency_model
from search.sampler import climbing, guided

RESULTS = json.loads(run.SHARES.read_text())


def test_every_constant_has_a_reason() -> None:
    found = listing.constants()
    assert len(found) > 90
    assert not [constant.key for constant in found if len(constant.reason) < 10]
    assert {constant.file for constant in found} >= {"search/sampler/guided.py", "search/solver/relaxation.py"}


@pytest.mark.parametrize("made", [page.variation, page.listed])
def test_the_page_has_the_constants_and_measurements_of_today(made) -> None:
    assert made(RESULTS) in page.PAGE.read_text(), "run: python -m benchmarks.samplers.constants.run --page"


def test_a_reason_is_the_comment_beside_a_constant_or_above_it_alone() -> None:
    reasons = {constant.key: constant.reason for constant in listing.constants()}
    assert reasons["search/sampler/candidates.py _SOLVE_S, _LOOKED_AT"].startswith("Of all bounds together")
    assert reasons["search/sampler/climbing.py _RISE"].startswith("of the gain")
    assert reasons["search/forecast/forecasts.py RECENT"].startswith("Finished trials")


def test_constants_are_scaled_wherever_they_are_held_and_restored() -> None:
    names = [constant.key for constant in varied.varied()]
    signs = np.ones(len(names), np.int64)
    signs[names.index("search/forecast/forecasts.py RECENT")] = -1

    def held() -> tuple[Any, ...]:
        return (forecasts.RECENT, latency_model._NOISES, guided._LATE, climbing._RISE)

    before = held()
    assert before[0] == 25
    with varied.constants_scaled(signs.tolist()):
        recent, noises, late, rise = held()
        assert recent == 12
        assert (noises[0], noises[1], noises[-1]) == (0.8, 1.0, 16.0)  # up to 1 a value counts as a share
        assert (late, rise) == (pytest.approx(2 / 3), pytest.approx(1.04))
    assert held() == before


def test_an_effect_is_found_among_others() -> None:
    draws = list(range(1, 41))
    table = np.array([varied.signs(draw, len(varied.varied())) for draw in draws])
    shares = 0.7 + 0.05 * table[:, 3] + np.random.default_rng(0).normal(0, 0.01, len(draws))
    found, errors = varied.effects(draws, shares, len(varied.varied()))
    assert found[3] == pytest.approx(0.1, abs=0.02)
    assert np.argmax(np.abs(found / errors)) == 3


def test_figures_stay_with_their_constants_when_another_one_is_added() -> None:
    measured = list(RESULTS["varied"])
    before = page.listed(RESULTS)
    newer = before.count("newer than the measurement")
    fewer = page.listed({**RESULTS, "varied": [key.replace(" _GROWN", " _GONE") for key in measured]})
    changed = [one for one, other in zip(before.splitlines(), fewer.splitlines(), strict=True) if one != other]
    assert len(changed) == 1
    assert "`_GROWN`" in changed[0]
    assert fewer.count("newer than the measurement") == newer + 1


def test_runs_of_other_constants_are_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    fresh = run.stored(out, 12)
    assert fresh["runs"] == {}
    out.write_text(json.dumps({**fresh, "varied": fresh["varied"][1:]}))
    with pytest.raises(ValueError, match="give another --out"):
        run.stored(out, 12)


def test_a_short_run_varies_what_the_sampler_tries() -> None:
    as_they_are, changed = (varied.search("branching_22", 0, draw, 9) for draw in (0, 1))
    assert as_they_are.shape == changed.shape
    assert as_they_are.tolist() != changed.tolist()
