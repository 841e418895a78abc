"""The trust benchmark judges from outside what a search said: its samples, its scores and how it counts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.trust import digits, samples, scores, studies, verdicts
from benchmarks.trust import run as trust
from benchmarks.trust.fresh import Fresh, scores_of
from benchmarks.trust.studies import NETWORKS, model_of
from evaluators.metrics.registry import get_metric
from tests.support.command_line import ok
from tests.support.paths import ROOT

OUTPUTS = {
    "top1": {"logits": (40, 7)},
    "benchmarks.trust.scores:both_tops": {"shape": (40, 6), "colour": (40, 5)},
    "miou": {"classes": (40, 4, 9, 9)},
}


def outputs_and_labels(metric: str, seed: int) -> tuple[dict[str, Any], Any]:
    """Outputs of `OUTPUTS`' shapes, and labels that agree with them more often than chance has it."""
    rng = np.random.default_rng(seed)
    outputs = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in OUTPUTS[metric].items()}
    best = [each.argmax(1) for each in outputs.values()]
    labels = [np.where(rng.random(b.shape) < 0.5, b, rng.integers(0, 4, b.shape)) for b in best]
    return outputs, labels[0] if len(labels) == 1 else np.stack(labels, axis=1)


def value_by_bitfront(metric: str, outputs: dict[str, Any], labels: Any) -> float:
    found = get_metric(metric)
    if found.kind == "per_sample":
        return float(found.scores(outputs, labels, count=len(labels)).mean())
    gathering = found.accumulator()
    gathering.update(outputs, labels, count=len(labels))
    return gathering.compute()


@pytest.mark.parametrize("metric", OUTPUTS)
def test_scores_are_those_of_the_search(metric: str) -> None:
    outputs, labels = outputs_and_labels(metric, 0)
    found = scores.SCORES[metric](outputs, labels)
    assert len(found) == len(labels)
    assert scores.value_of(metric, found) == pytest.approx(value_by_bitfront(metric, outputs, labels), abs=1e-12)


