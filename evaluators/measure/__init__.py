"""How good an engine is: its latency, its loss against FP32 with an interval, and how much data tells how small a loss.

Works on sessions that somebody else has opened. Never builds an engine, and never judges what it measures. Public:
`measure`, `measure_together` and `device_lock` in `latency`; `evaluate` and `reference` in `accuracy`; `scaled` in
`latency_scale`; `order_scores` in `score_order`; `paired_interval` in `intervals`.
"""
