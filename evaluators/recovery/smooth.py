"""Smoothing: moving the scale of outlier channels into the weights of matrix products, as far as that helps INT8."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evaluators.lowering.placement import Placement
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.matrix_error import Matrix, Product, read_rows, right_factor
from evaluators.recovery.step import Proposal, RecoveryStep
from evaluators.recovery.stream_factors import observe_streams, propose_factors
from evaluators.recovery.streams.choice import Stream, choose_exponents
from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.result import Exponents
from evaluators.recovery.streams.slots import Slot
from search.graph.model import Model
from search.values import Ranges

_TIME_SHARE = 0.5  # of what is left: other steps have to come too


class Smooth(RecoveryStep):
    """SmoothQuant's folds into LayerNormalization and linear layers, their strength measured for every stream.

    Factors are powers of two, so that the float outputs stay equal bit by bit. Factors of any size would leave less
    noise in a product: 0.2 dB less in the median, where smoothing takes off 3.5 to 18 dB.
    """

    name = "smooth"
    summary = "moves the scale of outlier channels into the weights of matrix products, as far as it helps each layer"
    exact = True
    version = 3

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        """Try every strength on streams that matrix products alone read, on the layers' own inputs."""
        model = context.model(ranges.recovery)
        streams = find_streams(model)
        matrices = {reader.node for reader in streams.readers if _is_matrix(model, reader.node)}
        others = {slot for r in streams.readers if r.node not in matrices for slot in np.unique(r.slots).tolist()}
        wanted = [slots for slots in streams.components() if len(slots) > 1 and not others & set(slots)]
        # Only streams of which INT8 rounds no other tensors than those that the products read.
        matrix_streams = list(observe_streams(context, model, streams, wanted, suits=set.issubset))
        if not matrix_streams:
            return None
        tensors = list(dict.fromkeys(layer.tensor for stream in matrix_streams for layer in stream.layers))
        rows = read_rows(context.emulator, model, tensors, iter(context.fitting()))
        exponents, cut = np.zeros(streams.count, np.int64), ""
        until = (1 - _TIME_SHARE) * context.seconds_left()
        for number, stream in enumerate(matrix_streams):
            if context.seconds_left() <= until:
                cut = f"it ran out of time after {number} of {len(matrix_streams)} streams"
                break
            measure = _measure(_products(stream, model, rows), context.placement)
            exponents += choose_exponents(stream, streams.count, measure)
            context.alive()
        return propose_factors(context, ranges, streams, exponents, cut)


def _is_matrix(model: Model, node: str) -> bool:
    return right_factor(model.graph.graph.node(node)) is not None


def _products(stream: Stream, model: Model, rows: dict[str, tuple[Matrix, Matrix]]) -> list[tuple[Product, Slot]]:
    bounds = {tensor.name: tensor for tensor in stream.rounded}
    products = []
    for layer in stream.layers:
        weight = right_factor(model.graph.graph.node(layer.node))
        assert weight is not None
        seen = bounds[layer.tensor]
        spread = [np.broadcast_to(array, (2, *layer.slots.shape)) for array in (seen.low, seen.high)]
        products.append((Product(rows[layer.tensor], weight, *spread), layer.slots))
    return products


def _measure(products: Sequence[tuple[Product, Slot]], placement: Placement) -> Callable[[Exponents, int], float]:
    return lambda exponents, half: sum(product.error(exponents[slots], half, placement) for product, slots in products)
