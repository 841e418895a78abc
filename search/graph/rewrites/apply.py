"""Which rewrites there are, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from search.errors import ModelError
from search.extensions import load_registered, registered_names
from search.graph.rewrites.factors import fold_into_layer_before, fold_into_layers_behind
from search.graph.rewrites.written_out import join_reshapes, name_activations, remove_moves_that_undo_each_other

GROUP = "bitfront.rewrites"
REWRITES: list[Callable[[ir.Graph, int], bool]] = [
    name_activations,
    fold_into_layer_before,
    fold_into_layers_behind,
    remove_moves_that_undo_each_other,
    join_reshapes,
]


def apply_rewrites(model: ir.Model) -> bool:
    """Apply all rewrites to the main graph of a model whose constants are initializers, in place; whether one did any.

    Raises:
        ModelError: one of another package cannot be imported.
    """
    opset = model.opset_imports.get("", 0)
    rewrites = [*REWRITES, *(rewrite for _, rewrite in load_registered(GROUP, ModelError))]
    ever = False
    while any([rewrite(model.graph, opset) for rewrite in rewrites]):  # noqa: C419 - each has its turn
        ever = True
    return ever


def names_of_others() -> list[str]:
    """The names of the rewrites of other packages, which make another model of a file."""
    return list(registered_names((), GROUP))
