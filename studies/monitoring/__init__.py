"""Metrics of a running search for Prometheus. Needs `prometheus_client`, which the extra `metrics` installs."""

from __future__ import annotations

from studies.monitoring.metrics_port import monitored

__all__ = ["monitored"]
