"""Whether all inputs of a model begin with the samples of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from search.errors import ModelError
from search.graph.onnx_file import Dims, read_input_shapes
from search.graph.shapes import input_names
from studies.options.config import SearchConfig

_LOOP = "examples/recurrent/unroll.py makes one model of all steps of a sequence, which has no state among its inputs"


def check_batches(config: SearchConfig, shapes: Mapping[str, Dims]) -> None:
    """Refuse a model with an input that holds another number of samples than the others, as some states do.

    Samples are divided into batches along the first axis of every input, so no run of such a model would succeed.

    Args:
        shapes: of the inputs in the file, as `read_input_shapes` gives them.

    Raises:
        ModelError: naming the input, and what works.
    """
    inputs = _open_inputs(config, shapes)
    main = next((name for name, dims in inputs.items() if not isinstance(dims[0], int)), next(iter(inputs), ""))
    batch = _first_size(main, inputs, config)
    for name in inputs:
        size = _first_size(name, inputs, config)
        if name != main and batch is not None and size is not None and size != batch:
            raise ModelError(
                f"loading {config.model}: expected inputs that all begin with the samples of a batch, but {main!r} "
                f"begins with {batch} and {name!r}, of the shape {_shape_text(inputs[name])}, with {size}. "
                f"{_ways_text(name, main, inputs, config)}"
            )


def _open_inputs(config: SearchConfig, shapes: Mapping[str, Dims]) -> dict[str, Dims]:
    """The inputs with their sizes in the file, without scalars and those that become constants."""
    fixed = input_names(config.input_values)
    return {name: dims for name, dims in shapes.items() if dims and name not in fixed}


def _first_size(name: str, inputs: Mapping[str, Dims], config: SearchConfig) -> int | None:
    """How many samples an input holds, at the shape that is asked for; None where nothing says it."""
    optimum_shape = next((shape.optimum for shape in config.shapes if shape.name == name), None)
    first = inputs[name][0] if name in inputs else None
    return optimum_shape[0] if optimum_shape else first if isinstance(first, int) else config.batch


def _ways_text(name: str, main: str, inputs: Mapping[str, Dims], config: SearchConfig) -> str:
    dims, first = inputs[name], inputs[main][0]
    ways = []
    alone = _open_inputs(config, read_input_shapes(Path(config.model), 1))
    if not isinstance(first, int) and all(not isinstance(each[0], int) or each[0] == 1 for each in alone.values()):
        row = "x".join(map(str, alone[name][1:])) or "a number"
        ways.append(f"--batch 1, at which a sample of {name!r} is {row}; in the data the samples are its first axis")
    if any(not isinstance(dim, int) for dim in dims[1:]):
        named = f"{first!r}, as that of {main!r}" if isinstance(first, str) and first else f"as that of {main!r}"
        ways.append(
            f"a file in which the axis of {name!r} that its samples lie on has the name {named} "
            "(onnx.tools.update_model_dims writes names): it is then taken as the first one"
        )
    if isinstance(dims[0], int) and math.prod(dim for dim in dims if isinstance(dim, int)) == 1:
        ways.append(f"--input-value {name}=VALUE, if it is the same for all samples")
    return f"What works: {'; or '.join([*ways, _LOOP])}."


def _shape_text(dims: Dims) -> str:
    return "x".join(str(dim) or "?" for dim in dims)
