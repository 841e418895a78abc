"""What a layer can compute in: one member, one row of all that is known of it before anything is measured."""

from __future__ import annotations

import math
from enum import Enum
from functools import total_ordering
from typing import Any

BASELINE = "baseline:"  # how roles of uniform assignments begin
_LARGEST_CODES = {"int4": 7, "int8": 127, "float8_e4m3fn": 448}


@total_ordering
class Precision(Enum):
    """What a group computes in; ordered by rank, so that `max` is the coarsest of several.

    The value of a member is its id. The name is that of TensorRT's builder flag where it has one, and in lower case the
    word of `trtexec` and Polygraphy. FP32 is the finest and the reference: a loss is against it, and it adds no noise.

    Attributes:
        id: what databases and digests hold: never renumber, only add.
        rank: 0 for the finest; the numbers may change when a member is added between two others.
        dtype: type of one value, by the name that numpy and TensorRT share.
        quantized: whether weights are codes with a scale, which backends choose in different ways; others are floats,
            which round alike everywhere.
        calibrated: whether activations are codes too, on a scale that calibration finds. They are what layers hand
            on then. Otherwise layers hand on floats; a quantized one finds the scale of what it reads each time.
        blocks: along K, each with a scale of its own, where weights alone are codes: the sizes to choose from, the
            first that divides K. Activations are floats then.
        largest: the largest finite value, of WF8 that of FP16, which it multiplies; infinite where a scale decides.
        opset: the first of ONNX in which weighted ops, and Q/DQ beside them, take its type; 0 for any.
        value_bytes: size of one value that a layer hands on.
        weight_bytes: size of one weight, with its part of the scales.
        usual_time: time of a layer against FP32, where a target never measured it: between what GPUs and processors
            gain; FP8's, which no engine here has, is INT8's. Measured are those of `benchmarks/results/formats.md`,
            "What is expected of a format before it is measured", which has the next one too.
        usual_noise: power of the error that a layer adds to the outputs against INT8, where it was not measured.
        largest_code: the largest number that stands for a weight or an activation before its scale; 0 where none does.
        recovered: whether the steps of recovery that change constants are for it: they are fitted to integers.
        ceiling_db: what two right implementations agree to: they sum in another order (FP32; TF32 too), in half
            precision (FP16), or now and then round to the neighbouring step (INT8).
        words: pattern of how listings of engines word the type, in any case; of no other type's words.
        tactic_words: how names of TensorRT's tactics call it.
        colour: in figures; told apart by colour-blind eyes too, and light to dark from fine to coarse.
    """

    _value_: int
    id: int
    rank: int
    dtype: str
    quantized: bool
    calibrated: bool
    blocks: tuple[int, ...]
    largest: float
    opset: int
    value_bytes: float
    weight_bytes: float
    usual_time: float
    usual_noise: float
    largest_code: int
    recovered: bool
    ceiling_db: float
    words: str
    tactic_words: tuple[str, ...]
    colour: str

    FP32 = {  # noqa: RUF012 - facts, not a value
        "id": 0,
        "rank": 0,
        "dtype": "float32",
        "quantized": False,
        "calibrated": False,
        "blocks": (),
        "largest": 3.4028234663852886e38,
        "opset": 0,
        "value_bytes": 4.0,
        "weight_bytes": 4.0,
        "usual_time": 1.0,
        "usual_noise": 0.0,
        "ceiling_db": 60.0,
        "words": r"fp32|(?<![a-z])float(?:32)?(?!\d)",
        "tactic_words": ("f32", "tf32"),
        "colour": "#d5dbe3",
    }
    FP16 = {  # noqa: RUF012 - facts, not a value
        "id": 1,
        "rank": 1,
        "dtype": "float16",
        "quantized": False,
        "calibrated": False,
        "blocks": (),
        "largest": 65504.0,
        "opset": 19,
        "value_bytes": 2.0,
        "weight_bytes": 2.0,
        "usual_time": 0.6,
        "usual_noise": 0.002,
        "ceiling_db": 50.0,
        "words": r"fp16|half|(?<![a-z])float16",
        "tactic_words": ("f16",),
        "colour": "#6aaed6",
    }
    BF16 = {  # noqa: RUF012 - facts, not a value
        "id": 3,
        "rank": 2,
        "dtype": "bfloat16",
        "quantized": False,
        "calibrated": False,
        "blocks": (),
        "largest": 3.3895313892515355e38,
        "opset": 22,
        "value_bytes": 2.0,
        "weight_bytes": 2.0,
        "usual_time": 0.6,
        "usual_noise": 0.1,
        "ceiling_db": 35.0,
        "words": r"bf16|bfloat",
        "tactic_words": ("bf16",),
        "colour": "#3d86bd",
    }
    W8 = {  # noqa: RUF012 - facts, not a value
        "id": 5,
        "rank": 3,
        "dtype": "int8",
        "quantized": True,
        "calibrated": False,
        "blocks": (128, 64, 32),
        "largest": math.inf,
        "opset": 21,
        "value_bytes": 4.0,
        "weight_bytes": 1.03,
        "usual_time": 0.6,
        "usual_noise": 0.3,
        "ceiling_db": 35.0,
        "words": r"(?<![a-z\d])w8(?!\d)",
        "tactic_words": (),
        "colour": "#357cb3",
    }
    INT8_DYNAMIC = {  # noqa: RUF012 - facts, not a value
        "id": 4,
        "rank": 4,
        "dtype": "int8",
        "quantized": True,
        "calibrated": False,
        "blocks": (),
        "largest": math.inf,
        "opset": 0,
        "value_bytes": 4.0,
        "weight_bytes": 1.0,
        "usual_time": 0.45,
        "usual_noise": 0.8,
        "ceiling_db": 30.0,
        "words": r"(?<![a-z])dynamic int8",
        "tactic_words": (),
        "colour": "#2a6aa6",
    }
    INT8 = {  # noqa: RUF012 - facts, not a value
        "id": 2,
        "rank": 5,
        "dtype": "int8",
        "quantized": True,
        "calibrated": True,
        "blocks": (),
        "largest": math.inf,
        "opset": 0,
        "value_bytes": 1.0,
        "weight_bytes": 1.0,
        "usual_time": 0.45,
        "usual_noise": 1.0,
        "ceiling_db": 30.0,
        "words": r"(?<![a-z])int8",
        "tactic_words": ("i8",),
        "colour": "#1b4f8f",
    }
    WF8 = {  # noqa: RUF012 - facts, not a value
        "id": 8,
        "rank": 6,
        "dtype": "float8_e4m3fn",
        "quantized": True,
        "calibrated": False,
        "blocks": (128, 64, 32),
        "largest": 65504.0,
        "opset": 21,
        "value_bytes": 4.0,
        "weight_bytes": 1.03,
        "usual_time": 0.6,
        "usual_noise": 5.0,
        "ceiling_db": 30.0,
        "words": r"(?<![a-z\d])wf8(?!\d)",
        "tactic_words": (),
        "colour": "#194686",
    }
    FP8 = {  # noqa: RUF012 - facts, not a value
        "id": 7,
        "rank": 7,
        "dtype": "float8_e4m3fn",
        "quantized": True,
        "calibrated": True,
        "blocks": (),
        "largest": math.inf,
        "opset": 19,
        "value_bytes": 1.0,
        "weight_bytes": 1.0,
        "usual_time": 0.45,
        "usual_noise": 15.0,
        "ceiling_db": 25.0,
        "words": r"fp8|e4m3|float8",
        "tactic_words": ("e4m3",),
        "colour": "#173e7c",
    }
    W4 = {  # noqa: RUF012 - facts, not a value
        "id": 6,
        "rank": 8,
        "dtype": "int4",
        "quantized": True,
        "calibrated": False,
        "blocks": (32,),
        "largest": math.inf,
        "opset": 21,
        "value_bytes": 4.0,
        "weight_bytes": 0.63,
        "usual_time": 0.5,
        "usual_noise": 60.0,
        "ceiling_db": 30.0,
        "words": r"(?<![a-z])int4(?!\d)",
        "tactic_words": (),
        "colour": "#12305f",
    }

    def __new__(cls, facts: dict[str, Any]) -> Precision:
        made = object.__new__(cls)
        made._value_ = facts["id"]
        vars(made).update(facts, largest_code=_LARGEST_CODES.get(facts["dtype"], 0))
        made.recovered = facts["calibrated"] and facts["dtype"] == "int8"
        return made

    def __lt__(self, other: Precision) -> bool:
        return self.rank < other.rank

    @property
    def label(self) -> str:
        """The word for it on the command line and in tables: `int8`, `int8-dynamic`."""
        return self.name.lower().replace("_", "-")

    @property
    def role(self) -> str:
        """The role of the evaluation in which all groups run in it: `baseline:fp32`."""
        return BASELINE + self.label

    def block(self, depth: int) -> int:
        """The size of its blocks where K is `depth`: several, lest engines take it for `int8`; 0 if none does."""
        return next((size for size in self.blocks if depth % size == 0 and size < depth), 0)

    @classmethod
    def of_id(cls, stored: int) -> Precision:
        """The precision that a database holds as this number; raises ValueError where there is none."""
        for precision in cls:
            if precision.id == stored:
                return precision
        raise ValueError(f"no precision has the id {stored}; known are {[p.id for p in cls]}")

    @classmethod
    def in_blocks(cls, dtype: str) -> Precision | None:
        """The precision of weights alone with codes of this type, in blocks; None if there is none."""
        return next((precision for precision in cls if precision.blocks and precision.dtype == dtype), None)

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Read `int8`, `FP16`, …; raises ValueError naming the precisions there are."""
        try:
            return cls[text.strip().upper().replace("-", "_")]
        except KeyError:
            raise ValueError(f"precision {text!r} is unknown; known are {', '.join(p.label for p in cls)}") from None


REFERENCE = Precision.FP32
# Where one lower precision stands for a whole network it is INT8, if that is offered: W4 is for a few products alone.
RECOVERED_FIRST = sorted(Precision, key=lambda each: (each.recovered, each), reverse=True)
