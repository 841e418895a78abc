"""Measurements of an engine: its latency, and its loss against FP32 with an interval.

Works on sessions that somebody else has opened. Never builds an engine, and never judges what it measures. Public:
`measure` and `measure_together` in `latency`; `device_lock` in `device_lock`; `evaluate` and `reference` in
`accuracy`; `scaled` in `latency_scale`; `order_scores` in `score_order`; `paired_interval` in `intervals`.
"""
