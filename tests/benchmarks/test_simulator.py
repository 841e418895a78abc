"""Simulators of measured networks: what they are made of, how well they fit, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from benchmarks.samplers import scores
from benchmarks.samplers.simulator import engine_rows, gaussian, heldout, misfit, noise, simulated, simulator, trees
from benchmarks.samplers.simulator.noise import Noise
from tests.support.engine_rows import row, trained, written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the rows of the chain, and of its simulator once it is made."""
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def chain(folder: Path) -> simulated.Network:
    return simulated.network(written(folder, trained()), folder, rounds=1)


def one_feature(precisions: gaussian.Precisions) -> gaussian.Floats:
    return precisions.mean(axis=1, keepdims=True)


def test_the_gradient_of_the_posterior_is_its_derivative() -> None:
    rng = np.random.default_rng(1)
    precisions = rng.integers(3, size=(12, 4)).astype(np.int8)
    edges = np.array([[0, 1], [1, 2], [0, 3]])
    posterior = gaussian._Posterior(
        precisions, rng.standard_normal(12), np.full(12, 0.1), edges, one_feature(precisions)
    )
    at = posterior.prior.flat + 0.3 * rng.standard_normal(len(posterior.prior.flat))
    numeric = approx_fprime(at, lambda flat: posterior(flat)[0], 1e-6)
    assert posterior(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def test_a_simulator_predicts_assignments_that_it_has_not_seen(chain: simulated.Network) -> None:
    assert chain.simulator.held_out.latency < 0.02
    unseen = [[0, 2, 2, 1, 1, 0], [2, 0, 1, 2, 0, 1]]
    truth = [row(codes, 0.03, 0.0) for codes in unseen]
    ms, loss = chain.simulator.predict(np.array(unseen, np.int8))
    assert ms == pytest.approx([each["lat"] for each in truth], rel=0.05)
    assert loss == pytest.approx([each["loss"] for each in truth], abs=0.003)


def test_simulators_of_measured_networks_are_good_enough() -> None:
    rows = engine_rows.read("mobilenet_v2_random")
    held_out = heldout.cross_validate(rows)
    heldout.check_errors(rows.name, held_out)
    assert held_out.latency < 0.025
    assert held_out.latency_rank > 0.95
    assert vars(simulated.by_name(rows.name).simulator.held_out) == pytest.approx(vars(held_out), rel=0.05)


def test_what_is_too_poor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(engine_rows.RowsError, match="needs at least 25 rows, got 13"):
        simulator.make(written(tmp_path, trained(count=10)))
    with pytest.raises(engine_rows.RowsError, match="no uniform assignment loses anything"):
        simulator.make(written(tmp_path, trained(int8_loss=0.0)))
    scattered, rng = trained(groups=4, count=30), np.random.default_rng(2)
    for each in scattered["rows"]:
        each["lat"] = float(rng.uniform(0.5, 2.0))
    with pytest.raises(engine_rows.RowsError, match=r"too poor .* latency is wrong by .*; latencies correlate by"):
        simulator.make(written(tmp_path, scattered))


def test_a_kept_simulator_answers_the_same_and_is_not_searched_again(
    chain: simulated.Network, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[str] = []

    def cross_validate(rows: engine_rows.Rows) -> heldout.HeldOut:
        fitted.append(rows.digest)
        return chain.simulator.held_out  # most of the time that fitting takes

    monkeypatch.setattr(heldout, "cross_validate", cross_validate)
    kept = Path(shutil.copy(folder / "replay_chain.json", tmp_path))
    before, rows = kept.read_bytes(), chain.simulator.rows
    again = simulated.network(rows, tmp_path, rounds=1)
    assert (fitted, kept.read_bytes()) == ([], before)
    assert again.front.codes.tolist() == chain.front.codes.tolist()
    assert again.volume == pytest.approx(chain.volume)
    precisions = rows.precisions
    assert again.simulator.predict(precisions)[0] == pytest.approx(chain.simulator.predict(precisions)[0])
    simulated.network(replace(rows, digest="other rows"), tmp_path, rounds=1)
    assert fitted == ["other rows"]
    assert kept.read_bytes() != before


# -- trees -------------------------------------------------------------------------------------------------------------


def random(count: int, groups: int, seed: int = 0) -> gaussian.Precisions:
    return np.random.default_rng(seed).integers(3, size=(count, groups)).astype(np.int8)


def test_features_of_trees_are_pairs_shares_runs_and_changes() -> None:
    alike, other = trees.flags(np.array([[2, 2, 2, 2], [2, 2, 0, 2]], np.int8))
    pairs = 3 * 9
    assert np.flatnonzero(alike[:pairs]).tolist() == [8, 17, 26]
    assert np.flatnonzero(other[:pairs]).tolist() == [8, 9 + 6, 18 + 2]
    assert alike[-3:].tolist() == [False, False, False]  # at least 1, 2, 4 changes
    assert other[-3:].tolist() == [True, True, False]


def test_trees_learn_what_no_sum_over_groups_says() -> None:
    known, unseen = random(400, 6), random(200, 6, seed=1)

    def truth(precisions: gaussian.Precisions) -> gaussian.Floats:
        return 1.0 + 0.3 * ((precisions[:, 1] == 2) & (precisions[:, 2] == 0))

    line = trees.fit(known, truth(known), np.zeros(400), one_feature, trees=0)
    found = trees.fit(known, truth(known), np.zeros(400), one_feature)
    missed = [np.std(model.predict(unseen) - truth(unseen)) for model in (line, found)]
    assert missed[0] > 0.08
    assert missed[1] < 0.02


def test_rows_that_are_unsure_count_less() -> None:
    precisions, rng = random(200, 4), np.random.default_rng(3)
    truth = precisions.mean(axis=1)
    sds = np.where(np.arange(200) < 100, 0.01, 3.0)
    values = truth + sds * rng.standard_normal(200)
    missed = [
        np.std(trees.fit(precisions, values, told, one_feature).predict(precisions) - truth) for told in (sds, 0 * sds)
    ]
    assert missed[0] < 0.4 * missed[1]


# -- misfits and noise -------------------------------------------------------------------------------------------------


def test_a_misfit_explains_known_rows_and_is_as_large_as_asked_elsewhere() -> None:
    known, unseen = random(20, 12), random(2000, 12, seed=1)
    missed = np.random.default_rng(4).normal(0, 0.02, 20)
    draws = [misfit.draw(0.02, known, missed, np.full(20, 1e-4), seed) for seed in range(10)]
    for drawn in draws:
        assert drawn(known) == pytest.approx(missed, abs=1e-3)
    spread = np.array([drawn(unseen) for drawn in draws])
    assert 0.7 < spread.std() / 0.02 < 1.1
    assert np.corrcoef(spread[0], spread[1])[0, 1] < 0.7


def test_no_table_of_a_misfit_is_explained_by_fewer_groups() -> None:
    drawn = misfit.draw(1.0, random(0, 5), np.zeros(0), np.zeros(0), 0)
    for table in drawn.tables:
        for axis in range(table.ndim):
            assert np.abs(table.mean(axis=axis)).max() < 1e-12


def test_no_sum_of_terms_is_right_about_a_simulated_network() -> None:
    network = simulated.by_name("resnet18_random")
    assert scores.not_additive(network.problem) > 0.02
    rows = network.simulator.rows
    uniform = list(rows.baselines.values())
    ms, _ = network.simulator.predict(rows.precisions[uniform])
    assert ms == pytest.approx(rows.latency_ms[uniform], rel=0.03)


def test_noise_is_estimated_from_repeats_and_intervals() -> None:
    rng = np.random.default_rng(5)
    names = [f"a{i % 40}" for i in range(120)]
    ms = np.repeat(1.0, 120) * np.exp(0.01 * rng.standard_normal(120))
    loss = rng.uniform(0.01, 0.05, 120)
    gained = 0.3 * loss + 0.002
    sd = np.sqrt((loss + 2 * gained + 1 / 500 - loss**2) / 500)
    rows = [
        {
            "a": a,
            "loss": value,
            "loss_low": value - 1.96 * s,
            "loss_high": value + 1.96 * s,
            "samples": 500,
            "total": 500,
        }
        for a, value, s in zip(names, loss, sd, strict=True)
    ]
    found = noise.estimated(rows, ms)
    assert found.latency_sd == pytest.approx(0.01, rel=0.2)
    assert (found.repeated, found.samples) == (80, 500)
    assert (found.churn, found.always) == pytest.approx((0.3, 0.002), rel=0.05)
    few = noise.estimated(rows[:5], ms[:5])
    assert (few.latency_sd, few.repeated, few.churn) == (noise.REBUILD_SD, 0, Noise().churn)


def test_answers_gained_and_lost_make_the_loss() -> None:
    some = Noise(samples=2000, churn=0.5, always=0.001)
    found = [some.differences(0.02, *generators(own, 0)).mean() for own in range(200)]
    assert np.mean(found) == pytest.approx(0.02, rel=0.05)
    assert not some.differences(0.0, *generators(1, 1)).any()
    assert some.differences(1.0, *generators(1, 1)).mean() == 1.0


def test_the_samples_of_a_study_are_the_same_for_all_its_assignments() -> None:
    spreads = []
    for own_luck in (0.0, 0.25, 1.0):
        some = Noise(samples=2000, own=own_luck)
        spreads.append(np.std([some.differences(0.05, *generators(own, 7)).mean() for own in range(300)]))
    assert spreads[0] == 0
    assert spreads[1] / spreads[2] == pytest.approx(0.5, rel=0.2)


def generators(own: int, study: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng([9, own]), np.random.default_rng([10, study])
