"""Trials that a user's own script puts into a study with Optuna: what is no mix is refused once, the rest is tried."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from search.forecast.history import Historian
from search.graph.model import load
from search.sampler.guided import Guidance
from search.sampler.kinds import SamplerKind
from search.sampler.registry import sampler_named
from search.space.choices import Space, make_space
from search.space.layout import make_layout
from search.values import Capability, Precision
from studies.trials.proposals import Outcome, Proposals
from tests.support.command_line import DATABASE, copy_finished, invoke, three_layers
from tests.support.networks import save

URL = f"sqlite:///{DATABASE}"
IDS = ("g000", "g001", "g002")
WRONG = [5, 2, -1, 0.5, math.nan, math.inf, True, None, "int8", "1", [1]]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    model = load(save(three_layers(), tmp_path_factory.mktemp("model") / "m.onnx"))
    found = make_space(model, Capability({Precision.INT8: frozenset({"Conv", "Gemm"})}))
    assert tuple(variable.id for variable in found.variables) == IDS
    return found


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture(scope="module")
def empty(space: Space, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study without trials."""
    folder = tmp_path_factory.mktemp("empty")
    opened(space, [], folder)
    return folder


@pytest.fixture
def made(space: Space, notes: list[str], empty: Path, tmp_path: Path) -> Proposals:
    """On SQLite: what is enqueued goes through JSON."""
    shutil.copytree(empty, tmp_path, dirs_exist_ok=True)
    return opened(space, notes, tmp_path)


def opened(space: Space, notes: list[str], folder: Path, **more: Any) -> Proposals:
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'o.db'}")
    return Proposals(storage, "s", space, sampler_named("random"), 0, note=notes.append, **more)


def wide(codes: dict[str, int]) -> dict[str, Any]:
    """Arguments of `create_trial` for codes that a script's own ranges allow."""
    return {"params": codes, "distributions": dict.fromkeys(codes, IntDistribution(-9, 9))}


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_what_is_no_code_is_refused_once_with_a_note_and_the_next_trial_comes(
    made: Proposals, space: Space, notes: list[str], value: Any
) -> None:
    made.study.enqueue_trial({"g000": 1, "g001": value, "g002": 0})
    made.enqueue(space.uniform(Precision.INT8))
    trial, asked = made.ask()
    assert (trial.number, asked) == (1, space.uniform(Precision.INT8))
    assert states(made.study) == ["FAIL", "RUNNING"]
    [note] = notes
    said = f"parameter g001 holds {value!r}, expected an integer from 0 to 1: 0 fp32, 1 int8. `bitfront inspect MODEL`"
    assert note.startswith(f"trial 0 is closed, because it cannot be evaluated: {said}")
    assert made.study.trials[0].user_attrs["bitfront:refused"] in note


def test_several_wrong_parameters_are_counted_and_long_ones_cut(made: Proposals, notes: list[str]) -> None:
    made.study.enqueue_trial({"g000": "x" * 10_000, "g001": -1, "g002": 7})
    made.ask()
    [note] = notes
    assert "(2 other parameters are wrong too)" in note
    assert len(note) < 400


def test_whole_floats_are_codes_missing_parameters_are_sampled_and_unknown_ones_passed_over(
    made: Proposals, notes: list[str]
) -> None:
    enqueued: list[dict[str, Any]] = [dict.fromkeys(IDS, 1.0), {"g001": 1}, {"first": "int8"}]
    for params in enqueued:
        made.study.enqueue_trial(params)
    asked = [made.ask()[1] for _ in enqueued]
    assert set(asked[0].values()) == {Precision.INT8}
    assert asked[1]["g001"] is Precision.INT8
    assert [sorted(trial.params) for trial in made.study.trials] == [list(IDS)] * 3
    assert (states(made.study), notes) == (["RUNNING"] * 3, [])


@pytest.mark.parametrize("codes", [{**dict.fromkeys(IDS, 1), "g002": 5}, dict.fromkeys(IDS, -1)], ids=str)
@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.WAITING], ids=lambda state: state.name)
def test_parameters_that_are_settled_already_are_refused_too(
    made: Proposals, notes: list[str], state: TrialState, codes: dict[str, int]
) -> None:
    """Of an older run that took them as they were, or of a script that makes whole trials."""
    made.study.add_trial(create_trial(state=state, **wide(codes)))
    for trial in made.open_trials():
        assert made.assignment_of(trial) is None
        made.give_up(trial)
        made.put_back(trial)
    made.ask()
    assert states(made.study) == ["FAIL", "RUNNING"]
    assert len(notes) == 1


def test_a_trial_that_was_cut_off_over_what_was_enqueued_is_closed_and_not_proposed_again(
    made: Proposals, notes: list[str]
) -> None:
    made.study.enqueue_trial({"g000": 0, "g001": "int8"})
    made.study.ask().suggest_int("g000", 0, 1)
    [trial] = made.open_trials()
    made.give_up(trial)
    assert (states(made.study), len(notes)) == (["FAIL"], 1)


