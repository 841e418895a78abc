"""Evaluating one given mix without a study: its latency, its loss, and the layers that cause the loss.

Public: `evaluate_mix` in `evaluate`; `MixReport` in `report`. It stores nothing and proposes no mixes of its own, but
for those by which bisection explains the loss.
"""
