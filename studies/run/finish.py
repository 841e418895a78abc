"""The end of a study on a target: taking over what lost workers left, and confirming the finalists."""

from __future__ import annotations

import time
from contextlib import suppress

from studies.judging.standing import Standing, front_points
from studies.run import finalists
from studies.run.engines import prune
from studies.run.hooks.closing import Closing
from studies.run.noise.remeasurement import settle_doubts
from studies.run.noise.tie_band import TieBand
from studies.run.recovery.pick_biases import PickBiases
from studies.run.work import Work
from studies.store import suggestions
from studies.trials.dashboard_notes import StudyNotes, write_front_notes, write_study_note
from studies.trials.open_trials import OpenTrials
from studies.trials.proposals import Proposals

_CONFIRMATIONS = 3
_LEASES = 1.5  # within this a worker that was alive has said so again
_MOST_LEASES = 5.0  # of one that could not say so itself, and does not know how the others are
_CONFIRMED_BY = "finalists_by"  # among the details of a target
_AT_WORK = frozenset({"starting", "calibrating", "searching", "waiting"})


class Finish:
    """What a worker does when it has no more to evaluate."""

    def __init__(self, work: Work, proposals: Proposals, open_trials: OpenTrials, band: TieBand) -> None:
        self._work = work
        self._proposals = proposals
        self._open_trials = open_trials
        self._band = band
        self._biases = PickBiases(work)
        self._closing = Closing(work)

    def note_correction_time(self) -> None:
        """Before the search: let it know how long correcting a pick takes, for what it says of its end."""
        self._biases.note_correction_time()

    def run(self, *, complete: bool) -> bool:
        """Confirm the finalists, or wait for the worker that does; whether the study is done now.

        Whoever confirms them may be lost over it. All others stay until it is done, and one of them takes it over then:
        there would be nobody left to.

        Args:
            complete: there are as many evaluations as are wanted. Otherwise this run was to end before that, by a limit
                of its own, and where others still evaluate the rest is left to them.

        Raises:
            EvaluatorError: the evaluator process dies over it.
        """
        if not complete and self._others_go_on():
            self._open_trials.settle()
            return False
        before = self._confirmed_by()
        self._work.crew.once("finalists", lambda: self._confirmed_by() != before, self._settle)
        return True

    def _others_go_on(self) -> bool:
        """Whether others still evaluate.

        One that was lost just before looks as if it did, until its lease is over: so long is waited, for there may be
        nobody else left to take over. Whoever is alive after that finds this worker gone when it ends itself.
        """
        crew = self._work.crew
        start = time.monotonic()
        while not (crew.steady and _AT_WORK.isdisjoint(crew.others().values())):
            waited = (time.monotonic() - start) / crew.lease_s
            if waited >= (_LEASES if crew.steady else _MOST_LEASES):
                return True
            crew.wait("waiting for other workers to end")
        return False

    def _confirmed_by(self) -> str | None:
        """The worker that was the last to confirm finalists."""
        worker: str | None = self._work.ledger.store.targets.details(self._work.ledger.target.id).get(_CONFIRMED_BY)
        return worker

    def _settle(self) -> None:
        self._give_back()
        self._open_trials.settle_all()
        self._biases.adopt_stored()
        _, doubts, confirming = steps = self._closing.announce(self._read_standing(), self._band.repeats_left)
        self._closing.begin(*steps)
        self._band.complete(self._read_standing())
        ledger, keep = self._work.ledger, self._work.problem.config.keep_engines
        with self._work.crew.hold("prune"):  # what is confirmed must not be pruned meanwhile
            prune(ledger.store, ledger.artifacts, self._read_standing(), keep=keep)
            self._closing.begin(doubts, confirming)
            settle_doubts(self._work)
            self._closing.begin(confirming)
            self._confirm()
            finalists.measure_as_given(self._work, self._read_standing())
        self._write_notes()
        ledger.store.targets.add_details(ledger.target.id, **{_CONFIRMED_BY: self._work.crew.name})

    def _write_notes(self) -> None:
        """Say in optuna-dashboard's notes which trials are on the front, and what they run in."""
        ledger, notes = self._work.ledger, StudyNotes(self._proposals.study)
        now, names = self._read_standing(), self._work.problem.layer_names
        points = front_points(now)
        mixes = ledger.store.evaluations.assignments(ledger.target.id, [point.id for point in points])
        write_front_notes(notes, now, points, mixes, names)
        write_study_note(notes, self._proposals.space, names, points)
        notes.save()

    def _give_back(self) -> None:
        """Give up what lost workers were at; it is proposed again, should the study go on some day."""
        claims, crew, target = self._work.ledger.store.claims, self._work.crew, self._work.ledger.target.id
        crew.give_up_lost()
        while any(running.worker not in crew.others() for running in claims.find_running(target)):
            taken = crew.take_over(())
            if taken is None:  # an evaluation that was begun just before its worker was lost has the younger lease
                crew.wait("waiting until the evaluations of lost workers can be taken over")
                continue
            with suppress(KeyError):  # it is gone by now
                trials = self._work.ledger.store.evaluations.load(taken.id).trials
                if claims.abandon(taken.id, crew.name):
                    for number in trials:
                        self._proposals.give_up(self._proposals.handle(number))

    def _read_standing(self) -> Standing:
        return self._work.ledger.read_standing()

    def _confirm(self) -> None:
        """Correct and confirm until every pick is confirmed: a confirmed latency may make another evaluation the best.

        So does one that fails a limit on the final split, of which the next pick is looked at while rounds are left.
        Outputs that are not finite there cost no round: those are few, and are followed to the end. With time for some
        of the picks alone the first are confirmed, and who comes first may be another one then.
        """
        left = _CONFIRMATIONS
        left_out = 0
        while left:
            now = self._biases.correct(self._read_standing())
            rows = [row for row in finalists.finalist_rows(now) if not now.final.tried_rows[row]]
            if not rows:
                return
            engines = [str(now.table.artifact[row]) for row in rows]
            lacking = [not engine or engine not in self._work.ledger.artifacts for engine in engines]
            in_time = self._work.pace.finalists_in_time(now, lacking)
            left_out = len(rows) - in_time
            if not in_time:
                break
            left -= finalists.confirm(self._work, now, rows[:in_time]) == 0
        if left_out and not now.only_fp32:
            self._tell_left_out(left_out)

    def _tell_left_out(self, count: int) -> None:
        """With the command that goes on, unless the run ends early: then its last line has it."""
        work, many = self._work, "1 finalist is" if count == 1 else f"{count} finalists are"
        way = suggestions.command("resume", work.ledger.study.name, storage=work.problem.config.storage)
        early = work.ledger.counts().finished < work.problem.config.trials
        goes_on = "to resume the study" if early else f"`{way}`"
        work.events.note(
            f"the time limit leaves no time for more: {many} not confirmed on the final samples; {goes_on} confirms "
            f"{'it' if count == 1 else 'them'}"
        )
