"""A fourth precision between FP16 and INT8, which no release has: what a new member of `Precision` goes through.

`add` makes it known to a process; with `BITFRONT_TEST_TOY` an evaluator process knows it too. The fake backend offers
every precision there is.
"""

from __future__ import annotations

from search.values import Precision

ID = 7
FACTS = {"dtype": "toy", "value_bytes": 1.5, "usual_time": 0.5, "usual_noise": 0.1, "ceiling_db": 40.0}
COLOUR = "#123456"


def add() -> Precision:
    """Make it a member: its id is the largest, its rank lies between those of two others."""
    made = object.__new__(Precision)
    made._name_, made._value_ = "TOY", ID
    for name, value in {"id": ID, "rank": 2, "scaled": True, "colour": COLOUR, **FACTS}.items():
        setattr(made, name, value)
    Precision.INT8.rank = 3
    Precision._member_names_.append("TOY")
    Precision._member_map_["TOY"] = Precision._value2member_map_[ID] = made
    return made


def remove() -> None:
    """Forget it again."""
    Precision.INT8.rank = 2
    Precision._member_names_.remove("TOY")
    del Precision._member_map_["TOY"], Precision._value2member_map_[ID]
