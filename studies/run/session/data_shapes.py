"""Taking the dynamic sizes of a model from the data, if they were not given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evaluators.data.reading.row_shapes import read_row_shapes
from search.errors import ModelError
from search.graph.onnx_file import Dims, read_input_shapes
from studies.options.config import SearchConfig
from studies.options.quantities import ShapeSpec


def with_shapes_of_data(config: SearchConfig) -> SearchConfig:
    """The configuration with a shape for each dynamic input that has none, if the data tell it.

    The batch is never that of the data: it is what `--batch` says.

    Raises:
        ModelError: the model cannot be read, or nothing says how large its batch is.
        DataError: a function that gives data fails.
    """
    inputs = read_input_shapes(Path(config.model))
    named = {shape.name for shape in config.shapes}
    unknown = {name: dims for name, dims in inputs.items() if name not in named and _is_open(dims)}
    if not unknown or not config.data:
        return config
    found = read_row_shapes(config.data, list(inputs))
    known = {name: found[name] for name, dims in unknown.items() if len(found.get(name, ())) == len(dims) - 1}
    without = [name for name in known if config.batch is None and not isinstance(unknown[name][0], int)]
    if without:
        told = ", ".join(f"{name} {'x'.join(map(str, found[name]))}" for name in without)
        raise ModelError(
            f"loading {config.model}: expected a size for the batch, which is dynamic in the input"
            f"{'s' * (len(without) > 1)} {', '.join(without)}. Give it with --batch 8; the other sizes are those of "
            f"the data: {told}."
        )
    shapes = [_shape_of(name, unknown[name], row, config.batch) for name, row in known.items()]
    return replace(config, shapes=(*config.shapes, *shapes))


def _is_open(dims: Dims) -> bool:
    """Whether a size is dynamic that is no batch."""
    return any(not isinstance(size, int) for size in dims[1:])


def _shape_of(name: str, dims: Dims, row: tuple[int, ...], batch: int | None) -> ShapeSpec:
    first = dims[0] if isinstance(dims[0], int) else batch
    assert first is not None
    return ShapeSpec(name, *[(first, *row)] * 3)