def test_of_several_workers_one_refuses_it(space: Space, tmp_path: Path) -> None:
    said: list[list[str]] = [[], []]
    workers = [opened(space, said[rank], tmp_path, worker=f"w-{rank}", rank=rank) for rank in (0, 1)]
    for _ in range(3):
        workers[0].study.enqueue_trial({"g000": 5})
    seen = workers[1].study
    taken = seen.ask()  # by a third one, which is lost
    for worker in (*workers, *workers):
        worker.ask()
    for worker in workers:
        for trial in worker.open_trials():
            if trial.number == taken.number:
                worker.give_up(trial)
    assert states(seen) == ["FAIL"] * 3 + ["RUNNING"] * 4
    assert sorted(note.split(" is closed")[0] for notes in said for note in notes) == ["trial 0", "trial 1", "trial 2"]


def test_a_result_for_a_refused_trial_is_told_to_nobody(made: Proposals) -> None:
    made.study.add_trial(create_trial(state=TrialState.RUNNING, **wide({"g000": -1, "g001": 0, "g002": 0})))
    handle = made.handle(0)
    made.give_up(made.open_trials()[0])
    made.tell(handle, Outcome((1.0, 0.0), {}))
    assert states(made.study) == ["FAIL"]


def test_the_guided_samplers_history_takes_what_others_added_as_far_as_it_can_be_true(space: Space) -> None:
    good = dict.fromkeys(IDS, 1)
    told: list[tuple[dict[str, int], tuple[float, float]]] = [
        (good, (0.0, 0.1)),
        (good, (-1.0, 0.1)),
        (good, (1e-300, 0.1)),
        (good, (math.inf, 0.1)),
        (good, (1.0, -math.inf)),
        ({**good, "g001": 5}, (1.0, 0.1)),
        (dict.fromkeys(IDS, -1), (1.0, 0.1)),
        ({"g000": 1}, (1.0, 0.1)),
        ({}, (1.0, 0.1)),
        (dict.fromkeys(IDS, 0), (2.0, 0.3)),
    ]
    trials = [create_trial(values=list(values), **wide(codes)) for codes, values in told]
    for state in (TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING):
        trials += [create_trial(state=state, **wide(codes)) for codes in ({**good, "g001": 5}, {**good, "g001": 0})]
    for number, trial in enumerate(trials):
        trial.number = number
    historian = Historian(make_layout(IDS, [], space))
    for _ in range(2):  # the second time from what it kept
        history = historian.history(trials)
        assert (history.ms.tolist(), history.loss.tolist()) == ([2.0], [0.3])
        assert history.seen == {(1, 1, 1), (0, 0, 0), (1, 0, 1)}
        assert len(history.pending) == 1


@pytest.mark.slow
def test_neighbours_lie_anywhere_now_and_then(made: Proposals, space: Space) -> None:
    """Otherwise a sampler that converged, by trials of others' say, might never try the last mixes of a small space."""
    found = {made.enqueue_neighbour(space.uniform(Precision.FP32)).digest for _ in range(100)}
    assert len(found) == space.size


@pytest.mark.slow
def test_a_study_goes_on_over_wrong_trials_of_now_and_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    study = optuna.load_study(study_name=optuna.get_all_study_names(URL)[0], storage=URL)
    first = len(study.trials)
    study.add_trial(create_trial(state=TrialState.RUNNING, **wide({**dict.fromkeys(IDS, 1), "g000": 5})))
    study.add_trial(create_trial(values=[1.0, 0.1], **wide(dict.fromkeys(IDS, -1))))
    study.add_trial(create_trial(values=[math.inf, 0.0], **wide(dict.fromkeys(IDS, 1))))
    study.add_trial(create_trial(state=TrialState.PRUNED, **wide({**dict.fromkeys(IDS, 1), "g000": 5})))
    for value in (5, "int8", -1):
        study.enqueue_trial({**dict.fromkeys(IDS, 1), "g001": value})
    said = invoke("resume", "small", "--trials", 6).output
    closed = [line.split(" is closed")[0] for line in said.splitlines() if "cannot be evaluated" in line]
    assert closed == [f"trial {first + place}" for place in (0, 4, 5, 6)]
    assert states(study)[first : first + 7] == ["FAIL", "COMPLETE", "COMPLETE", "PRUNED", "FAIL", "FAIL", "FAIL"]
    assert set(states(study)[first + 7 :]) == {"COMPLETE"}
    assert "6 evaluations are done" in said
    again = invoke("resume", "small", "--trials", 7)
    assert (again.exit_code, "cannot be evaluated" in again.output) == (0, False)


class KeepsGuidance(RandomSampler):
    """A sampler from outside that is guided."""

    def __init__(self, guidance: Guidance) -> None:
        super().__init__(seed=0)
        self.guidance = guidance


class KeepsGuidanceKind(SamplerKind):
    name = "keeps-guidance"
    guided = True

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> RandomSampler:
        assert guidance is not None
        return KeepsGuidance(guidance)


def test_a_guided_sampler_from_outside_is_told_what_is_measured_later(space: Space, tmp_path: Path) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'o.db'}")
    layout = make_layout(IDS, (), space, ())
    begun = Guidance(layout, priors=lambda: None, ratio=True)
    proposals = Proposals(storage, "s", space, sampler_named(f"{__name__}:KeepsGuidanceKind"), 0, guidance=begun)
    proposals.guide(lambda guidance: replace(guidance, ratio=False))
    sampler = proposals.study.sampler
    assert isinstance(sampler, KeepsGuidance)
    assert not sampler.guidance.ratio
