"""The precisions that replayed networks were measured in; arrays of a layout name them by their places here."""

from __future__ import annotations

from search.values import Precision

MEASURED = (Precision.FP32, Precision.FP16, Precision.INT8)
PRECISIONS = len(MEASURED)
