"""The sampler benchmark: simulators of measured networks, their best-known fronts, what is counted and scored."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import DOCS, RESULTS
from benchmarks.page import replace_section
from benchmarks.samplers import compare, figure, optuna_methods, scores, search_orders, tables
from benchmarks.samplers.bench import Bench, Spent, run
from benchmarks.samplers.simulator import best_front, engine_rows, noise, problem, simulated
from benchmarks.samplers.simulator.noise import Noise
from benchmarks.samplers.simulator.problem import Problem
from search.values import Precision
from studies.judging.rules.hypervolume import hypervolume
from tests.support.engine_rows import LETTERS, trained, written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> simulated.Network:
    folder = tmp_path_factory.mktemp("chain")
    return simulated.network(written(folder, trained()), folder, rounds=1)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_of_trained_networks_are_read_with_their_sampling_error(tmp_path: Path) -> None:
    rows = written(tmp_path, trained())
    assert len(rows) == 63
    assert rows.baselines == {"fp32": 0, "fp16": 1, "int8": 2}
    assert rows.layout.edges.tolist() == [[i, i + 1] for i in range(5)]
    assert rows.error_sd == pytest.approx(np.full(63, 0.004 / 1.96))
    assert rows.alone is None
    assert rows.noise == Noise()


def test_rows_that_failed_or_ran_otherwise_are_left_out_and_opaque_ones_kept(tmp_path: Path) -> None:
    content = trained()
    content["rows"][10]["got"] = "f" * 6 if content["rows"][10]["a"] != "f" * 6 else "h" * 6
    content["rows"][11] = {"a": "ffffff", "failed": ["build", "refused", "no"]}
    content["rows"][12]["got"] = "??????"
    rows = written(tmp_path, content)
    assert (len(rows), rows.left_out) == (61, 2)


def test_latencies_of_another_gpu_are_scaled_by_its_uniform_engines(tmp_path: Path) -> None:
    content = trained()
    plain = written(tmp_path, content).latency_ms
    for label, each in zip(("fp32", "fp16", "int8"), content["rows"][:3], strict=True):
        each["role"] = f"baseline:{label}"
    content["workers"] = {"2of2": {label: 1.1 * ms for label, ms in zip(("fp32", "int8"), plain[[0, 2]], strict=True)}}
    content["rows"][5] |= {"worker": "2of2", "lat": 1.1 * plain[5]}
    assert written(tmp_path, content).latency_ms == pytest.approx(plain)


def test_studies_on_other_gpus_are_scaled_by_their_own_baselines(tmp_path: Path) -> None:
    content = trained()
    plain = written(tmp_path, content).latency_ms
    for source, factor in (("study", 1.0), ("tpe", 1.2)):
        again = [dict(content["rows"][i]) for i in range(3)]
        for label, each in zip(("fp32", "fp16", "int8"), again, strict=True):
            content["rows"].append(each | {"role": f"baseline:{label}", "source": source, "lat": factor * each["lat"]})
    content["rows"].append(content["rows"][7] | {"source": "tpe", "lat": 1.2 * plain[7]})
    found = written(tmp_path, content)
    assert found.latency_ms[-1] == pytest.approx(plain[7])
    assert found.latency_ms[:63] == pytest.approx(plain)


def test_rows_made_earlier_of_the_same_groups_are_scaled_and_added(tmp_path: Path) -> None:
    for name, factor in (("chain", 1.0), ("before", 1.25)):
        made = trained(count=20)
        for place, each in enumerate(made["rows"]):
            each.update(lat=factor * each["lat"], source="study")
            if place < 3:
                each["role"] = f"baseline:{('fp32', 'fp16', 'int8')[place]}"
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    alone = engine_rows.read_trained(tmp_path / "chain.json")
    both = engine_rows.read_trained(tmp_path / "chain.json", [tmp_path / "before.json"])
    assert len(both) == 2 * len(alone)
    np.testing.assert_allclose(both.latency_ms[len(alone) :], alone.latency_ms, rtol=1e-9)
    assert both.baselines == alone.baselines
    assert both.digest != alone.digest
    other = {**json.loads((tmp_path / "before.json").read_text()), "groups": ["another"]}
    (tmp_path / "before.json").write_text(json.dumps(other))
    with pytest.raises(engine_rows.RowsError, match="earlier rows of other groups"):
        engine_rows.read_trained(tmp_path / "chain.json", [tmp_path / "before.json"])


def test_what_the_study_told_its_sampler_is_told_again(chain: simulated.Network, tmp_path: Path) -> None:
    content = trained()
    content["sensitivities"] = [[0, "i", 0.02], [3, "h", 0.001], [5, "i", None]]
    content["profiles"] = {"f": [["a", "Conv", 0, False, 0.4], ["b", "Reformat", None, True, 0.1]]}
    rows = written(tmp_path, content)
    assert rows.alone is not None
    assert rows.alone[:, 0].tolist() == [0.0] * 6
    assert (rows.alone[0, 2], rows.alone[3, 1], rows.alone[5, 2]) == (0.02, 0.001, 1.0)
    assert np.isnan(rows.alone).sum() == 9
    assert [layer.group for layer in rows.profiles[Precision.FP32]] == ["g000", None]
    of = problem.make(replace(chain.simulator, rows=rows))
    assert of.sensitivity(0) is rows.alone


def test_a_precision_that_no_row_has_is_not_offered(tmp_path: Path) -> None:
    content = trained()
    for each in content["rows"]:
        each["a"] = each["got"] = each["a"][0].replace("i", "h") + each["a"][1:]
    rows = written(tmp_path, content)
    assert [len(effects) for effects in rows.layout.effects] == [2, 3, 3, 3, 3, 3]
    assert rows.precisions[rows.baselines["int8"]].tolist() == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("name", ["resnet18_random", "mobilenet_v2_random"])
def test_rows_of_random_weights_are_there(name: str) -> None:
    rows = engine_rows.read(name)
    assert not rows.trained
    assert set(rows.profiles) == set(Precision)
    assert name in engine_rows.names()


def test_rows_of_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(engine_rows.RowsError, match=r"expected what benchmarks/h200/rows.py writes, got KeyError"):
        written(tmp_path, {"rows": []})
    content = trained()
    del content["rows"][2]
    with pytest.raises(engine_rows.RowsError, match="none with every group in int8"):
        written(tmp_path, content)


def test_the_synthetic_loss_rises_from_nothing_and_saturates() -> None:
    loss = engine_rows.synthetic_loss(np.array([-1.0, 0.0, 0.1, 1.0, 2.0, 1e9]), 1.0)
    assert loss[0] == loss[1] == 0
    assert np.all(np.diff(loss[1:]) > 0)
    assert loss[3] == engine_rows.INT8_LOSS
    assert loss[-1] == pytest.approx(2 * engine_rows.INT8_LOSS)


# -- problems ----------------------------------------------------------------------------------------------------------


def test_measurements_repeat_and_scatter_around_the_truth(chain: simulated.Network) -> None:
    codes = np.array([2, 2, 2, 2, 1, 1])
    assert chain.problem.evaluate(codes, 3) == chain.problem.evaluate(codes, 3)
    (ms,), (loss,) = chain.problem.measures(codes[None])
    found = [chain.problem.evaluate(codes, seed) for seed in range(400)]
    ratios = np.array([m.latency_ms for m in found]) / ms
    assert ratios.mean() == pytest.approx(1, abs=0.002)
    assert ratios.std() == pytest.approx(noise.REBUILD_SD, rel=0.15)
    assert np.mean([m.loss for m in found]) == pytest.approx(loss, abs=0.001)
    assert 0.9 < np.mean([m.loss_low <= loss <= m.loss_high for m in found]) < 0.99


def test_sensitivities_name_every_offered_pair(chain: simulated.Network) -> None:
    found = chain.problem.sensitivity(0)
    assert found.shape == (6, 3)
    assert np.isfinite(found).all()
    assert found[:, 0] == pytest.approx(np.zeros(6), abs=1e-12)
    assert (found[:, 2] > found[:, 0]).all()


def test_the_best_known_front_is_the_true_one_where_all_can_be_tried(chain: simulated.Network) -> None:
    everything = np.array(list(product(range(3), repeat=6)))
    ms, loss = chain.problem.measures(everything)
    truth = hypervolume(ms, loss, chain.problem.reference)
    assert best_front.find(chain.problem, rounds=1).volume(chain.problem.reference) == pytest.approx(truth, rel=1e-9)


def test_another_start_finds_the_same_front_of_a_measured_network() -> None:
    network = simulated.by_name("resnet18_random")
    assert best_front.find(network.problem, rounds=1, seed=5).volume(network.problem.reference) <= network.volume * (
        1 + 1e-6
    )


# -- methods -----------------------------------------------------------------------------------------------------------


def test_only_distinct_evaluations_count(chain: simulated.Network) -> None:
    bench = Bench(chain.problem, 0, 2)
    first = bench.evaluate(np.zeros(6, int))
    assert bench.evaluate(np.zeros(6, int)) == first
    guidance = optuna_methods.guided_sampler(bench).guidance
    assert guidance.left() == 1, "the sampler knows how many are left"
    bench.evaluate(np.ones(6, int))
    assert guidance.left() == 0
    with pytest.raises(Spent):
        bench.evaluate(np.full(6, 2))
    assert bench.codes().tolist() == [[0] * 6, [1] * 6]


def exact(of: Problem, weights: list[float]) -> Problem:
    """The same problem with a loss that is known exactly, all of it from INT8."""

    class Exact(Problem):
        def evaluate(self, codes: Any, seed: int) -> problem.Measurement:
            loss = float(np.dot(weights, np.asarray(codes) == 2))
            return problem.Measurement(float(self.measures(codes[None])[0][0]), loss, loss, loss)

    return Exact(**vars(of))


def test_probes_count_and_prefixes_go_from_the_least_harmful(chain: simulated.Network) -> None:
    bench = Bench(exact(chain.problem, [6, 5, 4, 3, 2, 1]), 0, 1000)
    run(search_orders.probes_then_prefixes, bench)
    tried = ["".join(LETTERS[code] for code in codes) for codes in bench.codes()]
    assert tried[:3] == ["ffffff", "hhhhhh", "iiiiii"]
    assert len([each for each in tried[3:15] if each.count("f") == 5]) == 12
    # FP16 costs nothing anywhere; then INT8 from the last group, which costs least, to the first.
    assert tried[-5:] == ["hhhhhi", "hhhhii", "hhhiii", "hhiiii", "hiiiii"]


def test_reverting_goes_from_the_most_helpful(chain: simulated.Network) -> None:
    bench = Bench(exact(chain.problem, [1, 2, 3, 4, 5, 6]), 0, 1000)
    run(search_orders.revert_worst, bench)
    tried = ["".join(LETTERS[code] for code in codes) for codes in bench.codes()]
    assert tried[3:9] == ["hiiiii", "ihiiii", "iihiii", "iiihii", "iiiihi", "iiiiih"]
    assert tried[9:] == ["iiiihh", "iiihhh", "iihhhh", "ihhhhh"]


@pytest.mark.parametrize("method", ["random", "tpe_default", "tpe", "nsga2", "climb", "rl"])
def test_methods_spend_their_trials_and_repeat_with_a_seed(chain: simulated.Network, method: str) -> None:
    tried = []
    for _ in range(2):
        bench = Bench(chain.problem, 1, 20)
        run(compare.METHODS[method], bench)
        tried.append(bench.codes().tolist())
    assert len(tried[0]) == 20
    assert tried[0] == tried[1]
    assert (tried[0][:3] == [[0] * 6, [1] * 6, [2] * 6]) == (method != "tpe_default")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_only_repeats_itself_still_gets_on(chain: simulated.Network) -> None:
    from optuna.samplers import PartialFixedSampler, RandomSampler

    stuck = PartialFixedSampler({v.id: 1 for v in chain.problem.layout.space.variables}, RandomSampler(0))
    bench = Bench(chain.problem, 0, 8)
    run(lambda b: optuna_methods.search(b, stuck), bench)
    assert len(bench.found) == 8


def test_the_guided_sampler_runs_and_beats_random(chain: simulated.Network) -> None:
    last = {}
    for method in ("guided", "guided_without_edges", "random"):
        bench = Bench(chain.problem, 0, 15)
        run(compare.METHODS[method], bench)
        last[method] = scores.over_trials(chain, bench)[-1][1]
    assert last["guided"] >= last["random"]


# -- scores and what is shown ------------------------------------------------------------------------------------------


def test_shares_are_of_what_was_tried_without_noise(chain: simulated.Network) -> None:
    bench = Bench(chain.problem, 0, 500)
    bench.baselines()
    steps = scores.over_trials(chain, bench)
    assert 0 < steps[-1][1] < 1
    for codes in chain.front.codes:
        bench.evaluate(codes)
    assert scores.over_trials(chain, bench)[-1][1] == pytest.approx(1)


def test_curves_and_trials_to_reach() -> None:
    steps = [[1, 0.2], [3, 0.5]]
    assert scores.curve(steps, 5).tolist() == [0.2, 0.2, 0.5, 0.5, 0.5]
    assert scores.reached(steps, 0.2) == 1
    assert scores.reached(steps, 0.3) == 3
    assert scores.reached(steps, 0.6) == np.inf


def test_a_budget_is_judged_by_the_truth(chain: simulated.Network) -> None:
    budget = scores.budget_ms(chain, 0.5)
    bench = Bench(chain.problem, 0, 500, budget)
    bench.evaluate(np.zeros(6, int))
    assert scores.within_budget(chain, bench) == {"found": None, "near": None, "picked": None}
    for codes in chain.front.codes:
        bench.evaluate(codes)
    assert scores.within_budget(chain, bench)["found"] == 0


def test_a_trial_in_the_tie_band_beyond_a_budget_is_told_apart(chain: simulated.Network) -> None:
    place = len(chain.front.ms) // 2
    bench = Bench(chain.problem, 0, 500, chain.front.ms[place] / 1.005)
    bench.evaluate(chain.front.codes[place])
    judged = scores.within_budget(chain, bench)
    assert judged["found"] is None
    assert judged["near"] == 0


def test_a_run_is_resumed_shown_and_refused_with_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare.json"
    shutil.copy(simulated.FOLDER / "replay_resnet18_random.json", tmp_path)
    words = ["--quick", "--out", str(out), "--no-budgets"]
    compare.main(words)
    assert "ResNet-18, random weights" in capsys.readouterr().out
    results = json.loads(out.read_text())
    assert {key: sorted(runs) for key, runs in results["runs"].items()} == {
        f"resnet18_random|{method}": ["0", "1"] for method in ("climb", "random", "tpe")
    }
    results["runs"]["resnet18_random|tpe"]["0"]["seconds"] = -1  # would not survive being run again
    compare.save(out, results)
    compare.main(words)
    assert json.loads(out.read_text())["runs"]["resnet18_random|tpe"]["0"]["seconds"] == -1
    with pytest.raises(SystemExit, match="holds runs of 15 trials"):
        compare.main(["--trials", "16", "--out", str(out)])


def test_runs_of_another_version_of_the_sampler_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "guided.py").write_text("one")
    source = compare.source_digest(tmp_path)
    (tmp_path / "guided.py").write_text("two")
    other = compare.source_digest(tmp_path)
    assert source != other
    runs = {"n|guided": {"0": {"source": source}, "1": {"source": other}, "2": {}}, "n|guided|0.5": {"0": {}}}
    found: dict[str, Any] = {"runs": {**runs, "n|tpe": {"0": {}}}}
    assert compare.drop_outdated(found, ["random", "tpe"], source) == 0
    assert compare.drop_outdated(found, ["guided", "tpe"], source) == 3
    assert found["runs"] == {"n|guided": {"0": {"source": source}}, "n|tpe": {"0": {}}}


def test_a_run_of_ours_keeps_the_digest_of_its_source(tmp_path: Path) -> None:
    shutil.copy(simulated.FOLDER / "replay_resnet18_random.json", tmp_path)
    ours, other = (compare.Task("resnet18_random", method, 0, 4) for method in ("guided", "random"))
    assert compare.perform(ours, tmp_path, "abc")["source"] == "abc"
    assert "source" not in compare.perform(other, tmp_path, "abc")


def results() -> dict[str, Any]:
    def runs(rises: list[list[float]]) -> dict[str, Any]:
        return {str(seed): {"steps": rises, "trials": 40} for seed in range(3)}

    held = {"rows": 9, "latency_rank": 0.9, "loss_rank": 0.8, "noise": 0.0005, "typical_loss": 0.01}
    held |= {"latency": 0.02, "latency_process": 0.021, "latency_trees": 0.03}
    held |= {"loss": 0.001, "loss_process": 0.0012, "loss_trees": 0.0013}
    about: dict[str, Any] = {"held_out": held, "trained": True, "front": 5, "tried": 1000, "uniform_share": 0.5}
    about |= {"misfit": [0.02, 0.1], "not_additive": 0.03, "noise": vars(Noise(repeated=12))}
    about["budgets"] = {f"{q:g}": {"ms": 1.0, "loss": 0.01, "band": 0.02} for q in scores.QUANTILES}
    near = {"0": {"found": 0.0005}, "1": {"found": 0.01}, "2": {"found": None}}
    return {
        "about": {"trials": 40, "budget_trials": 20},
        "networks": {"resnet18": about},
        "refused": {"vit_small": "too few rows"},
        "runs": {
            "resnet18|guided": runs([[1, 0.5], [10, 0.9]]),
            "resnet18|random": runs([[1, 0.5], [35, 0.95]]),
            "resnet18|tpe": runs([[1, 0.5]]),
            **{f"resnet18|guided|{q:g}": near for q in scores.QUANTILES},
        },
    }


def test_tables_say_how_many_trials_others_need() -> None:
    text = tables.text(results(), compare.LABELS)
    assert "| guided | 3 | 90.0% | 90.0% | 90.0% ± 0.0% | 10 | 0.3× |" in text
    assert "| random | 3 | 50.0% | 50.0% | 50.0% ± 0.0% | 35 | 1.2× |" in text
    assert "| TPE, multivariate | 3 | 50.0% | 50.0% | 50.0% ± 0.0% | more than 40 | more than 1.3× |" in text
    assert "| guided | 2 of 3 (1); +1.00 points |" in text
    assert "| ResNet-18 | 9 | 2.0% | 2.1% | 3.0% | 0.900 | 0.10 | 0.12 | 0.13 | 0.05 | 0.800 |" in text
    assert "| ResNet-18 | 2.0%, 10.0% | 3.0% | 0.60% (from 12 repeats) | 1000 | 5 of 1,000 | 50.0% |" in text
    assert "| ResNet-18 | 90.0% ± 0.0% | 1.2× (random) | 2 of 3, 2 of 3, 2 of 3 |" in text
    assert "too few rows" in text


def test_trials_to_a_share_compare_the_median_seed_with_the_median_seed() -> None:
    found = results()
    ends = (0.2, 0.9, 0.9)  # the mean is 66.7 %, which no seed has
    found["runs"]["resnet18|guided"] = {
        str(seed): {"steps": [[1, 0.1], [10, end]], "trials": 40} for seed, end in enumerate(ends)
    }
    text = tables.text(found, compare.LABELS)
    assert "| trials to 90.0% | of 30 |" in text
    assert "| guided | 3 | 66.7% | 66.7% | 66.7% ± 40.4% | 10 | 0.3× |" in text


def test_tables_tell_what_is_within_the_tie_band_and_below_every_engine_where_it_is_known() -> None:
    found = results()
    assert "| 2 of 3, 2 of 3, 2 of 3 | , ,  |" in tables.text(found, compare.LABELS)
    for q in scores.QUANTILES:
        runs = found["runs"][f"resnet18|guided|{q:g}"]
        found["runs"][f"resnet18|guided|{q:g}"] = {seed: {**run, "near": 0.0} for seed, run in runs.items()}
    found["networks"]["resnet18"]["fastest_row"] = 1.1
    text = tables.text(found, compare.LABELS)
    assert "| 2 of 3, 2 of 3, 2 of 3 | 3 of 3, 3 of 3, 3 of 3 |" in text
    assert "| guided | 2 of 3 (1); tie 3; +1.00 points |" in text
    assert text.count("band 2.00, below every measured engine)") == 3


def test_the_page_and_the_picture_are_those_of_the_kept_results() -> None:
    kept = json.loads((RESULTS / "samplers.json").read_text())
    page = DOCS.read_text()
    assert replace_section(page, "samplers", tables.text(kept, compare.LABELS)) == page
    assert compare.PICTURE.read_text() == figure.svg(kept, compare.LABELS)


def test_the_picture_is_well_formed_and_has_a_curve_a_method() -> None:
    root = ElementTree.fromstring(figure.svg(results(), compare.LABELS))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 3
