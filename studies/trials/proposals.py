"""Proposals of a study through Optuna: asking for trials, telling results, and trials of lost workers."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.stopwatch import time_spent
from search.forecast.forecasts import FORECAST, MEASURED, deciding_forecasts
from search.sampler.kinds import SamplerKind
from search.space.choices import Space, codes_in, read_parameters, refusal
from search.values import Assignment

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from search.forecast.forecasts import ForecastAccuracy, Predicted
    from search.sampler.guided import Guidance

WORKER = "bitfront:worker"
"""User attribute of a trial: the worker that asked for it, where several may."""
REFUSED = "bitfront:refused"
"""User attribute of a failed trial that asked for what is no mix: why."""
_RETRY = "bitfront:retry"
_RETRIES = 3
_FAR = 1 / 3  # share of neighbours that may differ everywhere
_APART = 1_000_003  # between the seeds of two workers: more than a study has trials


@dataclass(frozen=True)
class Outcome:
    """What Optuna is told of a finished evaluation; `values` is None for a failed one.

    Attributes:
        values: latency in milliseconds and loss in the metric's unit.
        constraints: name → amount above its limit; met when ≤ 0.
        measured: how well it was measured, for the guided sampler: spread of the latency, standard deviation of the
            loss, and 1 where that is of every sample, else 0.
    """

    values: tuple[float, float] | None
    constraints: Mapping[str, float]
    measured: tuple[float, float, float] | None = None


class Proposals:
    """The Optuna study of one target.

    Args:
        name: of the Optuna study, made when it is not there.
        space: what the sampler's integer codes stand for.
        sampler: the kind that makes it.
        seed: of the study; workers of other ranks draw other numbers from it.
        guidance: what the guided sampler is told; not needed by others.
        worker: by name, where others may ask for trials meanwhile; it marks its own.
        rank: how many of the workers now alive came before it.
        note: told of trials that are refused.
        labels: user attributes of a trial, of the assignment that it asks for.
    """

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        space: Space,
        sampler: SamplerKind,
        seed: int,
        guidance: Guidance | None = None,
        worker: str = "",
        rank: int = 0,
        note: Callable[[str], None] = lambda text: None,
        labels: Callable[[Assignment], Mapping[str, str]] = lambda assignment: {},
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = space
        self.worker = worker
        self._note = note
        self._labels = labels
        self._states = optuna.trial.TrialState
        # A storage that is not ours has no such thing.
        self._together = getattr(storage, "together", nullcontext)
        self._create = _enqueue_together if hasattr(storage, "create_trials") else _enqueue_one_by_one
        self.study = optuna.create_study(
            storage=storage, study_name=name, directions=["minimize", "minimize"], load_if_exists=True
        )
        own = seed if sampler.guided else seed + rank * _APART
        self._begun = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = sampler.make(own, self._begun, guidance)
        if self._begun == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self.study.set_metric_names(["latency_ms", "loss"])
        self._random = random.Random(seed + rank * _APART)
        self._noted_failure = False
        self.poor = False
        """Whether the guided sampler found its forecasts poor when it last made one."""

    @time_spent("sampler")
    def ask(self) -> tuple[optuna.Trial, Assignment]:
        """The next trial and the assignment it proposes; those before it that ask for what is no mix are closed."""
        import optuna

        while True:
            # Stopped for longer than a lease in the middle of asking: others have closed that trial meanwhile.
            with suppress(optuna.exceptions.UpdateFinishedTrialError):
                with self._together({WORKER: self.worker} if self.worker else {}):
                    proposal = self._ask_once()
                if proposal is not None:
                    return proposal

    def _ask_once(self) -> tuple[optuna.Trial, Assignment] | None:
        trial = self.study.ask()
        if self.worker and trial.user_attrs.get(WORKER) != self.worker:  # a storage that marks no trials
            trial.set_user_attr(WORKER, self.worker)
        if self._refusal(trial):
            self._close(trial)
            return None
        codes = {v.id: trial.suggest_int(v.id, 0, len(v.precisions) - 1) for v in self.space.variables}
        assignment = self.space.assignment(codes)
        for name, text in self._labels(assignment).items():
            trial.set_user_attr(name, text)
        predicted = self._forecast(trial, assignment)
        # Say once that the guided sampler proposes without forecasts, and why.
        failure = getattr(self.study.sampler, "failure", "")
        if failure and not self._noted_failure:
            self._noted_failure = True
            self._note(f"forecasting mixes failed, and mixes are proposed without forecasts: {failure}")
        if predicted is not None:
            trial.set_user_attr(FORECAST, predicted.to_json())
            self.poor = predicted.poor
        return trial, assignment

    def _forecast(self, trial: optuna.Trial, assignment: Assignment) -> Predicted | None:
        """The guided sampler's forecast of a mix that it proposed or somebody enqueued; None if it was tried before."""
        sampler: Any = self.study.sampler
        if not hasattr(sampler, "forecast_mix"):
            return None
        predicted: Predicted | None = sampler.predicted.pop(trial.number, None)
        if predicted is not None:
            return predicted
        others = [t for t in self.study.get_trials(deepcopy=False) if t.number != trial.number]
        return (
            None
            if any(self.assignment_of(t) == assignment for t in others)
            else sampler.forecast_mix(others, assignment)
        )

    def guide(self, informed: Callable[[Guidance], Guidance]) -> None:
        """Let a sampler that keeps its guidance as `guidance` know more from now on; others are told nothing."""
        sampler: Any = self.study.sampler
        if not hasattr(sampler, "guidance"):
            return  # importing the guided sampler takes a while, and others do without
        from search.sampler.guided import Guidance

        if isinstance(sampler.guidance, Guidance):
            sampler.guidance = informed(sampler.guidance)

    def quality(self) -> ForecastAccuracy | None:
        """How well the last latencies and losses had been predicted; None of samplers that predict nothing."""
        judge: Callable[[list[FrozenTrial]], ForecastAccuracy] | None = getattr(
            self.study.sampler, "judge_forecasts", None
        )
        return None if judge is None else judge(self.study.get_trials(deepcopy=False))

    def deciding_forecasts(self) -> int:
        """How many of the last forecasts, which were right, expected no better mix; 0 while any may be found.

        Trials of earlier runs do not count, so that a search goes on for a while when it is resumed.
        """
        sampler: Any = self.study.sampler
        if not hasattr(sampler, "forecast_mix"):
            return 0
        band = sampler.guidance.latency_band() or 0.0
        return deciding_forecasts(self.study.get_trials(deepcopy=False), self._begun, band)

    @time_spent("sampler")
    def least_ms(self, guidance: Callable[[], Guidance]) -> float | None:
        """The least latency in ms that the guided sampler's forecasts call reachable; None if they say nothing.

        Args:
            guidance: for the forecasts where another sampler proposes.
        """
        from search.errors import SolverError
        from search.sampler.guided import GuidedSampler

        sampler = self.study.sampler
        guided = sampler if isinstance(sampler, GuidedSampler) else GuidedSampler(guidance(), 0)
        with suppress(SolverError):
            return guided.least_ms(self.study.get_trials(deepcopy=False))
        return None

    @time_spent("sampler")
    def tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Finish a trial; nothing happens to one that another worker has finished.

        Where that closed it as failed, taking this worker for lost, its assignment is proposed again: then the result
        is there, and a trial tells Optuna of it.
        """
        import optuna

        try:
            with self._together():
                state = self._tell_once(trial, outcome)
        except optuna.exceptions.UpdateFinishedTrialError:
            state = self.study.get_trials(deepcopy=False)[trial.number].state
        assignment = self.assignment_of(trial) if outcome.values is not None and state == self._states.FAIL else None
        if assignment is not None:
            self.enqueue(assignment)

    def _tell_once(self, trial: optuna.Trial, outcome: Outcome) -> optuna.trial.TrialState:
        """The state that it has now."""
        if outcome.values is None:
            return self.study.tell(trial.number, state=self._states.FAIL, skip_if_finished=True).state
        with warnings.catch_warnings():
            # A trial that was killed between this and being told has its constraints already.
            warnings.simplefilter("ignore", UserWarning)
            for key, value in outcome.constraints.items():
                trial.set_constraint(key, value)
        if outcome.measured is not None:
            trial.set_user_attr(MEASURED, list(outcome.measured))
        return self.study.tell(trial.number, outcome.values, skip_if_finished=True).state

    @time_spent("sampler")
    def enqueue(self, assignment: Assignment, attributes: Mapping[str, int] | None = None) -> None:
        """Let a coming `ask` give this assignment; nothing happens when it is waiting already or under way."""
        self.enqueue_all([assignment], attributes)

    @time_spent("sampler")
    def enqueue_all(self, assignments: Iterable[Assignment], attributes: Mapping[str, int] | None = None) -> None:
        """Let coming `ask`s give these assignments, but those that are waiting already or under way."""
        coming = self.study.get_trials(deepcopy=False, states=(self._states.WAITING, self._states.RUNNING))
        known = [t.system_attrs.get("fixed_params") for t in coming]
        lacking = [codes for codes in map(self.space.codes, assignments) if codes not in known]
        self._create(self.study, lacking, dict(attributes or {}))

    def has_enqueued(self) -> bool:
        """Whether an assignment that was enqueued waits to be proposed."""
        return bool(self.study.get_trials(deepcopy=False, states=(self._states.WAITING,)))

    def enqueue_neighbour(self, assignment: Assignment) -> Assignment:
        """Propose a random neighbour of an assignment, for when a sampler only repeats itself."""
        codes = self.space.codes(assignment)
        most = len(self.space.variables)
        # A sampler may repeat the same few for ever while all that is left to try lies further off.
        far = self._random.random() < _FAR
        some = most if far else 1 + self._random.randrange(max(1, most // 4))
        for variable in self._random.sample(self.space.variables, some):
            codes[variable.id] = self._random.randrange(len(variable.precisions))
        neighbour = self.space.assignment(codes)
        self.enqueue(neighbour)
        return neighbour

    def open_trials(self) -> list[FrozenTrial]:
        """Trials that were asked for and never told."""
        return list(self.study.get_trials(deepcopy=False, states=(self._states.RUNNING,)))

    def reopen(self, trial: FrozenTrial | optuna.Trial) -> optuna.Trial:
        """A handle on a trial that another process asked for, to tell it."""
        import optuna

        return optuna.Trial(self.study, trial._trial_id)

    def handle(self, number: int) -> optuna.Trial:
        """The trial of a number, to be answered; see `reopen`."""
        return self.reopen(self.study.get_trials(deepcopy=False)[number])

    def assignment_of(self, trial: FrozenTrial | optuna.Trial) -> Assignment | None:
        """What a trial proposes; None if that is no mix, or it was cut off before all of that was settled."""
        codes = codes_in(self._params_of(trial), self.space)
        return None if codes is None else self.space.assignment(codes)

    def _params_of(self, trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
        """A trial's parameters; one that was enqueued has them from the start."""
        from optuna.trial import FrozenTrial

        return read_parameters(trial if isinstance(trial, FrozenTrial) else trial.storage.get_trial(trial._trial_id))

    def _refusal(self, trial: FrozenTrial | optuna.Trial) -> str:
        """Why a trial can never be evaluated; empty if it can."""
        return refusal(self._params_of(trial), self.space)

    def give_up(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Close a trial whose evaluation was cut off, and let its assignment be proposed again a few times."""
        self._close(trial)
        retries, assignment = int(trial.user_attrs.get(_RETRY, 0)), self.assignment_of(trial)
        if assignment is not None and retries < _RETRIES:
            self.enqueue(assignment, {_RETRY: retries + 1})

    def put_back(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Close a trial that was not evaluated for no fault of its own; its assignment is proposed again."""
        self._close(trial)
        retries, assignment = int(trial.user_attrs.get(_RETRY, 0)), self.assignment_of(trial)
        if assignment is not None:
            self.enqueue(assignment, {_RETRY: retries} if retries else None)

    def _close(self, trial: FrozenTrial | optuna.Trial) -> None:
        import optuna

        refused = self._refusal(trial)
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another worker did just now
            if refused:
                self.reopen(trial).set_user_attr(REFUSED, refused)
            self.study.tell(trial.number, state=self._states.FAIL, skip_if_finished=True)
            if refused:
                self._note(f"trial {trial.number} is closed, because it cannot be evaluated: {refused}")


def _enqueue_one_by_one(study: optuna.Study, waiting: Sequence[dict[str, int]], attributes: dict[str, int]) -> None:
    for codes in waiting:
        study.enqueue_trial(codes, user_attrs=attributes)


def _enqueue_together(study: optuna.Study, waiting: Sequence[dict[str, int]], attributes: dict[str, int]) -> None:
    """As `enqueue_trial`, in one transaction of our storage, which Optuna has put its cache around."""
    from optuna.trial import TrialState, create_trial

    storage: Any = study._storage
    templates = [
        create_trial(state=TrialState.WAITING, system_attrs={"fixed_params": codes}, user_attrs=attributes)
        for codes in waiting
    ]
    if templates:
        storage._backend.create_trials(study._study_id, templates)
