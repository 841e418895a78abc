"""Metrics of a guard for Prometheus. Needs `prometheus_client`, which the extra `metrics` installs.

Imported only by those who want metrics: the guard itself knows nothing of them.
"""

from __future__ import annotations

from studies.guard.metrics.guard_metrics import GuardMetrics
from studies.guard.metrics.layer_errors import LayerErrors

__all__ = ["GuardMetrics", "LayerErrors"]
