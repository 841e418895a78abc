"""A recovery step of another package: it balances the channels between the two convolutions of `three_layers`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import Proposal, RecoveryStep
from search.values import Ranges, Recovery


class Balance(RecoveryStep):
    """Makes the output channels of the first convolution equally large, by powers of two."""

    name = "balance"
    summary = "equal channels between the first two convolutions"
    exact = True

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        constants = context.given.graph.graph.initializers
        if not {"first.w", "first.b", "second.w"} <= constants.keys():
            return None
        tensor = constants["first.w"].const_value
        assert tensor is not None
        largest = np.abs(tensor.numpy()).max(axis=(1, 2, 3))
        factor: NDArray[np.float32] = np.exp2(np.round(np.log2(largest.max() / largest))).astype(np.float32)
        factors = {
            "first.w": (factor[:, None, None, None],),
            "first.b": (factor,),
            "second.w": ((1 / factor)[None, :, None, None],),
        }
        recovered = Recovery({**ranges.recovery.factors, **factors}, ranges.recovery.corrections)
        return Proposal(context.calibrate(recovered), (f"{int((factor != 1).sum())} channels scaled",))


class Break(RecoveryStep):
    """Doubles the first convolution and nothing else: it changes the float model, and must not get through."""

    name = "break"
    summary = "a mistake"
    exact = True

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        return Proposal(context.calibrate(Recovery({"first.w": (np.full((1, 1, 1, 1), 2, np.float32),)})))
