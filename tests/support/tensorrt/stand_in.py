"""TensorRT's bindings, stood in for: the fake of a version under the names that the backend imports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.support.networks import Net, save
from tests.support.tensorrt.fake_engine import FakeEngines
from tests.support.tensorrt.make_listings import WHEELS

V8, V10, V11 = WHEELS
PATHS = [(V8, "weak"), (V10, "weak"), (V10, "strong"), (V11, "strong")]


@contextlib.contextmanager
def standing_in(version: str) -> Iterator[FakeEngines]:
    """The fake of a version under the names that the backend imports."""
    engines = FakeEngines(version)
    stand_ins = {"tensorrt": engines.trt, **engines.cuda.modules()}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        yield engines


def found_pixels(folder: Path, batch: int | str = 4) -> Path:
    """A network one of whose outputs lists the pixels above zero: how many there are, only the data tell."""
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    x = n.conv(x, "second", 8, 4)
    n.op("NonZero", [n.op("Relu", [x], "second/relu")], "found")
    proto = n.model([batch, 3, 8, 8], "pixels", [4, "count"])
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    proto.graph.output.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [batch, 4, 8, 8]))
    return save(proto, folder / "net.onnx")
