"""The loop by itself: what it asks of its parts, in which order, and what it leaves when it is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from search.errors import ArtifactError, EvaluatorError, MetricError, ModelError, StudyError, SurrogateError
from search.values import Assignment, Evaluation
from studies.events import Quiet
from studies.run import loop
from studies.run.claims.claim import Claim, ClaimSources
from studies.run.hooks.hook import Hook, Hooks
from studies.run.pipeline.pipeline import Result

WANTED = 6


class Study:
    """A ledger and the stop conditions over it: how many evaluations are finished is all there is to know."""

    trials = WANTED

    def __init__(self) -> None:
        self.finished: list[int] = []

    def read_standing(self) -> Any:
        return SimpleNamespace(done=len(self.finished))

    def build_s(self, now: Any) -> float:
        return 0.0

    def latest(self) -> Any:
        return self.read_standing()

    def reason_to_stop(self, now: Any) -> str:
        return f"{now.done} evaluations are done" if now.done >= WANTED else ""


class Numbers:
    """A source of claims: numbers from 1, none twice. Those in `late` come to nothing, as another worker was faster."""

    def __init__(self, study: Study, late: Sequence[int] = ()) -> None:
        self.study = study
        self.late = late
        self.begun: list[int] = []
        self.open: set[int] = set()
        self.waited = 0

    def claim_next(self, now: Any, *, searching: bool) -> Claim | None:
        if not searching or len(self.begun) >= WANTED + len(self.late):
            return None
        number = len(self.begun) + 1
        self.begun.append(number)
        self.open.add(number)
        return Claim(number, Assignment({}), number, 0.0)

    def settle(self, claim: Claim, evaluation: Evaluation) -> Any:
        self.open.remove(claim.number)
        if claim.number in self.late:
            return None
        self.study.finished.append(claim.number)
        return SimpleNamespace(number=claim.number)

    def wait(self, now: Any) -> bool:
        self.waited += 1
        return True

    def give_back(self) -> None:
        self.open.clear()


class LastFirst:
    """A pipeline of so many claims, that are finished in the order opposite to that in which they were started."""

    def __init__(self, most: int, fails_at: int = 0) -> None:
        self.most = most
        self.fails_at = fails_at
        self.claims: list[Claim] = []
        self.most_at_once = 0

    @property
    def free(self) -> bool:
        return len(self.claims) < self.most

    @property
    def busy(self) -> bool:
        return bool(self.claims)

    def start(self, claim: Claim) -> None:
        self.claims.append(claim)
        self.most_at_once = max(self.most_at_once, len(self.claims))

    def wait_finished(self) -> Sequence[Result]:
        claim = self.claims.pop() if self.claims else None
        if claim is not None and claim.number == self.fails_at:
            raise KeyboardInterrupt
        return () if claim is None else ((claim, Evaluation(claim.assignment)),)

    def bound_builds(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class Diary(Hook):
    """A hook of somebody else's: what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def notice(self, now: Any) -> Any:
        self.told.append(f"{now.done} there")
        return now

    def prepare(self, now: Any) -> None:
        self.told.append("more wanted")

    def follow(self, record: Any, now: Any) -> None:
        self.told.append(f"{record.number} stored, {now.done} there")

    def conclude(self) -> None:
        self.told.append("over")


class Failing(Diary):
    """A hook that fails the first time that it is due."""

    def __init__(self, optional: str, error: Exception) -> None:
        super().__init__()
        self.optional = optional
        self._error = error

    def prepare(self, now: Any) -> None:
        raise self._error

    def close(self) -> None:
        self.told.append("closed")


def run(study: Study, source: Numbers, pipeline: LastFirst, *hooks: Hook, notes: list[str] | None = None) -> str:
    told = [] if notes is None else notes
    parts: Any = (study, ClaimSources([source]), pipeline, Hooks(hooks, told.append), study, Quiet())
    return loop.run(*parts)


@pytest.mark.parametrize("most", [1, 3])
def test_all_that_is_begun_is_finished_before_the_loop_ends(most: int) -> None:
    study, pipeline = Study(), LastFirst(most)
    source = Numbers(study)
    assert run(study, source, pipeline, Hook()) == f"{WANTED} evaluations are done"
    assert sorted(study.finished) == source.begun == list(range(1, WANTED + 1))
    assert (pipeline.most_at_once, pipeline.claims, source.open) == (most, [], set())


def test_hooks_are_called_around_every_evaluation() -> None:
    diary, study = Diary(), Study()
    run(study, Numbers(study), LastFirst(1), diary)
    assert diary.told[:3] == ["0 there", "more wanted", "1 stored, 1 there"]
    assert diary.told[-3:] == [f"{WANTED} stored, {WANTED} there", f"{WANTED} there", "over"]


@pytest.mark.parametrize("error", [EvaluatorError("refused"), ModelError("refused"), SurrogateError("refused")])
def test_an_optional_hook_that_fails_is_told_once_and_left_out(error: Exception) -> None:
    study, diary, notes = Study(), Diary(), list[str]()
    failing = Failing("measuring noise", error)
    run(study, Numbers(study), LastFirst(1), failing, diary, notes=notes)
    assert notes == ["measuring noise failed, and the search goes on without it: refused"]
    assert failing.told == ["0 there", "closed"]
    assert diary.told[-1] == "over"
    assert len(study.finished) == WANTED


@pytest.mark.parametrize(
    ("optional", "error"),
    [
        ("", EvaluatorError("it dies again and again")),
        ("measuring noise", MetricError("the metric raised")),
        ("measuring noise", ArtifactError("the disk is full")),
        ("measuring noise", StudyError("the study was deleted")),
    ],
)
def test_what_a_search_cannot_go_on_after_ends_it(optional: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        run(study := Study(), Numbers(study), LastFirst(1), Failing(optional, error))


def test_a_result_that_another_worker_was_faster_with_is_no_evaluation() -> None:
    diary, study = Diary(), Study()
    run(study, Numbers(study, late=[2]), LastFirst(2), diary)
    assert 2 not in study.finished
    assert not [line for line in diary.told if line.startswith("2 stored")]


def test_where_nothing_can_be_begun_it_waits_for_others() -> None:
    study = Study()
    source = Numbers(study, late=[])
    source.begun = list(range(WANTED))  # by another worker

    def others_finish(now: Any) -> bool:
        study.finished.append(0)
        return True

    source.wait = others_finish  # type: ignore[method-assign]
    assert run(study, source, LastFirst(1), Hook()) == f"{WANTED} evaluations are done"


def test_cut_off_it_gives_back_all_that_is_in_flight() -> None:
    study = Study()
    source = Numbers(study)
    with pytest.raises(KeyboardInterrupt):
        run(study, source, LastFirst(3, fails_at=3), Hook())
    assert source.open == set()
    assert study.finished == []
