"""One mix that somebody names, evaluated without a study: how fast it is, what it loses, and which layers lose it.

Public: `evaluate_mix` in `evaluate`; `MixReport` in `report`. It stores nothing and proposes no mixes of its own, but
for those by which bisection explains the loss.
"""
