"""Simulated networks, the methods that search them, and what tables say of the searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import RESULTS
from benchmarks.samplers import compare, optuna_methods, scores, search_orders, tables
from benchmarks.samplers.bench import Bench, Spent, run
from benchmarks.samplers.simulator import best_front, engine_rows, problem, simulated
from benchmarks.samplers.simulator.problem import Problem
from benchmarks.samplers.worlds import catalogue
from search.values import Precision

LETTERS = "fhi"


@pytest.fixture(scope="module")
def network() -> simulated.Network:
    return simulated.by_name("vit_small")


def test_a_simulated_network_is_like_its_rows_and_its_front_is_the_best_known(network: simulated.Network) -> None:
    rows = network.simulator.rows
    ms, loss = network.simulator.predict(rows.precisions)
    assert np.median(np.abs(ms / rows.latency_ms - 1)) < 0.02
    assert np.corrcoef(loss, rows.loss)[0, 1] > 0.9
    assert set(rows.profiles) <= set(Precision)
    some = best_front.random(network.problem, 500, np.random.default_rng(0))
    joined = best_front.joined(network.problem, network.front, some)
    assert joined.volume(network.problem.reference) <= network.volume * (1 + 1e-9)


def test_rows_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"rows": []}')
    with pytest.raises(engine_rows.RowsError, match=r"expected groups, edges and rows of evaluations, got KeyError"):
        engine_rows.read_trained(tmp_path / "odd.json")


def test_measurements_repeat_and_scatter_around_the_truth(network: simulated.Network) -> None:
    codes = network.front.codes[0]
    assert network.problem.evaluate(codes, 3) == network.problem.evaluate(codes, 3)
    (ms,), (loss,) = network.problem.measures(codes[None])
    found = [network.problem.evaluate(codes, seed) for seed in range(200)]
    assert np.mean([m.latency_ms for m in found]) == pytest.approx(ms, rel=0.003)
    assert np.mean([m.loss for m in found]) == pytest.approx(loss, abs=0.002)
    assert 0.88 < np.mean([m.loss_low <= loss <= m.loss_high for m in found]) < 1.0


# -- methods, on a world of 22 groups ----------------------------------------------------------------------------------


def world() -> Problem:
    return catalogue.make("branching_22")


def exact(of: Problem, weights: list[float]) -> Problem:
    """The same problem with a loss that is known exactly, all of it from INT8."""

    class Exact(Problem):
        def evaluate(self, codes: Any, seed: int) -> problem.Measurement:
            loss = float(np.dot(weights, np.asarray(codes) == 2))
            return problem.Measurement(float(self.measures(codes[None])[0][0]), loss, loss, loss)

    return Exact(**vars(of))


def test_only_distinct_evaluations_count() -> None:
    bench = Bench(world(), 0, 2)
    first = bench.evaluate(np.zeros(22, int))
    assert bench.evaluate(np.zeros(22, int)) == first
    guidance = optuna_methods.guided_sampler(bench).guidance
    assert guidance.left() == 1, "the sampler knows how many are left"
    bench.evaluate(np.ones(22, int))
    with pytest.raises(Spent):
        bench.evaluate(np.full(22, 2))
    assert len(bench.codes()) == 2


def test_search_orders_probe_every_group_and_go_by_what_it_costs() -> None:
    probing = Bench(exact(world(), [22.0 - i for i in range(22)]), 0, 1000)
    run(search_orders.probes_then_prefixes, probing)
    tried = ["".join(LETTERS[code] for code in codes) for codes in probing.codes()]
    assert tried[:3] == ["f" * 22, "h" * 22, "i" * 22]
    assert tried[-1] == "h" + "i" * 21  # INT8 from the last group, which costs least, to the first
    reverting = Bench(exact(world(), [1.0 + i for i in range(22)]), 0, 1000)
    run(search_orders.revert_worst, reverting)
    tried = ["".join(LETTERS[code] for code in codes) for codes in reverting.codes()]
    assert tried[3] == "h" + "i" * 21
    assert tried[25] == "i" * 20 + "hh"


@pytest.mark.parametrize("method", ["random", "tpe_default", "tpe", "nsga2", "climb", "rl", "guided"])
def test_methods_spend_their_trials_and_repeat_with_a_seed(method: str) -> None:
    tried = []
    for _ in range(2):
        bench = Bench(world(), 1, 9)
        run(compare.METHODS[method], bench)
        tried.append(bench.codes().tolist())
    assert len(tried[0]) == 9
    assert tried[0] == tried[1]
    assert (tried[0][:3] == [[0] * 22, [1] * 22, [2] * 22]) == (method != "tpe_default")


# -- scores and what is shown ------------------------------------------------------------------------------------------


def test_shares_and_budgets_are_judged_by_the_truth(network: simulated.Network) -> None:
    bench = Bench(network.problem, 0, 500, scores.budget_ms(network, 0.5))
    bench.baselines()
    assert 0 < scores.over_trials(network, bench)[-1][1] < 1
    for codes in network.front.codes:
        bench.evaluate(codes)
    assert scores.over_trials(network, bench)[-1][1] == pytest.approx(1)
    assert scores.within_budget(network, bench)["found"] == 0
    place = len(network.front.ms) // 2
    beyond = Bench(network.problem, 0, 500, network.front.ms[place] / 1.005)
    beyond.evaluate(network.front.codes[place])
    judged = scores.within_budget(network, beyond)
    assert (judged["found"], judged["near"]) == (None, 0)


def test_curves_and_trials_to_reach() -> None:
    steps = [[1, 0.2], [3, 0.5]]
    assert scores.curve(steps, 5).tolist() == [0.2, 0.2, 0.5, 0.5, 0.5]
    assert [scores.reached(steps, share) for share in (0.2, 0.3, 0.6)] == [1, 3, np.inf]


def test_a_run_is_gone_on_with_and_refused_with_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare.json"
    for file in RESULTS.glob("replay_*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    words = ["--quick", "--networks", "vit_small", "--methods", "random", "--jobs", "1", "--out", str(out)]
    compare.main([*words, "--no-budgets"])
    assert "ViT-small" in capsys.readouterr().out
    results = json.loads(out.read_text())
    assert {key: sorted(runs) for key, runs in results["runs"].items()} == {
        f"vit_small|{method}": ["0", "1"] for method in ("climb", "random", "tpe")
    }
    results["runs"]["vit_small|tpe"]["0"]["seconds"] = -1  # would not survive being run again
    compare.save(out, results)
    compare.main([*words, "--no-budgets"])
    assert json.loads(out.read_text())["runs"]["vit_small|tpe"]["0"]["seconds"] == -1
    with pytest.raises(SystemExit, match="holds runs of 15 trials"):
        compare.main(["--trials", "16", "--out", str(out)])


def test_the_stored_tables_are_those_of_the_stored_results() -> None:
    kept = json.loads((RESULTS / "samplers.json").read_text())
    text = tables.text(kept, compare.LABELS)
    assert (RESULTS / "samplers.md").read_text().endswith(f"\n{text}\n")
    assert "| ResNet-18 | 99.8%" in text
