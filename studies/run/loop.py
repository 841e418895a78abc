"""The loop of a search: ask, evaluate, record and tell until it is complete."""

from __future__ import annotations

from studies.judging.search_events import SearchEvents
from studies.run.claims.claim import ClaimSources
from studies.run.hooks.hook import Hooks
from studies.run.pipeline.pipeline import Pipeline
from studies.run.stop import Stop
from studies.trials.ledger import Ledger


def run(
    ledger: Ledger, claims: ClaimSources, pipeline: Pipeline, hooks: Hooks, stop: Stop, events: SearchEvents
) -> str:
    """Evaluate until the study has all its evaluations, and return the reason for stopping in words.

    If this process is killed, at most its running evaluations are lost. Ctrl-C gives all of them back. Evaluations that
    run when the study is complete are finished; of those that run when a time limit ends it, builds are given back that
    take longer than there is time.

    Raises:
        UnreachableLimitError: FP32 itself misses the accuracy limit, or the time limit is too short for anything.
    """
    now = ledger.read_standing()
    with claims.given_back_when_cut_off():
        while True:
            now = hooks.notice(now)
            reason = stop.reason_to_stop(now)
            if not reason:
                hooks.prepare(now)
            pipeline.bound_builds(stop.build_s(now))
            while pipeline.free and (claim := claims.claim_next(now, searching=not reason)):
                pipeline.start(claim)
            if reason and not pipeline.busy:
                claims.give_back()
                hooks.conclude()
                return reason
            if not pipeline.busy:
                claims.wait(now)
            results = pipeline.wait_finished()
            for claim, evaluation in results:
                record = claims.settle(claim, evaluation)
                now = ledger.read_standing() if record is None else ledger.latest()
                if record is not None:
                    events.evaluation(record, now, stop.trials)
                    hooks.follow(record, now)
            now = now if results else ledger.read_standing()
