"""Steps that make INT8 lose less at no cost in latency. They run the model on the processor; they build no engine.

Exact steps change the float model without changing its outputs. The others change constants that only INT8 uses.
"""

from __future__ import annotations

from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import RecoveryStep

__all__ = ["RecoveryContext", "RecoveryStep"]
