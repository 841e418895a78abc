"""Networks that answer as measured engines did, so that samplers can be compared without a GPU.

Arrays of a layout name the precisions that these networks were measured in by their places in `MEASURED`.
"""

from __future__ import annotations

from search.values import Precision

MEASURED = (Precision.FP32, Precision.FP16, Precision.INT8)
PRECISIONS = len(MEASURED)