def test_the_metrics_of_all_networks_are_scored() -> None:
    assert {network.metric for network in NETWORKS.values()} == set(scores.SCORES) == set(OUTPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("metric", OUTPUTS)
def test_an_interval_of_the_loss_is_as_wide_as_losses_scatter(metric: str) -> None:
    """Over many draws of samples, nineteen in twenty intervals cover the loss that all of them have together."""
    rng = np.random.default_rng(1)
    parts = [outputs_and_labels(metric, seed) for seed in range(60)]
    better = np.concatenate([scores.SCORES[metric](*part) for part in parts])
    worse = np.concatenate([scores.SCORES[metric](part[0], part[1][::-1]) for part in parts])
    worse = np.where(rng.random(len(worse)).reshape(-1, *[1] * (worse.ndim - 1)) < 0.8, better, worse)
    truth = scores.loss_of(metric, better, worse).loss
    covered = 0
    for _ in range(60):
        chosen = rng.integers(len(better), size=400)
        found = scores.loss_of(metric, better[chosen], worse[chosen])
        covered += found.low <= truth <= found.high
    assert 50 <= covered <= 60
    assert found.low < found.loss < found.high


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_samples_come_again_and_purposes_do_not_overlap(network: str) -> None:
    study, fresh = samples.draw(network, "study", 300), samples.draw(network, "fresh", 300)
    name = next(iter(study))
    assert len(study[name]) == len(study["labels"]) == 300
    assert study[name].dtype == np.float32
    assert study["labels"].dtype.kind in "iu"
    again = samples.draw(network, "study", 500)
    assert np.array_equal(again[name][:300], study[name])
    assert np.array_equal(again["labels"][:300], study["labels"])
    rows = {row.tobytes() for row in (*study[name], *fresh[name])}
    assert len(rows) == 600


@pytest.mark.slow
def test_fresh_scenes_of_the_example_look_like_the_shipped_ones() -> None:
    with np.load(ROOT / "examples" / "digits" / "digits.npz") as file:
        shipped = file["image"]
    drawn = samples.draw("digits", "fresh", 2000)["image"]
    assert drawn.shape[1:] == shipped.shape[1:]
    assert set(np.unique(np.round(drawn * digits.LEVELS))) == set(range(8))
    for image in (drawn, shipped):
        image.shape = (len(image), -1)
    grey = [
        np.bincount(np.round(each * 7).astype(int).reshape(-1), minlength=8) / each.size for each in (drawn, shipped)
    ]
    assert np.abs(grey[0] - grey[1]).max() < 0.01
    # In every pixel the mean is that of the shipped scenes, as far as so many tell.
    error = np.sqrt(drawn.var(0) / len(drawn) + shipped.var(0) / len(shipped))
    assert np.abs((drawn.mean(0) - shipped.mean(0)) / error).max() < 5


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_float_model_knows_its_task_and_not_all_of_it(network: str) -> None:
    wanted = NETWORKS[network]
    fresh = Fresh(network, model_of(network), wanted.metric, 500)
    assert 0.4 < fresh.float_value < 0.97
    assert fresh.loss(model_of(network)).loss == 0


def test_a_model_with_a_fixed_batch_is_scored_on_every_sample(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(model_of("encoder"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 50
    onnx.save(model, tmp_path / "fixed.onnx")
    arrays = samples.draw("encoder", "study", 120)
    whole, fixed = (scores_of(path, arrays, "top1") for path in (model_of("encoder"), tmp_path / "fixed.onnx"))
    assert np.array_equal(whole, fixed)


def run_of(final: float, fresh: float, verdict: str = "likely", is_fp32: bool = False) -> dict[str, Any]:
    """A study whose final loss is known to ± 0.004 and whose fresh loss to ± 0.003."""
    return {
        "final": {"loss": final, "loss_low": final - 0.004, "loss_high": final + 0.004},
        "fresh": {"loss": fresh, "low": fresh - 0.003, "high": fresh + 0.003},
        "search": {"loss": final},
        "verdict": verdict,
        "surely": verdict == "kept",
        "held": verdict != "missed",
        "is_fp32": is_fp32,
        "trial": 3,
        "over_fp32": 0.6,
        "fastest": {"best_over_it": 1.1},
        "seconds": {"search": 20.0, "export": 5.0},
        "float": {"fresh": 0.9, "study": 0.9},
        "uniform": {"int8": {"over_fp32": 0.5, "search_loss": 0.02}},
    }


def test_counts_take_a_claim_that_was_not_made_as_kept() -> None:
    runs = {
        "encoder-0": run_of(0.002, 0.004, "kept"),
        "encoder-1": run_of(0.002, 0.011, "kept"),  # wrong, and not covered
        "encoder-2": run_of(0.008, 0.012, "likely"),  # beyond the limit, covered
        "encoder-3": run_of(0.020, 0.030, "missed"),  # no claim; not covered
        "encoder-4": run_of(0.0, 0.0, "kept", is_fp32=True),
    }
    surely, held, covered, not_float = verdicts.counts(runs)
    assert (surely.holds, surely.applies) == (4, 3)
    assert (held.holds, held.applies) == (3, 4)
    assert covered.holds == 3
    assert not_float.holds == 4
    assert surely.met is None
    assert verdicts.counts({f"encoder-{n}": run_of(0.0, 0.0) for n in range(25)})[0].met


def test_an_interval_covers_a_fresh_loss_that_is_an_estimate_itself() -> None:
    apart = 0.0049  # the root of 0.004² + 0.003² is 0.005
    for sign in (-1, 1):
        assert verdicts.covers(run_of(0.005, 0.005 + sign * apart))
        assert not verdicts.covers(run_of(0.005, 0.005 + sign * apart), alone=True)
        assert not verdicts.covers(run_of(0.005, 0.005 + sign * 0.0051))


def test_results_are_kept_in_order_and_a_table_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trust.json"
    for name in ("heads-1", "digits-0", "heads-0"):
        trust.keep(out, name, run_of(0.002, 0.004))
    found = trust.stored(out)
    assert list(found["runs"]) == ["digits-0", "heads-0", "heads-1"]
    table = verdicts.text(found["runs"])
    assert "| heads, seed 1 | trial 3 |" in table
    assert "3 of 3" in table


@pytest.mark.slow
def test_a_study_from_search_to_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command line in this process, with few trials and samples; a second call finds it done."""
    monkeypatch.setattr(studies, "bitfront", ok)
    monkeypatch.setitem(NETWORKS, "encoder", replace(NETWORKS["encoder"], samples=1000))
    words = ["--only", "encoder", "--seeds", "2", "--trials", "4", "--fresh", "500"]
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "trust.json")]
    arguments = trust.parsed([*words, *where])
    trust.run_network("encoder", arguments, "commit")
    run = trust.stored(tmp_path / "trust.json")["runs"]["encoder-2"]
    assert run["commit"] == "commit"
    assert run["evaluations"] == 4
    assert run["final"]["samples"] == 300
    assert run["verdict"] in ("kept", "likely", "missed")
    # The product's score of FP32 on its samples and ours on others are estimates of one thing.
    share, scored = run["float"]["fresh"], run["float"]["samples"]
    assert abs(run["float"]["study"] - share) < 4.5 * np.sqrt(share * (1 - share) * (1 / 500 + 1 / scored))
    if run["fresh"]["loss"] <= NETWORKS["encoder"].drop:
        assert run["fastest"]["best_over_it"] >= 1
    shutil.rmtree(tmp_path / "work")
    trust.run_network("encoder", arguments, "commit")
    assert not (tmp_path / "work" / "encoder-2").exists()
