"""Equalization: scaling channels to similar ranges by powers of two, which changes no float output."""

from __future__ import annotations

import numpy as np

from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import Proposal, RecoveryStep
from evaluators.recovery.stream_factors import observe_streams, propose_factors
from evaluators.recovery.streams.choice import choose_exponents
from evaluators.recovery.streams.find import find_streams
from search.values import Ranges

_TIME_SHARE = 0.5  # of what is left: other steps have to come too


class Equalize(RecoveryStep):
    """Divides channels of activations by powers of two and multiplies the weights that read them."""

    name = "equalize"
    summary = "scales channels by powers of two so that their ranges become similar; the float outputs do not change"
    exact = True
    version = 3

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        """Choose factors for every stream that no normalization writes: those are left to `smooth`."""
        model = context.model(ranges.recovery)
        streams = find_streams(model)
        wanted = [slots for slots in streams.components() if len(slots) > 1 and not streams.normalized & set(slots)]
        exponents = np.zeros(streams.count, np.int64)
        until, cut = (1 - _TIME_SHARE) * context.seconds_left(), ""
        for done, stream in enumerate(observe_streams(context, model, streams, wanted)):
            if until > 0 and context.seconds_left() < until:
                cut = f"it ran out of time after {done} of at most {len(wanted)} streams"
                break
            exponents += choose_exponents(stream, streams.count, stream.noise)
            context.alive()
        return propose_factors(context, ranges, streams, exponents, cut)
