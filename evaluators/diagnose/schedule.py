"""Which groups are lowered in which run, in the time there is: single ones, the most telling first, or stretches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from evaluators.diagnose.local_noise import Local, Pair
from evaluators.diagnose.probes import Probe, estimates, halves, singles, to_halve
from search.errors import EvaluatorError, ModelError
from search.values import RECOVERED_FIRST

_ANCHORS = 8  # groups all along the network that are measured first
# Share of the pairs with time for fewer runs than which stretches are run. They forecast mixes better up to a half of
# them, but from a quarter on single groups find the worst ones sooner.
_FEW = 0.2


@dataclass(frozen=True)
class Schedule:
    """The runs of one sensitivity pass.

    Attributes:
        probe: runs the network with some pairs lowered together. May raise ModelError or EvaluatorError.
        places: group → its place along the network.
        names: group → what notes call it.
        left: gives the seconds that are left of the pass.
        tell: called with a note on what could not be measured.
        done: called with how many of the pairs are measured, and how many there are.
    """

    probe: Callable[[tuple[Pair, ...]], Probe]
    places: Mapping[str, int]
    names: Mapping[str, str]
    left: Callable[[], float]
    tell: Callable[[str], None]
    done: Callable[[int, int], None]

    def run(self, local: Mapping[Pair, Local]) -> list[Probe]:
        """Probes that share no pair: of single groups if there is time for enough of them, else of stretches.

        Args:
            local: of every pair to measure.
        """
        coarsest = min((precision for _, precision in local), key=RECOVERED_FIRST.index, default=None)
        coarse = tuple(pair for pair in local if pair[1] is coarsest)
        if len(coarse) > _ANCHORS and self.left() > 0:
            start = time.monotonic()
            try:
                whole = self.probe(coarse)
            except (ModelError, EvaluatorError):
                return self.one_by_one(local)  # which tells what cannot be run
            took = time.monotonic() - start
            if self.left() < _FEW * len(local) * took:
                return self.by_stretches(whole, took, len(local))
        return self.one_by_one(local)

    def one_by_one(self, local: Mapping[Pair, Local]) -> list[Probe]:
        """Probes of pairs alone while there is time, the most telling ones first."""
        probes: dict[Pair, Probe] = {}
        refused: set[Pair] = set()
        longest = 0.0
        while len(probes) + len(refused) < len(local) and self.left() > longest:
            start = time.monotonic()
            pair = self._next(local, probes, refused)
            try:
                probes[pair] = self.probe((pair,))
            except (ModelError, EvaluatorError) as error:
                refused.add(pair)
                self.tell(f"{self.names[pair[0]]} in {pair[1].label} is not measured: {error}")
            longest = max(longest, time.monotonic() - start)
            self.done(len(probes) + len(refused), len(local))
        return list(probes.values())

    def by_stretches(self, whole: Probe, longest: float, pairs: int) -> list[Probe]:
        """Halve the stretch that adds most, again and again, while there is time for both halves.

        Args:
            whole: the first stretch.
            longest: seconds that a run may take.
            pairs: how many there are.
        """
        probes = [whole]
        while (probe := to_halve(probes)) is not None and self.left() > 2 * longest:
            start = time.monotonic()
            try:
                parted = [self.probe(half) for half in halves(probe)]
            except (ModelError, EvaluatorError) as error:
                self.tell(f"stretches of layers are not measured any further: {error}")
                break
            probes.remove(probe)
            probes += parted
            longest = max(longest, (time.monotonic() - start) / 2)
            self.done(len(singles(probes)), pairs)
        return probes

    def _next(self, local: Mapping[Pair, Local], probes: dict[Pair, Probe], refused: set[Pair]) -> Pair:
        """First some all along the network, which tell the gains; then whatever is expected to add most."""
        left = [pair for pair in local if pair not in probes and pair not in refused]
        if len(probes) + len(refused) < _ANCHORS:
            coarsest = min((precision for _, precision in left), key=RECOVERED_FIRST.index)
            coarse = [pair for pair in local if pair[1] is coarsest]
            spread = {int(place) for place in np.linspace(0, len(coarse) - 1, _ANCHORS)}
            anchors = [coarse[place] for place in sorted(spread) if coarse[place] in left]
            if anchors:
                return anchors[0]
        errors = estimates(self.places, local, list(probes.values()))
        return max(left, key=lambda pair: errors[pair])
