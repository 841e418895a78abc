"""Metrics of a running search for Prometheus. Needs `prometheus_client`, which the extra `metrics` installs."""

from __future__ import annotations

from studies.monitoring.metrics_port import serve_metrics

__all__ = ["serve_metrics"]
