"""Priors, the two models, and what is said of forecasts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from search.errors import SurrogateError
from search.forecast.latency_model import fit_latency, repeat_std
from search.forecast.loss_model import fit_loss
from search.forecast.priors import Baseline, latency_prior, noise_prior
from search.forecast.quality import Quality, is_poor, quality
from search.space.layout import Costs
from search.values import LayerTime
from tests.support.assignments import THREE
from tests.support.chain_layout import GROUPS, LAYOUT, chain_with_skips, losses, mixes, uniform

PRECISIONS = len(THREE)
FP32, FP16, INT8 = range(PRECISIONS)  # places in the layout


UNIFORM_MS = {FP32: 4.0, FP16: 2.0, INT8: 1.2}


def profile(shares, scale=1.2, moves=0.0):
    layers = [LayerTime(f"conv{i}", "Conv", f"g{i:03d}", False, scale * ms) for i, ms in enumerate(shares)]
    return (LayerTime("in", "Reformat", None, True, moves), *layers) if moves else tuple(layers)


def engines(profiled=True):
    """Uniform engines whose groups take 1 : 2 : 3 : … of the latency."""
    shares = np.arange(1, GROUPS + 1) / np.arange(1, GROUPS + 1).sum()
    return [Baseline(uniform(p), ms, profile(ms * shares) if profiled else ()) for p, ms in UNIFORM_MS.items()]


def true_costs(seed=0):
    """Costs near the prior of `engines`."""
    rng = np.random.default_rng(seed)
    prior = latency_prior(LAYOUT, engines())
    nodes = prior.nodes * rng.normal(1, 0.1, prior.nodes.shape)
    return Costs(0.02, nodes, prior.changes() * rng.uniform(0.5, 1.5, (len(LAYOUT.edges), 1, 1)))


# -- priors ------------------------------------------------------------------------------------------------------------


def test_uniform_engines_are_predicted_as_measured():
    for baselines in (engines(), engines(profiled=False), [engines()[0], *engines(profiled=False)[1:]]):
        costs = latency_prior(LAYOUT, baselines).mean()
        predicted = LAYOUT.values(costs, np.stack([uniform(p) for p in range(PRECISIONS)]))
        assert predicted == pytest.approx(list(UNIFORM_MS.values()))


def test_profiles_say_what_each_group_takes():
    nodes = latency_prior(LAYOUT, engines()).nodes
    assert nodes[:, FP32] / nodes[0, FP32] == pytest.approx(np.arange(1, GROUPS + 1))


def test_layers_of_no_group_count_for_the_group_beside_them():
    layers = profile([1.0] * GROUPS, scale=1.0, moves=0.5)
    pooled = (*layers[:4], LayerTime("pool", "Pooling", None, False, 2.0), *layers[4:])
    nodes = latency_prior(LAYOUT, [Baseline(uniform(FP32), GROUPS + 2.5, pooled)]).nodes[:, FP32]
    assert nodes[:4] == pytest.approx([1.5, 1.0, 3.0, 1.0])


def test_without_profiles_work_shares_the_latency_with_more_doubt():
    work = np.arange(1.0, GROUPS + 1)
    told, even = (latency_prior(LAYOUT, engines(False), w) for w in (work, None))
    assert told.nodes[:, INT8] / told.nodes[0, INT8] == pytest.approx(work, rel=0.02)
    assert even.nodes[:, INT8] == pytest.approx(UNIFORM_MS[INT8] / GROUPS)
    assert (
        told.nodes_std / told.nodes > 2 * latency_prior(LAYOUT, engines()).nodes_std.mean() / told.nodes.mean()
    ).all()


def test_an_opaque_profile_is_shared_out_as_the_visible_ones_show():
    hidden = Baseline(uniform(FP16), 2.0, (LayerTime("{ForeignNode}", "Myelin", None, False, 2.4),))
    nodes = latency_prior(LAYOUT, [engines()[0], hidden]).nodes[:, FP16]
    assert nodes.sum() == pytest.approx(2.0)
    assert nodes / nodes[0] == pytest.approx(np.arange(1, GROUPS + 1), rel=0.02)


def test_times_count_for_the_precision_that_a_group_really_had():
    kept = uniform(INT8)
    kept[0] = FP16
    baselines = [engines()[0], Baseline(kept, 1.3, engines()[2].profile)]
    found = latency_prior(LAYOUT, baselines)
    assert LAYOUT.values(found.mean(), kept[None])[0] == pytest.approx(1.3)
    # Never measured there: what precisions usually gain, and much doubt.
    assert found.nodes[0, INT8] < found.nodes[0, FP32]
    assert found.nodes_std[0, INT8] / found.nodes[0, INT8] > 3 * found.nodes_std[0, FP16] / found.nodes[0, FP16]


def test_an_engine_that_breaks_up_fused_ones_tells_little_of_their_groups():
    """A transformer whose FP16 engine is one region, and whose INT8 engine is not, because of what stays in FP16."""
    fused = Baseline(uniform(FP16), 2.0, (LayerTime("{ForeignNode}", "Myelin", None, False, 2.4),))
    kept = uniform(INT8)
    kept[0] = FP16
    broken = Baseline(kept, 3.0, (LayerTime("conv0", "Conv", "g000", False, 1.0), *engines()[2].profile[1:]))
    priors = [latency_prior(LAYOUT, [beside, broken]) for beside in (fused, engines()[1])]
    doubt, sure = (prior.nodes_std[1:, INT8] / prior.nodes[1:, INT8] for prior in priors)
    assert (doubt > 2 * sure).all()


def test_conversions_inside_a_baseline_set_what_changes_cost():
    kept = uniform(INT8)
    kept[3] = FP32
    alone = [engines()[0]]
    moving = [LayerTime(f"move{i}", "Reformat", None, True, 0.2) for i in range(3)]
    few, many = (
        latency_prior(LAYOUT, [*alone, Baseline(kept, 1.5, (*engines()[2].profile, *moves))])
        for moves in (moving[:1], moving)
    )
    assert many.constant.sum() > few.constant.sum()
    assert LAYOUT.values(many.mean(), kept[None])[0] == pytest.approx(1.5, rel=0.1)


def test_a_tensor_with_two_readers_is_converted_once():
    prior = latency_prior(LAYOUT, engines())
    source = LAYOUT.edges[:, 0]
    readers = np.bincount(source)[source]
    assert prior.constant * readers == pytest.approx(prior.constant.max())
    assert (np.diagonal(prior.changes(), axis1=1, axis2=2) == 0).all()


def test_a_model_of_one_group_has_no_edges():
    layout = chain_with_skips(1)
    prior = latency_prior(layout, [Baseline(uniform(p, 1), ms, profile([ms])) for p, ms in UNIFORM_MS.items()])
    precisions = np.stack([uniform(p, 1) for p in range(PRECISIONS)])
    model = fit_latency(layout, prior, precisions, np.array(list(UNIFORM_MS.values())))
    assert model.predict(precisions)[0] == pytest.approx(list(UNIFORM_MS.values()), rel=0.01)
    assert layout.values(model.mean(), precisions) == pytest.approx(model.predict(precisions)[0])


@pytest.mark.parametrize("latency", [[], [0.0], [float("nan")]])
def test_no_prior_without_a_measured_baseline(latency):
    with pytest.raises(SurrogateError, match="measured baselines"):
        latency_prior(LAYOUT, [Baseline(uniform(FP32), ms) for ms in latency])


def test_sensitivities_order_the_groups():
    errors = np.zeros((GROUPS, PRECISIONS))
    errors[:, INT8] = np.arange(GROUPS)
    errors[:, FP16] = np.nan
    prior = noise_prior(LAYOUT, errors)
    assert (np.diff(prior.nodes[:, INT8]) > 0).all()
    assert prior.nodes[:, INT8].sum() == pytest.approx(1.0, rel=1e-3)
    assert (prior.nodes[:, FP16] > 0).all()
    assert (prior.nodes[:, FP32] == 0).all()
    assert prior.log_std < noise_prior(LAYOUT).log_std
    with pytest.raises(SurrogateError, match="shape"):
        noise_prior(LAYOUT, errors[1:])


# -- latency -----------------------------------------------------------------------------------------------------------


CHAIN = replace(LAYOUT, edges=LAYOUT.edges[np.diff(LAYOUT.edges)[:, 0] == 1], elements=np.ones(GROUPS - 1))


def latency_fit(rows, seed=0, noise=0.0, costs=None, layout=LAYOUT):
    precisions = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(rows, seed)])
    costs = costs or true_costs()
    ms = LAYOUT.values(costs, precisions) * np.random.default_rng(seed).normal(1, noise, len(precisions))
    return fit_latency(layout, latency_prior(layout, engines()), precisions, ms)


# 60 rows are fewer than there are coefficients, 800 are more; 300 go through chosen rows.
@pytest.mark.parametrize("rows", [60, 300, 800])
def test_latency_of_unseen_mixes_is_recovered(rows):
    others = mixes(200, seed=9)
    truth = LAYOUT.values(true_costs(), others)
    mean, std = latency_fit(rows).predict(others)
    assert np.median(np.abs(mean / truth - 1)) < (0.01 if rows == 60 else 0.003)
    assert np.corrcoef(mean, truth)[0, 1] > 0.99
    assert (std > 0).all()


def test_predictions_are_the_values_of_the_mean_costs_where_no_region_can_be_mixed():
    others = mixes(50, seed=9)
    for rows in (0, 30, 500):
        model = latency_fit(rows, noise=0.01)
        assert model.predict_mean(others) == pytest.approx(model.predict(others)[0])
        model = latency_fit(rows, noise=0.01, layout=CHAIN)
        if not model.tuning.shared:
            assert CHAIN.values(model.mean(), others) == pytest.approx(model.predict(others)[0])


def test_without_rows_the_prior_stands():
    prior = latency_prior(LAYOUT, engines())
    others = mixes(20)
    model = fit_latency(LAYOUT, prior, mixes(0), np.zeros(0))
    mean, std = model.predict(others)
    assert mean == pytest.approx(LAYOUT.values(prior.mean(), others))
    assert (std > model.noise_std).any()


def test_uncertainty_shrinks_with_rows_and_covers_what_is_measured():
    others = mixes(400, seed=9)
    measured = LAYOUT.values(true_costs(), others) * np.random.default_rng(1).normal(1, 0.01, 400)
    widths = []
    for rows in (0, 20, 100, 600):
        mean, std = latency_fit(rows, noise=0.01).predict(others)
        assert quality(mean, std, measured).coverage > 0.7
        widths.append(np.median(std))
    assert widths[0] > 2 * widths[1] > 2 * max(widths[2:])


@pytest.mark.parametrize("rows", [10, 100, 800])
def test_draws_scatter_around_the_mean_as_much_as_is_said(rows):
    model, others = latency_fit(rows, noise=0.01, layout=CHAIN), mixes(30, seed=9)
    rng = np.random.default_rng(0)
    drawn = np.array([CHAIN.values(model.draw(rng), others) for _ in range(600)])
    predicted, std = model.predict(others)
    mean = CHAIN.values(model.mean(), others)
    own = np.sqrt(std**2 - (model.tuning.noise * predicted) ** 2)
    assert np.abs(drawn.mean(axis=0) - mean).max() < 0.25 * own.max() + 1e-3 * mean.max()
    assert np.median(drawn.std(axis=0) / own) == pytest.approx(1.0, abs=0.15)


def test_drawn_changes_cost_something():
    model = latency_fit(0)
    rng = np.random.default_rng(0)
    assert all((model.draw(rng).edges >= 0).all() for _ in range(50))


def test_rows_that_spread_count_less():
    precisions = np.concatenate([mixes(40), mixes(40)])
    ms = LAYOUT.values(true_costs(), precisions)
    ms[:40] *= 1.3
    spread = np.repeat([1.0, 0.01], 40)
    prior = latency_prior(LAYOUT, engines())
    wary, blind = (fit_latency(LAYOUT, prior, precisions, ms, s).predict(mixes(40))[0] for s in (spread, None))
    assert np.abs(wary - ms[40:]).mean() < 0.3 * np.abs(blind - ms[40:]).mean()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_latencies_of_failed_evaluations_are_refused(bad):
    ms = np.array([1.0, bad])
    with pytest.raises(SurrogateError, match=r"latency.*(leave them out|finished evaluations only)"):
        fit_latency(LAYOUT, latency_prior(LAYOUT, engines()), mixes(2), ms)


def test_rows_of_another_model_are_refused():
    prior = latency_prior(LAYOUT, engines())
    with pytest.raises(SurrogateError, match="shape"):
        fit_latency(LAYOUT, prior, mixes(2, groups=GROUPS - 1), np.ones(2))
    with pytest.raises(SurrogateError, match="from 0 to"):
        fit_latency(LAYOUT, prior, mixes(2) + np.int8(3), np.ones(2))


def test_noise_is_never_believed_below_what_measurements_differ_by():
    assert repeat_std(0.01, np.array([0.2])) == pytest.approx(0.0059, abs=1e-4)
    assert repeat_std(None, np.array([0.004, 0.003, np.nan, 0.2])) == 0.004
    assert repeat_std(None, np.zeros(0)) == 0.0
    others = mixes(300, seed=9)
    truth = LAYOUT.values(true_costs(), others)
    measured = truth * np.random.default_rng(1).normal(1, 0.13, 300)
    for rows in (0, 30):
        precisions = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(rows)])
        ms = LAYOUT.values(true_costs(), precisions)
        ms = ms * np.random.default_rng(0).normal(1, 0.13, len(precisions))
        told = fit_latency(LAYOUT, latency_prior(LAYOUT, engines()), precisions, ms, repeat=repeat_std(0.22, ms))
        mean, std = told.predict(others)
        assert told.tuning.noise >= told.repeat_std > 0.12
        assert quality(mean, std, measured).coverage > 0.8
        latent = told.predict_latent(others)[1]
        assert (latent < std).all()
        assert np.median(np.abs(mean - truth) / latent) < 1.5


def test_two_mixes_that_were_forecast_badly_widen_intervals_and_are_believed_all_the_same():
    prior, others = latency_prior(LAYOUT, engines()), mixes(100, seed=9)
    known = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(2)])
    expected = LAYOUT.values(prior.mean(), known)
    odd = expected * np.array([1.0, 1.0, 1.0, 1.3, 0.75])
    one, even, two = (fit_latency(LAYOUT, prior, known[:n], ms[:n]) for n, ms in ((4, odd), (5, expected), (5, odd)))
    assert one.tuning == type(one.tuning)(), "one mix tells nothing"
    assert np.median(two.predict(others)[1] / even.predict(others)[1]) > 1.2
    assert two.predict_mean(known) == pytest.approx(odd, rel=0.02)


# -- loss --------------------------------------------------------------------------------------------------------------


def loss_fit(rows, **how):
    precisions = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(rows)])
    _, loss, std = losses(precisions, **how)
    return fit_loss(LAYOUT, noise_prior(LAYOUT), precisions, loss, std)


@pytest.mark.parametrize("power", [0.6, 1.0, 1.5])
def test_losses_of_unseen_mixes_are_recovered(power):
    others = mixes(200, seed=9)
    truth, measured, _ = losses(others, seed=5, power=power)
    model = loss_fit(150, power=power)
    mean, std = model.predict(others)
    assert np.median(np.abs(mean / truth - 1)) < 0.05
    assert quality(mean, std, truth).rank_correlation > 0.98
    assert quality(mean, std, measured).coverage > 0.8


def test_less_noise_is_less_loss():
    model, others = loss_fit(40), mixes(100, seed=9)
    order = np.argsort(LAYOUT.values(model.mean(), others))
    assert (np.diff(model.predict(others)[0][order]) >= 0).all()
    costs = model.mean()
    assert (costs.nodes[:, FP32] == 0).all()
    assert (costs.nodes[:, 1:] > 0).all()
    assert costs.edges.shape == (len(LAYOUT.edges), PRECISIONS, PRECISIONS)
    assert not costs.edges.any()


def test_the_limit_on_noise_is_where_the_loss_is_predicted():
    model, others = loss_fit(60, power=1.4), mixes(100, seed=9)
    loss, noise = model.predict(others)[0], LAYOUT.values(model.mean(), others)
    for at in (5, 50, 95):
        assert model.limit_on_noise(float(loss[at])) == pytest.approx(noise[at])
    assert model.limit_on_noise(0.0) == 0.0
    assert model.limit_on_noise(1e9) == float("inf")


def test_fp32_loses_nothing():
    assert loss_fit(30).predict(uniform(FP32)[None])[0] == pytest.approx(0.0, abs=1e-9)


def test_loss_is_better_known_with_more_rows():
    others = mixes(100, seed=9)
    widths = [np.median(loss_fit(rows).predict(others)[1]) for rows in (0, 20, 200)]
    assert widths == sorted(widths, reverse=True)


def test_the_median_of_drawn_noise_is_the_mean():
    model, others = loss_fit(30), mixes(30, seed=9)
    rng = np.random.default_rng(0)
    drawn = np.array([LAYOUT.values(model.draw(rng), others) for _ in range(400)])
    expected = LAYOUT.values(model.mean(), others)
    assert np.median(np.median(drawn, axis=0) / expected) == pytest.approx(1.0, abs=0.2)
    assert (drawn.std(axis=0) > 0).all()


def test_where_nothing_is_lost_sensitivities_order_the_groups():
    errors = np.zeros((GROUPS, PRECISIONS))
    errors[:, INT8] = np.arange(1, GROUPS + 1)
    precisions = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(30)])
    loss = np.random.default_rng(0).normal(0, 0.002, len(precisions))
    model = fit_loss(LAYOUT, noise_prior(LAYOUT, errors), precisions, loss, np.full(len(loss), 0.002))
    assert quality(model.mean().nodes[:, INT8], np.ones(GROUPS), errors[:, INT8]).rank_correlation > 0.9
    mean, std = model.predict(mixes(50, seed=9))
    assert (mean < 2 * std).all()
    assert model.limit_on_noise(0.5) == float("inf")


def test_losses_of_all_samples_say_how_well_such_a_loss_is_known():
    """Forecasts are judged by them; what was stopped early knows its own less well."""
    precisions = np.concatenate([np.stack([uniform(p) for p in range(PRECISIONS)]), mixes(20)])
    _, loss, _ = losses(precisions)
    stopped = np.arange(len(loss)) >= 8
    std = np.where(stopped, 0.02, 0.002)
    prior = noise_prior(LAYOUT)
    assert fit_loss(LAYOUT, prior, precisions, loss, std, ~stopped).observation_std == 0.002
    assert fit_loss(LAYOUT, prior, precisions, loss, std, stopped & False).observation_std == 0.02


def test_without_losses_the_prior_stands():
    model = fit_loss(LAYOUT, noise_prior(LAYOUT), mixes(0), np.zeros(0), np.zeros(0))
    assert model.mean().nodes[:, INT8] == pytest.approx(1 / GROUPS)
    mean, std = model.predict(mixes(5))
    assert np.isfinite(mean).all()
    assert (std >= 0.5 * mean).all()


def test_losses_without_any_spread_are_taken():
    precisions = np.stack([uniform(p) for p in range(PRECISIONS)])
    model = fit_loss(LAYOUT, noise_prior(LAYOUT), precisions, np.array([0.0, 0.0, 0.1]), np.zeros(3))
    assert model.predict(precisions)[0] == pytest.approx([0.0, 0.0, 0.1], abs=0.01)


@pytest.mark.parametrize(("loss", "std"), [([0.0, np.nan], [0.1, 0.1]), ([0.0, 0.1], [0.1, -1]), ([0.0, 0.1], [0.1])])
def test_losses_of_failed_evaluations_are_refused(loss, std):
    with pytest.raises(SurrogateError, match="loss"):
        fit_loss(LAYOUT, noise_prior(LAYOUT), mixes(2), np.array(loss), np.array(std, float))


# -- forecasts ---------------------------------------------------------------------------------------------------------


def test_quality_of_forecasts():
    measured = np.array([1.0, 2.0, 3.0, 4.0])
    found = quality(measured * 1.1, np.full(4, 0.15), measured)
    assert found.rank_correlation == pytest.approx(1.0)
    assert found.error == pytest.approx(0.1)
    assert found.coverage == 0.5  # misses of 0.1 and 0.2 lie within 0.247
    assert found.n == 4
    assert quality(measured * 1.1, np.full(4, 0.1), measured, scale=10.0).error == pytest.approx(0.025)
    assert quality(-measured, np.ones(4), measured).rank_correlation == pytest.approx(-1.0)
    assert np.isnan(quality(np.ones(4), np.ones(4), measured).rank_correlation)
    assert quality(np.zeros(0), np.zeros(0), np.zeros(0)).n == 0


def test_ranks_share_ties():
    from scipy.stats import spearmanr

    one, two = np.array([1.0, 1.0, 2.0, 5.0, 5.0]), np.array([3.0, 1.0, 1.0, 4.0, 9.0])
    assert quality(one, np.ones(5), two).rank_correlation == pytest.approx(spearmanr(one, two)[0])


@pytest.mark.parametrize(
    ("found", "poor"),
    [
        (None, False),
        (Quality(0.95, 0.02, 0.9, 5.0, 30), False),
        (Quality(0.95, 0.20, 0.9, 5.0, 30), True),
        (Quality(0.95, 0.02, 0.4, 5.0, 30), True),
        (Quality(0.20, 0.02, 0.9, 5.0, 30), True),
        (Quality(0.20, 0.02, 0.9, 1.0, 30), False),  # all alike: ranks are noise
        (Quality(float("nan"), 0.02, 0.9, 5.0, 30), True),
        (Quality(0.20, 0.50, 0.1, 5.0, 7), False),  # too few to say
    ],
)
def test_poor_forecasts(found, poor):
    assert is_poor(found) is poor
