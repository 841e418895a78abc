"""All claims of a worker, in the order in which they are begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from search.values import Evaluation
from studies.judging.standing import Standing
from studies.run.claims.claim import Claim, ClaimSource
from studies.store.records import StoredEvaluation


class ClaimSources:
    """Begins evaluations, from the first source that has one, and settles them where they came from."""

    def __init__(self, sources: Sequence[ClaimSource]) -> None:
        self._sources = tuple(sources)
        self._source_of: dict[int, ClaimSource] = {}

    def claim_next(self, now: Standing, *, searching: bool) -> Claim | None:
        """As `ClaimSource.claim_next`."""
        for source in self._sources:
            claim = source.claim_next(now, searching=searching)
            if claim is not None:
                self._source_of[claim.number] = source
                return claim
        return None

    def settle(self, claim: Claim, evaluation: Evaluation) -> StoredEvaluation | None:
        """As `ClaimSource.settle`."""
        return self._source_of.pop(claim.number).settle(claim, evaluation)

    def wait(self, now: Standing) -> None:
        """Wait a moment for other workers, where the search cannot end before they do."""
        any(source.wait(now) for source in self._sources)

    @contextmanager
    def given_back_when_cut_off(self) -> Iterator[None]:
        """What Ctrl-C or an error cuts off leaves no row, and its assignments are proposed again."""
        try:
            yield
        except BaseException:
            for source in self._sources:
                with suppress(Exception):  # what cannot be cleaned up now, on a full disk say, the next run will
                    source.give_back()
            raise

    def give_back(self) -> None:
        """Let go of all that is begun and will not be settled: it is proposed again, should the study go on."""
        for source in self._sources:
            source.give_back()
