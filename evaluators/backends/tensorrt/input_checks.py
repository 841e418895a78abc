"""What an engine takes as inputs: arrays of its shape, with numbers that its types hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import DataError


def check_shape(name: str, data_shape: tuple[int, ...], engine_shape: tuple[int, ...]) -> None:
    """Refuse what numpy would repeat to fill the input.

    Raises:
        DataError: naming the input and both shapes.
    """
    if data_shape != engine_shape:
        raise DataError(
            f"running the engine: its input {name} is {shape_text(engine_shape)}, and the data are "
            f"{shape_text(data_shape)}. Give it batches of the shape it was built for."
        )


def shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"


def check_fits(name: str, values: NDArray[Any], held: np.dtype[Any]) -> None:
    """Refuse integers that an engine's narrower input cannot hold: before version 10 all INT64 are INT32.

    Raises:
        DataError: naming the input and the value.
    """
    if held.kind not in "iu" or not values.size or np.can_cast(values.dtype, held):
        return
    bounds = np.iinfo(held)
    for value in (values.min(), values.max()):
        if not bounds.min <= int(value) <= bounds.max:
            raise DataError(
                f"running the engine: its input {name} is {held.name}, and the data hold {int(value)}, which does not "
                f"fit ({bounds.min} to {bounds.max}). Bring the data into that range, or use TensorRT 10 or newer, "
                "which keeps INT64."
            )
