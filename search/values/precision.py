"""What a layer can compute in: one member, one row of all that is known of it before anything is measured."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Precision(Enum):
    """What a group computes in; ordered by rank, so that `max` is the coarsest of several.

    The value of a member is the id that databases and digests hold: never renumber, only add. The rank is the order of
    fineness, whose numbers may change when a member is added between two others. FP32 is the finest and the reference:
    a loss is against it, and it adds no noise.

    Attributes:
        id: as stored.
        rank: 0 for the finest.
        dtype: of one value, by the name that numpy and TensorRT share.
        value_bytes: of one value in memory.
        usual_time: of a layer against FP32, where a target never measured it: between what GPUs and processors gain.
        usual_noise: error that a layer adds to the outputs against INT8, where it was not measured.
        ceiling_db: what two right implementations agree to: they sum in another order (FP32; TF32 too), in half
            precision (FP16), or now and then round to the neighbouring step (INT8).
        scaled: whether values are integers with a scale, which backends choose in different ways; others round alike
            everywhere.
        colour: in figures; told apart by colour-blind eyes too, and light to dark from fine to coarse.
    """

    id: int
    rank: int
    dtype: str
    value_bytes: float
    usual_time: float
    usual_noise: float
    ceiling_db: float
    scaled: bool
    colour: str

    FP32 = 0, 0, "float32", 4.0, 1.0, 0.0, 60.0, False, "#d5dbe3"
    FP16 = 1, 1, "float16", 2.0, 0.6, 0.01, 50.0, False, "#6aaed6"
    INT8 = 2, 2, "int8", 1.0, 0.45, 1.0, 30.0, True, "#1b4f8f"

    def __new__(
        cls,
        stored: int,
        rank: int,
        dtype: str,
        value_bytes: float,
        usual_time: float,
        usual_noise: float,
        ceiling_db: float,
        scaled: bool,
        colour: str,
    ) -> Precision:
        made = object.__new__(cls)
        made._value_ = made.id = stored
        made.rank, made.dtype, made.value_bytes = rank, dtype, value_bytes
        made.usual_time, made.usual_noise = usual_time, usual_noise
        made.ceiling_db, made.scaled, made.colour = ceiling_db, scaled, colour
        return made

    def __lt__(self, other: Precision) -> bool:
        return self.rank < other.rank

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of_id(cls, stored: int) -> Precision:
        """The precision that a database holds as this number; raises ValueError where there is none."""
        for precision in cls:
            if precision.id == stored:
                return precision
        raise ValueError(f"no precision has the id {stored}; known are {[p.id for p in cls]}")

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Read `int8`, `FP16`, …; raises ValueError naming the precisions there are."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise ValueError(f"precision {text!r} is unknown; known are {', '.join(p.label for p in cls)}") from None
