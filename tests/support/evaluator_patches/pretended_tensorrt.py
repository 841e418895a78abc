"""A TensorRT that is not there, in evaluator processes: `fake_engine.py` of the version in `BITFRONT_TEST_TENSORRT`.

`BITFRONT_TEST_REGION`, `first,last,int8`: the builder gives a fused region from one node to another as the reason why
it builds no network in which either runs in that precision. `BITFRONT_TEST_NO_BUILDER`: why no builder can be made.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.support.tensorrt.fake_engine import FakeEngines, _precision

ENGINES = FakeEngines(os.environ["BITFRONT_TEST_TENSORRT"])
REGION = os.environ.get("BITFRONT_TEST_REGION", "").split(",")
build = ENGINES.fake.behaviours["Builder.build_serialized_network"]


def refuse(builder: Any, network: Any, config: Any) -> Any:
    if len(REGION) == 3:
        first, last, word = REGION
        named = {"int8": "INT8", "fp16": "HALF"}[word]
        strong = network._state["strong"]
        hit = [x for x in network._state["layers"] if x.name in (first, last) and _precision(x, strong) == named]
        if hit:
            message = f"10: Could not find any implementation for node {{ForeignNode[{first}/weight...{last}]}}."
            for line in ("1: ", message):
                builder.logger.log(type(builder.logger).ERROR, line)
            return None
    return build(builder, network, config)


def no_builder(made: Any, logger: Any) -> None:
    logger.log(type(logger).ERROR, os.environ["BITFRONT_TEST_NO_BUILDER"])
    raise TypeError("pybind11::init(): factory function returned nullptr")


if "BITFRONT_TEST_NO_BUILDER" in os.environ:
    ENGINES.fake.behaviours["Builder.__init__"] = no_builder
ENGINES.fake.behaviours["Builder.build_serialized_network"] = refuse
sys.modules.update({"tensorrt": ENGINES.trt, **ENGINES.cuda.modules()})
