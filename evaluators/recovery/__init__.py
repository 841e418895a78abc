"""Recovery: steps that reduce the loss of INT8 at no cost in latency. They run on the CPU and build no engine.

Exact steps change the float model without changing its outputs. The others change constants that only INT8 uses.
"""

from __future__ import annotations

from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.step import RecoveryStep

__all__ = ["RecoveryContext", "RecoveryStep"]
