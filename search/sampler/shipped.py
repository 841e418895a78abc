"""The names of the shipped samplers, in a module of their own so that reading them does not import Optuna."""

from __future__ import annotations

GROUP = "bitfront.samplers"  # of entry points, by which other packages register theirs
SHIPPED = {
    "guided": "search.sampler.kinds:Guided",
    "tpe": "search.sampler.kinds:TPE",
    "nsga2": "search.sampler.kinds:NSGA2",
    "gp": "search.sampler.kinds:GP",
    "random": "search.sampler.kinds:Random",
    "rl": "search.sampler.q_learning:QLearning",
}
